//! The run bundle: a folder with `run.json`, `events.parquet`, `environment.json`, `server.json` and `SHA256SUMS`; for the
//! quality profile also `answers.jsonl`.

mod answers;
mod environment;
mod events;
mod figures;
mod folder;
mod quality;
mod run;
mod schema;
mod server;

pub use answers::{AnswerRecord, AnswersError, DivergenceSums, read_answers, write_answers};
pub use environment::{Cpu, Environment};
pub use events::{Chunk, ChunkKind, EventsError, Outcome, RequestRecord, read_events, write_events};
pub use figures::{Counts, Estimate, Interval, Latencies, Rates, Statistic};
pub use folder::{Bundle, BundleError};
pub use quality::{Divergence, Proportion, Quality, Reference, Score, TaskFile};
pub use run::{
    Api, Engine, Knee, Limits, Load, Model, Point, Profile, Repeat, Run, SCHEMA_VERSION, Software, SourceFile, Target,
    Workload,
};
pub use schema::run_schema;
pub use server::{Answer, Sample, ServerReport};

pub(crate) use folder::{digests, json, parse_json};

/// Summary, a [`Run`].
pub const RUN_FILE: &str = "run.json";
/// Raw events, one row per request and per chunk.
pub const EVENTS_FILE: &str = "events.parquet";
/// The client's machine.
pub const ENVIRONMENT_FILE: &str = "environment.json";
/// What the server said about itself.
pub const SERVER_FILE: &str = "server.json";
/// One line for each task that was asked; only in bundles of the quality profile.
pub const ANSWERS_FILE: &str = "answers.jsonl";
/// Digests of the others.
pub const DIGESTS_FILE: &str = "SHA256SUMS";
