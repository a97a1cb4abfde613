//! From a model's name to what answers.

use std::sync::Arc;

use axum::http::StatusCode;
use deltamux_engine::{ModelText, SubmitError, VariantInfo, VariantState};
use deltamux_model::Tokenizer;

use crate::errors::{ApiError, codes};
use crate::{Inference, ids};

/// A model that can be asked.
pub struct Target {
    /// Its entry in the list of models.
    pub info: VariantInfo,
    /// Tokenizer, template, defaults.
    pub text: Arc<ModelText>,
}

impl Target {
    /// Finds a model by exactly this name; never falls back on another.
    pub fn find(engine: &dyn Inference, model: &str) -> Result<Self, ApiError> {
        let info = engine
            .variants()
            .into_iter()
            .find(|info| info.name == model)
            .ok_or_else(|| ApiError::model_not_found(model))?;
        if let VariantState::Refused { why } = info.state {
            let refused = SubmitError::VariantRefused { name: info.name, why };
            return Err(ApiError::from_submit(refused, "model"));
        }
        // Removed between the two calls, or replaced by one whose text is not there yet.
        let text = engine.text(model).ok_or_else(|| ApiError::model_not_found(model))?;
        Ok(Self { info, text })
    }

    /// What identifies the weights that answer, if it is known.
    pub fn fingerprint(&self) -> Option<String> {
        (!self.info.generation.is_empty()).then(|| self.info.generation.clone())
    }
}

/// The members that every response and chunk of one request shares.
#[derive(Debug, Clone)]
pub struct Envelope {
    /// `chatcmpl-…` or `cmpl-…`.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// Digest of the weights that answer.
    pub system_fingerprint: Option<String>,
}

impl Envelope {
    /// A new response of `target`.
    pub fn new(prefix: &str, target: &Target) -> Self {
        Self {
            id: format!("{prefix}-{}", ids::unique()),
            created: ids::unix_seconds(),
            model: target.info.name.clone(),
            system_fingerprint: target.fingerprint(),
        }
    }
}

/// Runs what takes time in proportion to the prompt (templates, tokenizers) off the threads that move bytes.
pub async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ApiError::internal(format_args!("preparing a prompt: {error}")))?
}

/// Token ids of a prompt that leaves room in a context of `limit` tokens.
pub fn encode(
    tokenizer: &Tokenizer,
    prompt: &str,
    add_special_tokens: bool,
    limit: usize,
    param: &str,
) -> Result<Vec<u32>, ApiError> {
    let least = tokenizer.least_tokens(prompt);
    if least >= limit {
        let what = format!(
            "this model's maximum context length is {limit} tokens, but the prompt has at least {least}; shorten it"
        );
        return Err(ApiError::new(StatusCode::BAD_REQUEST, codes::CONTEXT_LENGTH_EXCEEDED, what).with_param(param));
    }
    let ids = tokenizer
        .encode(prompt, add_special_tokens)
        .map_err(|error| tokenizer_error(param, error))?;
    check_length(&ids, limit, param)?;
    Ok(ids)
}

/// Refuses a prompt that leaves no room, before it is copied for every choice.
pub fn check_length(ids: &[u32], limit: usize, param: &str) -> Result<(), ApiError> {
    let tokens = ids.len();
    if tokens >= limit {
        return Err(ApiError::from_submit(
            SubmitError::PromptTooLong { tokens, limit },
            param,
        ));
    }
    Ok(())
}

/// An error of tokenizing `param`.
pub fn tokenizer_error(param: &str, error: impl std::fmt::Display) -> ApiError {
    ApiError::new(
        StatusCode::BAD_REQUEST,
        codes::INVALID_VALUE,
        format!("`{param}`: {error}"),
    )
    .with_param(param)
}
