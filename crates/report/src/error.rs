//! What can go wrong between a bundle and a site.

use std::path::PathBuf;

/// Why a site was not built or not served.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// No bundle was named.
    #[error("no run bundle was given: name at least one folder that holds a run.json")]
    NoBundles,
    /// A folder is no run bundle, or its `run.json` cannot be read.
    #[error("{path} is not a readable run bundle: {reason}", path = .path.display())]
    Unreadable {
        /// The folder that was named.
        path: PathBuf,
        /// What was found instead of a bundle.
        reason: String,
    },
    /// `--out` exists and was not made by this command.
    #[error(
        "{path} exists and is no site made by deltamux (it has no {marker}): choose another --out, or remove it first",
        path = .path.display(),
        marker = crate::site::MARKER_FILE
    )]
    NotOurs {
        /// The folder that was not touched.
        path: PathBuf,
    },
    /// `--out` has no parent folder to write beside it.
    #[error("{path} cannot be a site's folder: expected a path such as `site` or `reports/site`", path = .path.display())]
    NoParent {
        /// The path that was named.
        path: PathBuf,
    },
    /// A folder to be served has no start page.
    #[error("{path} has no index.html: name a folder made by `deltamux report build`", path = .path.display())]
    NoIndex {
        /// The folder that was named.
        path: PathBuf,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another --port, or 0 for a free one")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Reading or writing failed; the message names the file.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A page template failed: a fault of deltamux, not of the bundle.
    #[error("page template: {0}")]
    Template(#[from] minijinja::Error),
    /// A value could not be written as JSON: a fault of deltamux, not of the bundle.
    #[error("page data: {0}")]
    Json(#[from] serde_json::Error),
}

impl ReportError {
    /// Whether deltamux itself is at fault, not what it was given.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        matches!(self, Self::Template(_) | Self::Json(_))
    }
}
