//! Run bundles to a static site.
//!
//! [`build`] reads and verifies each bundle, turns it into pages in English and German, and puts the whole site in
//! place with one rename. The pages need no network and no server: they open from `file://`. [`serve`] hands a site out
//! over HTTP for those who want an address.
//!
//! The way of a bundle: `source` (what was read, and the verdict) → `page` (chapters, tables and charts as data, every
//! word and number in its language) → `render` (templates) → `site` (files).

mod assets;
mod chart;
mod error;
mod language;
mod number;
mod page;
mod render;
mod serve;
mod site;
mod source;
mod table;

pub use error::ReportError;
pub use language::Language;
pub use serve::{Server, serve};
pub use site::{BuildOptions, BuiltRun, MARKER_FILE, Site, build};
