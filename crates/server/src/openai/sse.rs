//! Server-sent events: one JSON document an event, `[DONE]` at the end.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use deltamux_engine::Event;
use futures::StreamExt as _;
use serde::Serialize;

use super::completion_stream::{Merged, cut_off};
use super::usage::UsageReport;
use crate::app::Shared;
use crate::errors::ApiError;

/// How an endpoint writes its chunks.
pub trait Chunks: Send + 'static {
    /// The chunks of one event of a choice: a [`Event::Token`] or [`Event::Done`].
    fn event(&mut self, choice: usize, event: Event, out: &mut Frames);
    /// The chunk with the usage, after all choices.
    fn usage(&mut self, usage: &UsageReport, out: &mut Frames);
}

/// What is about to be sent.
#[derive(Debug, Default)]
pub struct Frames(VecDeque<String>);

impl Frames {
    /// Adds a chunk.
    pub fn push(&mut self, chunk: &impl Serialize) {
        match to_line(chunk) {
            Ok(line) => self.0.push_back(line),
            // Strings, numbers and maps with string keys always serialise.
            Err(error) => self.0.push_back(
                ApiError::internal(format_args!("writing a chunk: {error}"))
                    .body()
                    .to_string(),
            ),
        }
    }
}

/// JSON without anything that any reader takes for the end of a line. The format of server-sent events knows CR and LF
/// only, which JSON escapes anyway; some clients also split at U+0085, U+2028 and U+2029, so those are escaped too.
fn to_line(value: &impl Serialize) -> serde_json::Result<String> {
    let json = serde_json::to_string(value)?;
    if !json.contains(['\u{85}', '\u{2028}', '\u{2029}']) {
        return Ok(json);
    }
    // Outside strings JSON has no such characters, so each stands in a string, where its escape means the same.
    Ok(json
        .replace('\u{85}', "\\u0085")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029"))
}

/// What an answer needs to know beside its events.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Choices in all.
    pub count: usize,
    /// Choices a prompt.
    pub n: usize,
    /// Whether to send the usage.
    pub include_usage: bool,
    /// The field that the prompt came from.
    pub prompt_field: &'static str,
}

struct State<C> {
    shared: Arc<Shared>,
    events: Merged,
    chunks: C,
    plan: Plan,
    done: usize,
    usage: UsageReport,
    frames: Frames,
    ended: bool,
}

impl<C: Chunks> State<C> {
    /// Turns an event into frames; `None` is the end of the events.
    fn take(&mut self, event: Option<(usize, Event)>) {
        match event {
            Some((_, Event::Failed(error))) => self.fail(&ApiError::from_submit(error, self.plan.prompt_field)),
            Some((choice, event)) => {
                let finished = matches!(event, Event::Done { .. });
                if let Event::Done { usage, .. } = &event {
                    self.usage.add(choice, self.plan.n, usage);
                    self.done += 1;
                }
                self.chunks.event(choice, event, &mut self.frames);
                if finished && self.done == self.plan.count {
                    if self.plan.include_usage {
                        self.chunks.usage(&self.usage, &mut self.frames);
                    }
                    self.end();
                }
            }
            None => self.fail(&cut_off(&self.shared)),
        }
    }

    /// An error inside the stream: its status is long sent.
    fn fail(&mut self, error: &ApiError) {
        self.frames.push(&error.body());
        self.end();
    }

    fn end(&mut self) {
        self.ended = true;
        self.frames.0.push_back("[DONE]".to_owned());
        // Whatever other choices still run is no longer wanted.
        self.events = Merged::new();
    }

    async fn next_frame(&mut self) -> Option<String> {
        while self.frames.0.is_empty() && !self.ended {
            let event = self.events.next().await;
            self.take(event);
        }
        self.frames.0.pop_front()
    }
}

/// Answers with a stream. The response begins with the first event, so that what is refused before the first token
/// (a variant that turns out to be damaged) is answered with its own status.
pub async fn respond<C: Chunks>(
    shared: Arc<Shared>,
    mut events: Merged,
    chunks: C,
    plan: Plan,
) -> Result<Response, ApiError> {
    let keep_alive = KeepAlive::new().interval(shared.config.keep_alive);
    let first = tokio::time::timeout(shared.config.stream_start, events.next())
        .await
        .ok();
    match &first {
        Some(Some((_, Event::Failed(error)))) => {
            return Err(ApiError::from_submit(error.clone(), plan.prompt_field));
        }
        Some(None) => return Err(cut_off(&shared)),
        Some(Some(_)) | None => {}
    }
    let mut state = State {
        shared,
        events,
        chunks,
        plan,
        done: 0,
        usage: UsageReport::default(),
        frames: Frames::default(),
        ended: false,
    };
    if let Some(event) = first {
        state.take(event);
    }
    let frames = futures::stream::unfold(state, |mut state| async {
        let frame = state.next_frame().await?;
        Some((Ok::<_, Infallible>(SseEvent::default().data(frame)), state))
    });
    let mut response = Sse::new(frames).keep_alive(keep_alive).into_response();
    // Reverse proxies must not collect the stream.
    response.headers_mut().insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn characters_that_some_clients_take_for_line_ends_are_escaped_and_mean_the_same() {
        let value = json!({"content": "a\u{2028}b\u{2029}c\u{85}d\ne\r\"f\\u2028"});
        let line = to_line(&value).unwrap();
        assert!(
            line.chars()
                .all(|c| !matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\n' | '\r')),
            "{line}"
        );
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value);
    }
}
