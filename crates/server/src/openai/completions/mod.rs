//! `POST /v1/completions`.

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

/// The field that prompts come from.
const PROMPT: &str = "prompt";

/// The endpoint.
pub struct Completions;

impl Endpoint for Completions {
    const ID_PREFIX: &'static str = "cmpl";
    const PROMPT: &'static str = PROMPT;
    type Asked = types::CompletionRequest;
    type Chunks = respond::TextChunks;

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
        respond::TextChunks::new(envelope, count, params)
    }

    fn whole(envelope: &Envelope, choices: Vec<Choice>, usage: UsageReport, logprobs: bool) -> Response {
        respond::whole(envelope, choices, usage, logprobs)
    }
}
