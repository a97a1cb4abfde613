//! A [`ChatRequest`] to the engine's requests.

use axum::http::StatusCode;
use deltamux_engine::{ModelText, Request};

use super::PROMPT;
use super::types::ChatRequest;
use crate::errors::{ApiError, codes};
use crate::openai::lookup::encode;

/// Renders the messages with the model's template, tokenizes them without adding special tokens (the template writes
/// them), and makes a request for each choice.
pub fn requests(request: &ChatRequest, text: &ModelText, limit: usize) -> Result<Vec<Request>, ApiError> {
    request.params.check_vocabulary(text.tokenizer.vocab_size())?;
    let template = text.template.as_ref().ok_or_else(|| {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            codes::NO_CHAT_TEMPLATE,
            format!(
                "the model `{}` has no chat template; send a prompt to /v1/completions",
                request.model
            ),
        )
        .with_param("model")
    })?;
    let rendered = template
        .render(
            &request.messages,
            None,
            request.add_generation_prompt,
            &request.template_kwargs,
        )
        .map_err(|error| ApiError::invalid_value(PROMPT, error))?;
    let prompt = encode(&text.tokenizer, &rendered, false, limit, PROMPT)?;
    Ok(request.params.requests(&request.model, &prompt, &text.generation))
}
