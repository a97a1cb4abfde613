//! What an event of an OpenAI stream says: tokens, the end, usage, or an error.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::sse::SseEvent;
use crate::bundle::ChunkKind;

/// Token counts as the server gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: Option<u32>,
    /// Of the completion.
    pub completion_tokens: Option<u32>,
    /// Details of the prompt's.
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u32>,
}

impl Usage {
    /// Prompt tokens that the server found in its prefix cache.
    pub fn cached_tokens(&self) -> Option<u32> {
        self.prompt_tokens_details.and_then(|d| d.cached_tokens)
    }
}

/// One event, understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// What it carries.
    pub kind: ChunkKind,
    /// Characters of text in it.
    pub chars: u32,
    /// The answer's text in it, without reasoning.
    pub text: String,
    /// Why the answer ended, if this event says so.
    pub finish_reason: Option<String>,
    /// Token counts, if this event has them.
    pub usage: Option<Usage>,
    /// The server's message, for an error.
    pub error: Option<String>,
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
    object: Option<Value>,
    message: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
    text: Option<String>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<IgnoredAny>>,
}

impl Choice {
    fn carries(&self) -> Option<(ChunkKind, u32)> {
        let length = |text: &Option<String>| text.as_deref().map_or(0, |t| t.chars().count() as u32);
        let delta = self.delta.as_ref();
        let text = length(&self.text) + delta.map_or(0, |d| length(&d.content) + length(&d.refusal));
        let reasoning = delta.map_or(0, |d| length(&d.reasoning_content).max(length(&d.reasoning)));
        if text > 0 {
            // A chunk with both counts as text, and only that is counted.
            Some((ChunkKind::Text, text))
        } else if reasoning > 0 {
            Some((ChunkKind::Reasoning, reasoning))
        } else if delta
            .and_then(|d| d.tool_calls.as_ref())
            .is_some_and(|calls| !calls.is_empty())
        {
            Some((ChunkKind::ToolCall, 0))
        } else {
            self.finish_reason.is_some().then_some((ChunkKind::Finish, 0))
        }
    }
}

impl Choice {
    /// The answer's text: what counts as [`ChunkKind::Text`].
    fn take_text(&mut self) -> String {
        let mut text = self.text.take().unwrap_or_default();
        if let Some(delta) = &mut self.delta {
            let content = delta.content.take().unwrap_or_default();
            if text.is_empty() {
                text = content;
            } else {
                text.push_str(&content);
            }
            text.push_str(delta.refusal.as_deref().unwrap_or_default());
        }
        text
    }
}

/// Understands an event; the error says why it is no part of an OpenAI stream.
pub fn parse(event: &SseEvent) -> Result<Parsed, String> {
    if event.data.trim() == "[DONE]" {
        return Ok(Parsed {
            kind: ChunkKind::Done,
            chars: 0,
            text: String::new(),
            finish_reason: None,
            usage: None,
            error: None,
        });
    }
    let error = |message: String| Parsed {
        kind: ChunkKind::Error,
        chars: 0,
        text: String::new(),
        finish_reason: None,
        usage: None,
        error: Some(message),
    };
    if event.event.as_deref() == Some("error") {
        return Ok(error(
            serde_json::from_str(&event.data).map_or_else(|_| event.data.clone(), |v| message(&v)),
        ));
    }
    let body: Body = serde_json::from_str(&event.data).map_err(|e| format!("an event is no chunk of a stream: {e}"))?;
    if let Some(value) = body.error.filter(|e| !e.is_null()) {
        return Ok(error(message(&value)));
    }
    if body.object.as_ref().and_then(Value::as_str) == Some("error") {
        return Ok(error(
            body.message.as_ref().map_or_else(|| "no message".into(), message),
        ));
    }
    let mut choice = body.choices.into_iter().next();
    let (kind, chars) = choice
        .as_ref()
        .and_then(Choice::carries)
        .unwrap_or((ChunkKind::Empty, 0));
    Ok(Parsed {
        kind,
        chars,
        text: choice.as_mut().map(Choice::take_text).unwrap_or_default(),
        finish_reason: choice.and_then(|c| c.finish_reason),
        usage: body.usage,
        error: None,
    })
}

/// The text of an error object in any of the forms servers use.
pub fn message(value: &Value) -> String {
    let inner = value.get("error").unwrap_or(value);
    let text = inner.get("message").or_else(|| inner.get("detail")).unwrap_or(inner);
    text.as_str().map_or_else(|| text.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(data: &str) -> (ChunkKind, u32) {
        let parsed = parse(&SseEvent {
            event: None,
            data: data.into(),
        })
        .unwrap();
        (parsed.kind, parsed.chars)
    }

    #[test]
    fn a_chunk_is_known_by_what_it_carries() {
        for (data, expected) in [
            (
                r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
                (ChunkKind::Empty, 0),
            ),
            (r#"{"choices":[{"delta":{"content":" "}}]}"#, (ChunkKind::Text, 1)),
            (
                r#"{"choices":[{"delta":{"content":"ö"},"finish_reason":"length"}]}"#,
                (ChunkKind::Text, 1),
            ),
            (
                r#"{"choices":[{"delta":{"content":null,"reasoning_content":"hm"}}]}"#,
                (ChunkKind::Reasoning, 2),
            ),
            (
                r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
                (ChunkKind::ToolCall, 0),
            ),
            (
                r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
                (ChunkKind::Finish, 0),
            ),
            (r#"{"choices":[{"text":"abc","index":0}]}"#, (ChunkKind::Text, 3)),
            (
                r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
                (ChunkKind::Empty, 0),
            ),
            ("[DONE]", (ChunkKind::Done, 0)),
            (r#"{"error":{"message":"boom"}}"#, (ChunkKind::Error, 0)),
            (r#"{"object":"error","message":"boom"}"#, (ChunkKind::Error, 0)),
        ] {
            assert_eq!(kind_of(data), expected, "{data}");
        }
    }

    #[test]
    fn usage_keeps_what_the_server_counted() {
        let data = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,
            "prompt_tokens_details":{"cached_tokens":4}}}"#;
        let usage = parse(&SseEvent {
            event: None,
            data: data.into(),
        })
        .unwrap()
        .usage
        .unwrap();
        assert_eq!(
            (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens()),
            (Some(9), Some(2), Some(4))
        );
    }

    #[test]
    fn an_error_keeps_the_servers_words() {
        for (event, data) in [
            (Some("error"), r#"{"error":{"message":"out of memory"}}"#),
            (Some("error"), "out of memory"),
            (None, r#"{"error":"out of memory"}"#),
            (None, r#"{"error":{"message":"out of memory","code":500}}"#),
        ] {
            let parsed = parse(&SseEvent {
                event: event.map(str::to_owned),
                data: data.into(),
            })
            .unwrap();
            assert_eq!(parsed.error.as_deref(), Some("out of memory"), "{data}");
        }
    }

    #[test]
    fn an_event_that_is_no_chunk_is_refused() {
        assert!(
            parse(&SseEvent {
                event: None,
                data: "hello".into()
            })
            .unwrap_err()
            .contains("no chunk")
        );
    }
}
