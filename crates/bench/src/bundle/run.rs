//! `run.json`: what was run and the figures it gave.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::figures::{Counts, Estimate, Latencies, Rates};
use super::quality::Quality;
use crate::arrival::Arrivals;
use crate::choice::Choice;
use crate::lengths::Lengths;

/// Version of `run.json`; a reader refuses any other.
pub const SCHEMA_VERSION: u32 = 1;

/// A run: one profile against one server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Version of this document.
    pub schema_version: u32,
    /// Start time, profile and a short random part; also the name of the bundle's folder.
    pub id: String,
    /// What was measured.
    pub profile: Profile,
    /// What the run stands for in a comparison, e.g. `PrinMix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When it began, RFC 3339, UTC.
    pub started_at: String,
    /// When it ended, RFC 3339, UTC.
    pub finished_at: String,
    /// The program that measured.
    pub generator: Software,
    /// The server that was measured, as far as it or the user said.
    pub engine: Engine,
    /// Where the requests went.
    pub target: Target,
    /// The command line; secrets are left out. Empty when the library was called.
    pub command: Vec<String>,
    /// Seed of schedule, lengths, variants and prompts.
    pub seed: u64,
    /// Models that were asked for.
    pub models: Vec<Model>,
    /// What the requests were made of.
    pub workload: Workload,
    /// Limits that goodput is counted against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Measured points, in the order they were run.
    pub points: Vec<Point>,
    /// The highest rate that kept up, if it was searched for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knee: Option<Knee>,
    /// Right answers and divergences; in the quality profile, and only there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
}

/// What a run measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Open loop: requests come at given rates whatever the server does.
    Arrivals,
    /// Closed loop: a fixed number of requests in flight.
    Concurrency,
    /// Tasks with known answers: how many are answered right.
    Quality,
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Arrivals => "arrivals",
            Self::Concurrency => "concurrency",
            Self::Quality => "quality",
        })
    }
}

/// A program and its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Software {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
}

/// The server under test. Each field is what the server or the user said; absent when nobody did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// Name, e.g. `deltamux`, `vLLM`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Device it computes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Topology, e.g. `TP=1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// Precision of the base's weights, e.g. `bf16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// Whether nothing else used the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<bool>,
}

/// Where requests go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Base URL, without credentials and query.
    pub url: String,
    /// Which endpoint.
    pub api: Api,
}

/// Endpoint of the OpenAI API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// `/v1/chat/completions`.
    #[default]
    Chat,
    /// `/v1/completions`.
    Completions,
}

/// A model that was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Name in requests.
    pub name: String,
    /// The base it is a variant of, as the server lists it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Content digest, as the server lists it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Its weight in the choice, where weights were given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// Bytes that it takes in memory, as the server lists it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// What requests are made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// How each request's model is chosen; absent when a workload file names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variants: Option<Choice>,
    /// Prompt tokens that were aimed at; absent when a file brought the prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<Lengths>,
    /// Completion tokens that were asked for; absent when a file says it for each request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<Lengths>,
    /// Whether the server was asked to go on past the end-of-sequence token.
    pub ignore_eos: bool,
    /// The workload file's name and digest, if one was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<SourceFile>,
    /// Requests that the client kept in flight at most (open loop); absent when unbounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
    /// Time after which a request counts as failed, s.
    pub timeout_s: f64,
}

/// A file that a run was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceFile {
    /// File name without folders.
    pub name: String,
    /// SHA-256, hexadecimal.
    pub sha256: String,
}

/// Limits that a request must meet to count for goodput; one that is absent is not checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// TTFT at most, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// TPOT at most, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpot_ms: Option<f64>,
}

/// How requests are let loose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "loop", rename_all = "lowercase")]
pub enum Load {
    /// Requests are due at times that no answer can move.
    Open {
        /// The arrival process.
        arrivals: Arrivals,
        /// Rate that was asked for, requests/s; absent for a trace replayed as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate_req_per_s: Option<f64>,
    },
    /// Each answer makes room for the next request.
    Closed {
        /// Requests in flight.
        concurrency: u32,
    },
}

/// One measured point. Its distributions pool the raw samples of its valid and invalid repeats alike; its rates are
/// taken over the repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// The load.
    pub load: Load,
    /// Measured requests in each repeat.
    pub requests: u64,
    /// Warm-up requests before the first repeat.
    pub warmup: u64,
    /// False when any repeat is invalid.
    pub valid: bool,
    /// Why not; empty when valid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub invalid: Vec<String>,
    /// Sums over the repeats.
    pub counts: Counts,
    /// Distributions over the requests of all repeats.
    pub latency: Latencies,
    /// Rates over the repeats.
    pub rates: Rates<Estimate>,
    /// Every repeat.
    pub repeats: Vec<Repeat>,
}

/// One repeat of a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// Seed of this repeat's schedule, derived from the run's.
    pub seed: u64,
    /// Whether the client kept its schedule.
    pub valid: bool,
    /// Why not; empty when valid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub invalid: Vec<String>,
    /// Requests by outcome.
    pub counts: Counts,
    /// Distributions over requests.
    pub latency: Latencies,
    /// Rates.
    pub rates: Rates<f64>,
}

/// The highest rate that the server kept up with: completed/offered at least `threshold`, measured without the drain
/// tail, and a queue that does not grow. Points whose client was late show nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Knee {
    /// Completed/offered at least.
    pub threshold: f64,
    /// Highest rate that kept up; absent when none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_req_per_s: Option<f64>,
    /// Lowest rate that did not; absent when all did, and then the knee lies higher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overloaded_at_req_per_s: Option<f64>,
}
