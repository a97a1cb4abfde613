//! `POST /v1/chat/completions`.

mod convert;
mod respond;
mod types;
mod validate;

use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;

use super::lookup::{Envelope, Target};
use super::{completion_stream, sse, whole};
use crate::app::SharedState;
use crate::errors::ApiError;
use crate::fields::parse_body;

/// The field that prompts come from, for errors about the prompt.
const PROMPT: &str = "messages";

/// Checks the body of a chat completion as the endpoint does, before any model is looked up.
pub fn check(body: &[u8]) -> Result<(), ApiError> {
    validate::read(&parse_body(body)?).map(drop)
}

/// Answers a chat.
pub async fn handle(State(shared): SharedState, body: Bytes) -> Result<Response, ApiError> {
    let start = Instant::now();
    let engine = shared.engine()?;
    let request = validate::read(&parse_body(&body)?)?;
    drop(body);
    let target = Target::find(engine.as_ref(), &request.model)?;
    let envelope = Envelope::new("chatcmpl", &target);
    let params = request.params.clone();
    let requests = super::lookup::off_thread(move || convert::requests(&request, &target.text)).await?;
    let count = requests.len();
    let events = completion_stream::submit(&shared, engine.as_ref(), requests, start, PROMPT)?;
    if params.stream {
        let plan = sse::Plan {
            count,
            n: params.n,
            include_usage: params.include_usage,
            prompt_field: PROMPT,
        };
        let chunks = respond::ChatChunks::new(envelope, count, &params);
        return sse::respond(shared.clone(), events, chunks, plan).await;
    }
    let (choices, usage) = whole::collect(&shared, events, count, params.n, PROMPT).await?;
    Ok(respond::whole(envelope, choices, usage, params.logprobs.is_some()))
}
