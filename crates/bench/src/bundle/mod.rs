//! The run bundle: a folder with `run.json`, `events.parquet`, `environment.json`, `server.json` and `SHA256SUMS`.

mod environment;
mod events;
mod figures;
mod folder;
mod run;
mod schema;
mod server;

pub use environment::{Cpu, Environment};
pub use events::{Chunk, ChunkKind, EventsError, Outcome, RequestRecord, read_events, write_events};
pub use figures::{Counts, Estimate, Interval, Latencies, Rates, Statistic};
pub use folder::{Bundle, BundleError};
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
/// Digests of the other four.
pub const DIGESTS_FILE: &str = "SHA256SUMS";
