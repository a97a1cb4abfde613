//! The run page as data: chapters of sections of blocks. Templates only set it; every word and figure is decided here.

mod arrivals;
mod concurrency;
mod evidence;
mod figures;
mod masthead;
mod outlook;
mod overview;
mod quality;
mod requests;
mod resources;
mod workload;

use serde::Serialize;

pub use overview::{Overview, overview};

use crate::chart::Exhibit;
use crate::language::Texts;
use crate::source::Source;
use crate::table::Table;
use deltamux_bench::bundle::Profile;

/// A run's page.
#[derive(Debug, Clone, Serialize)]
pub struct RunPage {
    /// Heading: what was served.
    pub title: String,
    /// Which profile, in words.
    pub profile: String,
    /// Run id.
    pub id: String,
    /// Whether every figure could be recomputed.
    pub validated: bool,
    /// Why not.
    pub reasons: Vec<String>,
    /// What the run was made with.
    pub facts: Vec<Fact>,
    /// The figures to remember.
    pub headlines: Vec<Headline>,
    /// The chapters.
    pub chapters: Vec<Chapter>,
}

/// A term and what is known about it.
#[derive(Debug, Clone, Serialize)]
pub struct Fact {
    /// The term.
    pub term: String,
    /// What is known; absent when nobody said or measured it.
    pub value: Option<String>,
    /// What is said when `value` is absent.
    pub absent: String,
    /// Whether it is set in the digest's face.
    pub mono: bool,
    /// Whether it needs the room of two.
    pub long: bool,
}

impl Fact {
    /// Something that is stated, or is not.
    pub fn stated(texts: &Texts, term: &str, value: Option<String>) -> Self {
        Self {
            term: texts.get(term),
            value,
            absent: texts.get("absent.not_stated"),
            mono: false,
            long: false,
        }
    }

    /// Something that is measured, or is not.
    pub fn measured(texts: &Texts, term: &str, value: Option<String>) -> Self {
        Self {
            absent: texts.get("absent.not_measured"),
            ..Self::stated(texts, term, value)
        }
    }

    /// The same fact in the digest's face, which is wide.
    #[must_use]
    pub fn mono(self) -> Self {
        Self {
            mono: true,
            ..self.long()
        }
    }

    /// The same fact with the room of two.
    #[must_use]
    pub fn long(self) -> Self {
        Self { long: true, ..self }
    }
}

/// A figure at the head of the page.
#[derive(Debug, Clone, Serialize)]
pub struct Headline {
    /// What it is.
    pub label: String,
    /// The number; absent when it was not measured.
    pub value: Option<String>,
    /// Its unit.
    pub unit: String,
    /// Under which condition.
    pub condition: String,
}

/// A chapter.
#[derive(Debug, Clone, Serialize)]
pub struct Chapter {
    /// Target of the contents.
    pub id: &'static str,
    /// Heading.
    pub title: String,
    /// What it is about.
    pub intro: String,
    /// Its sections.
    pub sections: Vec<Section>,
}

/// A section.
#[derive(Debug, Clone, Serialize)]
pub struct Section {
    /// Heading.
    pub title: String,
    /// What it is about; may be empty.
    pub intro: String,
    /// What it holds.
    pub blocks: Vec<Block>,
}

impl Section {
    fn new(texts: &Texts, key: &str, blocks: Vec<Block>) -> Self {
        let intro = texts.find(&format!("{key}.intro")).unwrap_or_default().to_owned();
        Self {
            title: texts.get(&format!("{key}.title")),
            intro,
            blocks,
        }
    }
}

/// One thing in a section.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Block {
    /// Terms and values.
    Facts {
        /// In their order.
        facts: Vec<Fact>,
    },
    /// A chart with its table.
    Exhibit {
        /// The exhibit.
        exhibit: Box<Exhibit>,
    },
    /// A table.
    Table {
        /// The table.
        table: Table,
        /// When not empty, the table is folded away behind these words.
        summary: String,
        /// What to know when reading it; may be empty.
        note: String,
    },
    /// A command line.
    Command {
        /// As typed in a shell.
        command: String,
    },
    /// Reasons to be careful.
    Notice {
        /// Heading.
        title: String,
        /// The reasons.
        reasons: Vec<String>,
    },
    /// Words where nothing was measured.
    Absent {
        /// What is missing.
        text: String,
    },
}

/// The page of one run in the language of `texts`. `raw` is the folder of the bundle's copy, seen from the page.
#[must_use]
pub fn run_page(texts: &Texts, source: &Source, raw: &str) -> RunPage {
    let run = &source.run;
    let mut profile_sections = vec![workload::section(texts, run)];
    match run.profile {
        Profile::Arrivals => profile_sections.push(arrivals::section(texts, run)),
        Profile::Concurrency => profile_sections.push(concurrency::section(texts, run)),
        // It has a chapter.
        Profile::Quality => {}
    }
    profile_sections.extend(requests::sections(texts, source));
    profile_sections.push(outlook::other_profiles(texts, run.profile));
    let chapter = |id: &'static str, sections| Chapter {
        id,
        title: texts.get(&format!("chapter.{id}.title")),
        intro: texts.get(&format!("chapter.{id}.intro")),
        sections,
    };
    RunPage {
        title: masthead::title(texts, run),
        profile: texts.get(&format!("profile.{}", run.profile)),
        id: run.id.clone(),
        validated: source.verdict.validated,
        reasons: source.verdict.reasons.clone(),
        facts: masthead::facts(texts, run),
        headlines: masthead::headlines(texts, run),
        chapters: vec![
            chapter("profiles", profile_sections),
            chapter("resources", resources::sections(texts, source)),
            chapter("evidence", evidence::sections(texts, source, raw)),
            chapter("quality", quality::sections(texts, source)),
            chapter("speculation", outlook::speculation(texts)),
            chapter("tokens", outlook::tokens(texts)),
        ],
    }
}
