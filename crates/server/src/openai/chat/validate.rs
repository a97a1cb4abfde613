//! JSON to a [`ChatRequest`], with every refusal naming its field.

use serde_json::{Map, Value, json};

use super::types::ChatRequest;
use crate::errors::ApiError;
use crate::fields::{Fields, describe};
use crate::openai::params::{MAX_LOGPROBS, Params};

const NO_TOOLS: &str = "tool calls are not supported; remove the field";

/// Reads a body.
pub fn read(body: &Map<String, Value>) -> Result<ChatRequest, ApiError> {
    let fields = Fields::body(body);
    let model = fields.required_string("model")?.to_owned();
    refuse_unsupported(&fields)?;
    let mut params = Params::read(&fields)?.with_max_tokens(read_max_tokens(&fields)?)?;
    params.logprobs = read_logprobs(&fields)?;
    Ok(ChatRequest {
        model,
        messages: read_messages(&fields)?,
        add_generation_prompt: fields.boolean("add_generation_prompt")?.unwrap_or(true),
        template_kwargs: fields
            .object("chat_template_kwargs")?
            .map(|kwargs| kwargs.entries().clone())
            .unwrap_or_default(),
        params,
    })
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    for name in ["tools", "functions"] {
        fields.refuse(name, &[json!([])], NO_TOOLS)?;
    }
    for name in ["tool_choice", "function_call"] {
        fields.refuse(name, &[json!("none"), json!("auto")], NO_TOOLS)?;
    }
    fields.refuse("modalities", &[json!(["text"])], "only text is produced")?;
    fields.refuse("audio", &[], "only text is produced")?;
    fields.refuse("web_search_options", &[], "the server searches nothing")?;
    fields.refuse(
        "continue_final_message",
        &[json!(false)],
        "a message cannot be continued; send the rendered prompt to /v1/completions",
    )
}

/// `max_completion_tokens` is the newer name and goes first.
fn read_max_tokens(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let newer = fields.integer("max_completion_tokens", 1..=i64::MAX)?;
    let older = fields.integer("max_tokens", 1..=i64::MAX)?;
    Ok(newer.or(older).map(|tokens| tokens as usize))
}

fn read_logprobs(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=MAX_LOGPROBS)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid_value(
            "top_logprobs",
            "is allowed with `logprobs`: true only",
        )),
    }
}

fn read_messages(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let messages = fields.list("messages")?.ok_or_else(|| ApiError::missing("messages"))?;
    if messages.is_empty() {
        return Err(ApiError::invalid_value("messages", "must have at least one message"));
    }
    messages
        .iter()
        .enumerate()
        .map(|(at, message)| read_message(&Fields::of(message, format!("messages[{at}]"))?))
        .collect()
}

fn read_message(message: &Fields<'_>) -> Result<Value, ApiError> {
    let role = match message.required_string("role")? {
        // OpenAI's newer name of the same role, which no template knows.
        "developer" => "system",
        role @ ("system" | "user" | "assistant") => role,
        "tool" | "function" => return Err(ApiError::unsupported(&message.path("role"), NO_TOOLS)),
        other => {
            let what = format!("must be system, developer, user or assistant, found {other:?}");
            return Err(ApiError::invalid_value(&message.path("role"), what));
        }
    };
    message.refuse("tool_calls", &[json!([])], NO_TOOLS)?;
    message.refuse("function_call", &[], NO_TOOLS)?;
    let mut read = json!({"role": role, "content": read_content(message)?});
    if let Some(name) = message.string("name")? {
        read["name"] = json!(name);
    }
    Ok(read)
}

