//! Continuous batching of requests for many variants of one base model.
//!
//! One thread owns the model and steps; [`Engine`] handles talk to it over channels and are cheap to clone.

mod kv;
mod output;
pub mod request;
mod residency;
mod sampler;
mod scheduler;

pub use request::{
    EngineConfig, EngineError, EngineStats, Event, FinishReason, LogProb, Mode, ModelText, Request, SamplingParams,
    SubmitError, TokenLogProbs, Usage, VariantInfo, VariantState,
};

use std::path::PathBuf;
use std::sync::Arc;

/// A handle on a running engine.
#[derive(Clone, Debug)]
pub struct Engine {}

/// The events of one request; dropping it cancels the request and frees its pages within one step.
#[derive(Debug)]
pub struct RequestStream {
    /// Events in order; the last is [`Event::Done`] or [`Event::Failed`].
    pub events: tokio::sync::mpsc::UnboundedReceiver<Event>,
}

impl RequestStream {
    /// The next event, or `None` after the last.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// The next event, for callers without a runtime.
    pub fn blocking_next(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }
}

impl Engine {
    /// Loads the base, registers every artifact of the variants folder and starts the step thread.
    pub fn start(_config: EngineConfig) -> Result<Self, EngineError> {
        todo!()
    }

    /// Queues a request. Tokens are ids of the variant's own tokenizer (see [`Engine::text`]).
    pub fn submit(&self, _request: Request) -> Result<RequestStream, SubmitError> {
        todo!()
    }

    /// Name under which the base answers.
    pub fn base_name(&self) -> &str {
        todo!()
    }

    /// The base (first) and every variant, with their states.
    pub fn variants(&self) -> Vec<VariantInfo> {
        todo!()
    }

    /// Tokenizer, chat template and generation defaults of the base (its name) or a variant; `None` when unknown.
    pub fn text(&self, _model: &str) -> Option<Arc<ModelText>> {
        todo!()
    }

    /// Longest sequence (prompt and completion) that this engine serves.
    pub fn max_model_len(&self) -> usize {
        todo!()
    }

    /// Registers an artifact directory at run time (or replaces a name in place: a new generation).
    pub fn register(&self, _name: &str, _artifact: PathBuf) -> Result<VariantInfo, EngineError> {
        todo!()
    }

    /// Forgets a variant; requests that run on it finish, those that wait for it are refused. Gives back what it was,
    /// or `None` when the name is unknown or the base's.
    pub fn unregister(&self, _name: &str) -> Option<VariantInfo> {
        todo!()
    }

    /// Counters and gauges, as of the last step.
    pub fn stats(&self) -> EngineStats {
        todo!()
    }

    /// Stops admitting, lets running requests finish for at most `grace`, then stops the step thread and waits for it.
    /// Blocks: call it from a blocking context.
    pub fn shutdown(&self, _grace: std::time::Duration) {
        todo!()
    }
}
