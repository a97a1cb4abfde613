//! Workloads, load generation, measurement, run bundles and their verification.
//!
//! [`profile::arrivals`], [`profile::concurrency`] and [`quality::quality`] run against any OpenAI-compatible URL and write
//! a [`bundle::Bundle`]; [`verify::verify`] recomputes its figures from its raw events. [`measure`], [`stats`], [`knee`],
//! [`plan`] and [`quality::figures`] are pure: they see no clock, no network and no file. [`machine`] measures the kernels
//! and the forward pass themselves, in this process, and [`agreement`] compares a model's predictions with another's.

pub mod agreement;
pub mod arrival;
pub mod bundle;
pub mod choice;
pub mod client;
pub mod environment;
pub mod knee;
pub mod lengths;
pub mod load;
pub mod machine;
pub mod measure;
pub mod plan;
pub mod profile;
pub mod prompts;
pub mod quality;
pub mod server_report;
pub mod spec;
pub mod stats;
pub mod tasks;
pub mod verify;
pub mod workload;