/// A string, or a list of text parts, which are joined by line breaks; `null` is the empty string.
fn read_content(message: &Fields<'_>) -> Result<String, ApiError> {
    let path = message.path("content");
    let parts = match message.value("content") {
        None => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        Some(other) => {
            return Err(ApiError::invalid_type(
                &path,
                "a string or a list of text parts",
                &describe(other),
            ));
        }
    };
    let texts: Vec<&str> = parts
        .iter()
        .enumerate()
        .map(|(at, part)| {
            let part = Fields::of(part, format!("{path}[{at}]"))?;
            match part.required_string("type")? {
                "text" => part.required_string("text"),
                other => {
                    let what = format!("only parts of type text are supported, found {other:?}");
                    Err(ApiError::unsupported(&part.path("type"), what))
                }
            }
        })
        .collect::<Result<_, _>>()?;
    Ok(texts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::codes;

    fn read_json(body: Value) -> Result<ChatRequest, ApiError> {
        read(body.as_object().unwrap())
    }

    fn with(field: &str, value: Value) -> Value {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        body[field] = value;
        body
    }

    #[test]
    fn content_is_null_a_string_or_a_list_of_text_parts() {
        let request = read_json(json!({"model": "m", "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "c", "name": "d"},
            {"role": "assistant", "content": null},
        ]}))
        .unwrap();
        assert_eq!(
            json!(request.messages),
            json!([
                {"role": "system", "content": "a\nb"},
                {"role": "user", "content": "c", "name": "d"},
                {"role": "assistant", "content": ""},
            ])
        );
    }

    #[test]
    fn wrong_messages_name_the_place() {
        for (messages, param, code) in [
            (json!(null), "messages", codes::MISSING_PARAMETER),
            (json!("hi"), "messages", codes::INVALID_TYPE),
            (json!([]), "messages", codes::INVALID_VALUE),
            (json!(["hi"]), "messages[0]", codes::INVALID_TYPE),
            (json!([{"content": "hi"}]), "messages[0].role", codes::MISSING_PARAMETER),
            (
                json!([{"role": "robot", "content": "hi"}]),
                "messages[0].role",
                codes::INVALID_VALUE,
            ),
            (
                json!([{"role": "tool", "content": "hi"}]),
                "messages[0].role",
                codes::UNSUPPORTED_PARAMETER,
            ),
            (
                json!([{"role": "user", "content": 5}]),
                "messages[0].content",
                codes::INVALID_TYPE,
            ),
            (
                json!([{"role": "user", "content": [5]}]),
                "messages[0].content[0]",
                codes::INVALID_TYPE,
            ),
            (
                json!([{"role": "user", "content": [{"type": "image_url"}]}]),
                "messages[0].content[0].type",
                codes::UNSUPPORTED_PARAMETER,
            ),
            (
                json!([{"role": "user", "content": [{"type": "text"}]}]),
                "messages[0].content[0].text",
                codes::MISSING_PARAMETER,
            ),
        ] {
            let error = read_json(with("messages", messages.clone())).expect_err(&messages.to_string());
            assert_eq!(
                (error.param.as_deref(), error.code),
                (Some(param), code),
                "{messages}: {error}"
            );
        }
    }

    #[test]
    fn fields_whose_meaning_is_not_implemented_are_refused_by_name() {
        for (field, value) in [
            ("tools", json!([{"type": "function"}])),
            ("tool_choice", json!("required")),
            ("functions", json!([{}])),
            ("modalities", json!(["text", "audio"])),
            ("audio", json!({})),
            ("continue_final_message", json!(true)),
        ] {
            let error = read_json(with(field, value)).expect_err(field);
            assert_eq!(
                (error.param.as_deref(), error.code),
                (Some(field), codes::UNSUPPORTED_PARAMETER)
            );
        }
        for (field, value) in [
            ("tools", json!([])),
            ("tools", json!(null)),
            ("tool_choice", json!("none")),
            ("modalities", json!(["text"])),
            ("never_heard_of", json!({"a": 1})),
        ] {
            assert!(read_json(with(field, value)).is_ok(), "{field}");
        }
    }

    #[test]
    fn the_newer_name_of_the_token_limit_goes_first() {
        let mut body = with("max_tokens", json!(5));
        assert_eq!(read_json(body.clone()).unwrap().params.max_tokens, Some(5));
        body["max_completion_tokens"] = json!(7);
        assert_eq!(read_json(body).unwrap().params.max_tokens, Some(7));
        assert_eq!(
            read_json(with("max_tokens", json!(0))).unwrap_err().param.as_deref(),
            Some("max_tokens")
        );
    }

    #[test]
    fn alternatives_need_logprobs() {
        let mut body = with("top_logprobs", json!(3));
        assert_eq!(
            read_json(body.clone()).unwrap_err().param.as_deref(),
            Some("top_logprobs")
        );
        body["logprobs"] = json!(true);
        assert_eq!(read_json(body.clone()).unwrap().params.logprobs, Some(3));
        body["top_logprobs"] = json!(21);
        assert_eq!(read_json(body).unwrap_err().param.as_deref(), Some("top_logprobs"));
        assert_eq!(
            read_json(with("logprobs", json!(true))).unwrap().params.logprobs,
            Some(0)
        );
        assert_eq!(
            read_json(with("logprobs", json!(5))).unwrap_err().param.as_deref(),
            Some("logprobs")
        );
    }
}
