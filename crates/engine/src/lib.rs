//! Continuous batching of requests for many variants of one base model.
//!
//! One thread owns the model and steps; [`Engine`] handles talk to it over channels and are cheap to clone.
//!
//! * `scheduler` decides what the next step computes, `residency` which variants are in memory: pure functions of
//!   state and time, without I/O, threads or clocks.
//! * `core` is the step thread: it takes commands, asks those two, runs the backend and sends tokens. It never waits
//!   for a disk (`loader` has a thread of its own) or for a client (channels are unbounded).
//! * `sampler` and `output` turn logits into tokens and tokens into text that may be sent.
//! * `registry` and `memory` are what an engine is set up with.

mod core;
mod engine;
mod executor;
mod kv;
mod loader;
mod memory;
mod output;
mod registry;
pub mod request;
mod residency;
mod sampler;
mod scheduler;
mod sequence;
mod shared;
mod start;
mod stream;
mod sync;
#[cfg(test)]
mod tests;
mod text;

pub use engine::Engine;
pub use request::{
    EngineConfig, EngineError, EngineStats, Event, FinishReason, LogProb, Mode, ModelText, Request, SamplingParams,
    SubmitError, TokenLogProbs, Usage, VariantInfo, VariantState,
};
pub use stream::RequestStream;
