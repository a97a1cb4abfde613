//! The engine's events for all choices of one HTTP request, observed and merged.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use deltamux_engine::{Event, Request};
use futures::Stream;
use futures::stream::{SelectAll, StreamExt as _};

use crate::app::{Phase, Shared};
use crate::errors::ApiError;
use crate::metrics::CompletionTimes;
use crate::{Events, Inference};

/// Events of every choice, as they come. Dropping it cancels what still runs.
pub type Merged = SelectAll<Pin<Box<dyn Stream<Item = (usize, Event)> + Send>>>;

/// Submits all requests, or none: when one is refused, those before it are cancelled.
pub fn submit(
    shared: &Arc<Shared>,
    engine: &dyn Inference,
    requests: Vec<Request>,
    start: Instant,
    prompt_field: &str,
) -> Result<Merged, ApiError> {
    let mut merged = Merged::new();
    for (choice, request) in requests.into_iter().enumerate() {
        let model = request.model.clone();
        let events = engine
            .submit(request)
            .map_err(|error| ApiError::from_submit(error, prompt_field))?;
        let observed = Observed {
            events,
            shared: shared.clone(),
            model,
            times: CompletionTimes {
                start,
                first: None,
                end: start,
                tokens: 0,
            },
            ended: false,
        };
        // A server that stops ends its streams; readers take an end without `Done` for what it is.
        let stopping = observed.take_until(Box::pin(shared.reached(Phase::Stopped)));
        merged.push(Box::pin(stopping.map(move |event| (choice, event))));
    }
    Ok(merged)
}

/// The events of one completion; what passes is measured, and an end that never came counts as cancelled.
struct Observed {
    events: Events,
    shared: Arc<Shared>,
    model: String,
    times: CompletionTimes,
    ended: bool,
}

impl Stream for Observed {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let this = &mut *self;
        let event = std::task::ready!(this.events.poll_next_unpin(cx));
        let now = Instant::now();
        let metrics = &this.shared.metrics;
        match &event {
            Some(Event::Token { .. }) => {
                this.times.tokens += 1;
                if this.times.first.is_none() {
                    this.times.first = Some(now);
                    metrics.first_token(&this.model, now - this.times.start);
                }
            }
            Some(Event::Done { reason, .. }) => {
                this.ended = true;
                this.times.end = now;
                metrics.finished(&this.model, *reason, &this.times);
            }
            Some(Event::Failed(_)) | None if !this.ended => {
                this.ended = true;
                metrics.ended(&this.model, "failed");
            }
            Some(Event::Failed(_)) | None => {}
        }
        Poll::Ready(event)
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        if !self.ended {
            self.shared.metrics.ended(&self.model, "cancelled");
        }
    }
}

/// What an end of the events without `Done` means.
pub fn cut_off(shared: &Shared) -> ApiError {
    if shared.phase() == Phase::Serving {
        ApiError::internal("the engine ended a request without an answer")
    } else {
        ApiError::shutting_down()
    }
}
