//! JSON to a [`CompletionRequest`], with every refusal naming its field.

use serde_json::{Map, Value, json};

use super::PROMPT;
use super::types::{CompletionRequest, Prompt};
use crate::errors::ApiError;
use crate::fields::{Fields, describe};
use crate::openai::params::{MAX_LOGPROBS, Params, token_ids};

/// OpenAI's default of `max_tokens` at this endpoint.
const DEFAULT_MAX_TOKENS: usize = 16;
/// Completions of one request at most.
const MAX_CHOICES: usize = 2048;
const PROMPT_FORMS: &str = "a string, a list of strings, a list of token ids or a list of lists of token ids";

/// Reads a body.
pub fn read(body: &Map<String, Value>) -> Result<CompletionRequest, ApiError> {
    let fields = Fields::body(body);
    let model = fields.required_string("model")?.to_owned();
    refuse_unsupported(&fields)?;
    let max_tokens = fields.integer("max_tokens", 1..=i64::MAX)?;
    let max_tokens = max_tokens.map_or(DEFAULT_MAX_TOKENS, |tokens| tokens as usize);
    let mut params = Params::read(&fields)?.with_max_tokens(Some(max_tokens))?;
    let logprobs = fields.integer("logprobs", 0..=MAX_LOGPROBS)?;
    params.logprobs = logprobs.map(|top| top as usize);
    let prompts = read_prompts(&fields)?;
    if prompts.len() * params.n > MAX_CHOICES {
        let what = format!(
            "{} prompts with {} completions each are more than {MAX_CHOICES}; send several requests",
            prompts.len(),
            params.n
        );
        return Err(ApiError::invalid_value(PROMPT, what));
    }
    Ok(CompletionRequest { model, prompts, params })
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    fields.refuse("echo", &[json!(false)], "the prompt is not repeated; remove the field")?;
    fields.refuse("suffix", &[json!("")], "insertion is not supported; remove the field")?;
    let n = fields.value("n").cloned().unwrap_or(json!(1));
    fields.refuse(
        "best_of",
        &[n],
        "only as many completions as `n` are made; remove the field",
    )
}

fn read_prompts(fields: &Fields<'_>) -> Result<Vec<(String, Prompt)>, ApiError> {
    let items = match fields.value(PROMPT) {
        None => return Err(ApiError::missing(PROMPT)),
        Some(Value::String(text)) => return Ok(vec![(PROMPT.to_owned(), Prompt::Text(text.clone()))]),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(ApiError::invalid_type(PROMPT, PROMPT_FORMS, &describe(other))),
    };
    match items.first() {
        None => Err(ApiError::invalid_value(PROMPT, "must not be empty")),
        Some(Value::Number(_)) => Ok(vec![(PROMPT.to_owned(), Prompt::Ids(token_ids(items, PROMPT)?))]),
        Some(_) => items
            .iter()
            .enumerate()
            .map(|(at, item)| {
                let path = format!("{PROMPT}[{at}]");
                let prompt = match item {
                    Value::String(text) => Prompt::Text(text.clone()),
                    Value::Array(ids) => Prompt::Ids(token_ids(ids, &path)?),
                    other => {
                        let expected = "a string or a list of token ids";
                        return Err(ApiError::invalid_type(&path, expected, &describe(other)));
                    }
                };
                Ok((path, prompt))
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::codes;

    fn read_json(body: Value) -> Result<CompletionRequest, ApiError> {
        read(body.as_object().unwrap())
    }

    #[test]
    fn a_prompt_has_four_forms() {
        let text = |s: &str| Prompt::Text(s.to_owned());
        for (prompt, expected) in [
            (json!("a"), vec![text("a")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2]), vec![Prompt::Ids(vec![1, 2])]),
            (
                json!([[1], [2, 3]]),
                vec![Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])],
            ),
        ] {
            let request = read_json(json!({"model": "m", "prompt": prompt})).unwrap();
            let prompts: Vec<Prompt> = request.prompts.into_iter().map(|(_, prompt)| prompt).collect();
            assert_eq!(prompts, expected);
        }
    }

    #[test]
    fn wrong_prompts_name_the_place() {
        for (prompt, param, code) in [
            (json!(null), "prompt", codes::MISSING_PARAMETER),
            (json!(5), "prompt", codes::INVALID_TYPE),
            (json!([]), "prompt", codes::INVALID_VALUE),
            (json!([1, "a"]), "prompt[1]", codes::INVALID_TYPE),
            (json!([1, -1]), "prompt[1]", codes::INVALID_VALUE),
            (json!(["a", 1]), "prompt[1]", codes::INVALID_TYPE),
            (json!([[1], [1.5]]), "prompt[1][0]", codes::INVALID_TYPE),
            (json!([{"a": 1}]), "prompt[0]", codes::INVALID_TYPE),
        ] {
            let error = read_json(json!({"model": "m", "prompt": prompt})).unwrap_err();
            assert_eq!(
                (error.param.as_deref(), error.code),
                (Some(param), code),
                "{prompt}: {error}"
            );
        }
    }

    #[test]
    fn the_default_limit_is_openais_sixteen_tokens() {
        let request = read_json(json!({"model": "m", "prompt": "a"})).unwrap();
        assert_eq!(request.params.max_tokens, Some(16));
        assert_eq!(request.params.logprobs, None);
    }

    #[test]
    fn fields_whose_meaning_is_not_implemented_are_refused_by_name() {
        for (field, value) in [("echo", json!(true)), ("suffix", json!("end")), ("best_of", json!(3))] {
            let mut body = json!({"model": "m", "prompt": "a"});
            body[field] = value;
            let error = read_json(body).unwrap_err();
            assert_eq!(
                (error.param.as_deref(), error.code),
                (Some(field), codes::UNSUPPORTED_PARAMETER)
            );
        }
        let body = json!({"model": "m", "prompt": "a", "echo": false, "suffix": null, "best_of": 2, "n": 2});
        assert!(read_json(body).is_ok());
    }

    #[test]
    fn a_request_for_too_many_completions_is_refused() {
        let body = json!({"model": "m", "prompt": vec!["a"; 17], "n": 128});
        assert_eq!(read_json(body).unwrap_err().param.as_deref(), Some("prompt"));
    }
}
