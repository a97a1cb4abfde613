//! What the server asks of an engine.

use std::sync::Arc;

use deltamux_engine::{Engine, EngineStats, Event, ModelText, Request, SubmitError, VariantInfo};
use futures::stream::{BoxStream, StreamExt as _};

/// The events of one request, in order; dropping it cancels the request.
pub type Events = BoxStream<'static, Event>;

/// The side of an engine that the server sees. [`Engine`] is the implementation that serves; tests script others to
/// produce what no small model can be made to say.
pub trait Inference: Send + Sync + 'static {
    /// Queues a request; see [`Engine::submit`].
    fn submit(&self, request: Request) -> Result<Events, SubmitError>;

    /// The base (first) and every variant, with their states.
    fn variants(&self) -> Vec<VariantInfo>;

    /// Tokenizer, chat template and defaults of a model; `None` when unknown.
    fn text(&self, model: &str) -> Option<Arc<ModelText>>;

    /// Tokens of prompt and completion at most.
    fn max_model_len(&self) -> usize;

    /// Counters and gauges, as of the last step.
    fn stats(&self) -> EngineStats;

    /// Why no request is answered any more, once that is so; see [`Engine::failure`].
    fn failure(&self) -> Option<SubmitError> {
        None
    }
}

impl Inference for Engine {
    fn submit(&self, request: Request) -> Result<Events, SubmitError> {
        let stream = Self::submit(self, request)?;
        Ok(futures::stream::unfold(stream, |mut stream| async {
            let event = stream.next().await?;
            Some((event, stream))
        })
        .boxed())
    }

    fn variants(&self) -> Vec<VariantInfo> {
        Self::variants(self)
    }

    fn text(&self, model: &str) -> Option<Arc<ModelText>> {
        Self::text(self, model)
    }

    fn max_model_len(&self) -> usize {
        Self::max_model_len(self)
    }

    fn stats(&self) -> EngineStats {
        Self::stats(self)
    }

    fn failure(&self) -> Option<SubmitError> {
        Self::failure(self)
    }
}
