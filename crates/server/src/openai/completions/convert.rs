//! A [`CompletionRequest`] to the engine's requests.

use deltamux_engine::{ModelText, Request};

use super::types::{CompletionRequest, Prompt};
use crate::errors::ApiError;
use crate::openai::lookup::{check_length, encode};

/// Tokenizes each prompt and makes a request for each choice, the choices of a prompt side by side.
pub fn requests(request: &CompletionRequest, text: &ModelText, limit: usize) -> Result<Vec<Request>, ApiError> {
    let vocabulary = text.tokenizer.vocab_size();
    request.params.check_vocabulary(vocabulary)?;
    let mut requests = Vec::with_capacity(request.prompts.len() * request.params.n);
    for (path, prompt) in &request.prompts {
        let ids = match prompt {
            Prompt::Text(prompt) => encode(&text.tokenizer, prompt, true, limit, path)?,
            Prompt::Ids(ids) => {
                check_length(ids, limit, path)?;
                if let Some(at) = ids.iter().position(|id| *id as usize >= vocabulary) {
                    let what = format!("the model's token ids are below {vocabulary}, found {}", ids[at]);
                    return Err(ApiError::invalid_value(&format!("{path}[{at}]"), what));
                }
                ids.clone()
            }
        };
        if ids.is_empty() {
            return Err(ApiError::invalid_value(
                path,
                "has no tokens; a prompt needs at least one",
            ));
        }
        requests.extend(request.params.requests(&request.model, &ids, &text.generation));
    }
    Ok(requests)
}
