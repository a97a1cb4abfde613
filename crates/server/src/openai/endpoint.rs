//! What the two endpoints have in common: from a body to a response.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use deltamux_engine::{ModelText, Request};
use serde_json::{Map, Value};

use super::completion_stream;
use super::lookup::{Envelope, Target, off_thread};
use super::params::Params;
use super::sse::{self, Chunks, Plan};
use super::usage::UsageReport;
use super::whole::{self, Choice};
use crate::app::SharedState;
use crate::errors::ApiError;
use crate::fields::parse_body;

/// An endpoint that makes completions.
pub trait Endpoint {
    /// What its identifiers begin with.
    const ID_PREFIX: &'static str;
    /// The field that prompts come from, for errors about the prompt.
    const PROMPT: &'static str;
    /// A request that has been read and checked.
    type Asked: AsRef<Params> + Send + Sync + 'static;
    /// How its chunks are written.
    type Chunks: Chunks;

    /// Reads and checks a body.
    fn read(body: &Map<String, Value>) -> Result<Self::Asked, ApiError>;
    /// The model that is asked for.
    fn model(asked: &Self::Asked) -> &str;
    /// The engine's requests, `n` a prompt, each of which leaves room in a context of `limit` tokens. Takes time in
    /// proportion to the prompts.
    fn requests(asked: &Self::Asked, text: &ModelText, limit: usize) -> Result<Vec<Request>, ApiError>;
    /// A writer of chunks for `count` choices.
    fn chunks(envelope: Envelope, count: usize, params: &Params) -> Self::Chunks;
    /// A whole answer.
    fn whole(envelope: &Envelope, choices: Vec<Choice>, usage: UsageReport, logprobs: bool) -> Response;
}

/// Answers a request to an endpoint.
pub async fn handle<E: Endpoint>(State(shared): SharedState, body: Bytes) -> Result<Response, ApiError> {
    let start = Instant::now();
    let engine = shared.engine()?;
    let asked = Arc::new(E::read(&parse_body(&body)?)?);
    drop(body);
    let target = Target::find(engine.as_ref(), E::model(&asked))?;
    let envelope = Envelope::new(E::ID_PREFIX, &target);
    let preparing = asked.clone();
    let limit = engine.max_model_len();
    let requests = off_thread(move || E::requests(&preparing, &target.text, limit)).await?;
    let params: &Params = asked.as_ref().as_ref();
    let plan = Plan {
        count: requests.len(),
        n: params.n,
        include_usage: params.include_usage,
        prompt_field: E::PROMPT,
    };
    let events = completion_stream::submit(&shared, engine.as_ref(), requests, start, E::PROMPT)?;
    if params.stream {
        let chunks = E::chunks(envelope, plan.count, params);
        return sse::respond(shared.clone(), events, chunks, plan).await;
    }
    let (choices, usage) = whole::collect(&shared, events, plan).await?;
    Ok(E::whole(&envelope, choices, usage, params.logprobs.is_some()))
}
