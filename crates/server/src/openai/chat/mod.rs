//! `POST /v1/chat/completions`.

mod convert;
mod respond;
mod types;
mod validate;

use axum::response::Response;
use deltamux_engine::{ModelText, Request};
use serde_json::{Map, Value};

use super::endpoint::Endpoint;
use super::lookup::Envelope;
use super::params::Params;
use super::usage::UsageReport;
use super::whole::Choice;
use crate::errors::ApiError;
use crate::fields::parse_body;

/// The field that prompts come from.
const PROMPT: &str = "messages";

/// Checks the body of a chat completion as the endpoint does, before any model is looked up.
pub fn check(body: &[u8]) -> Result<(), ApiError> {
    Chat::read(&parse_body(body)?).map(drop)
}

/// The endpoint.
pub struct Chat;

impl Endpoint for Chat {
    const ID_PREFIX: &'static str = "chatcmpl";
    const PROMPT: &'static str = PROMPT;
    type Asked = types::ChatRequest;
    type Chunks = respond::ChatChunks;

    fn read(body: &Map<String, Value>) -> Result<Self::Asked, ApiError> {
        validate::read(body)
    }

    fn model(asked: &Self::Asked) -> &str {
        &asked.model
    }

    fn requests(asked: &Self::Asked, text: &ModelText, limit: usize) -> Result<Vec<Request>, ApiError> {
        convert::requests(asked, text, limit)
    }

    fn chunks(envelope: Envelope, count: usize, params: &Params) -> Self::Chunks {
        respond::ChatChunks::new(envelope, count, params)
    }

    fn whole(envelope: &Envelope, choices: Vec<Choice>, usage: UsageReport, logprobs: bool) -> Response {
        respond::whole(envelope, choices, usage, logprobs)
    }
}
