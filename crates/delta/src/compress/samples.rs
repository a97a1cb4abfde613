//! Calibration texts: JSON lines of texts or conversations, rendered and tokenised as the fine-tune sees them.

use std::path::PathBuf;

use deltamux_model::{ChatTemplate, Tokenizer};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::error::CompressError;
use super::finetuned::Finetuned;

/// The bundled general set, used when the user brings none.
const GENERAL: &str = include_str!("../../data/general.jsonl");

/// Where calibration texts come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CalibrationSource {
    /// The bundled general set.
    General,
    /// A file of JSON lines: `{"text": …}` or `{"messages": […]}`, the latter with an optional `"answer"` that becomes
    /// the assistant's last message.
    File(PathBuf),
}

/// Tokenised texts: every other one is kept for measuring the error only.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    pub calibration: Vec<Vec<u32>>,
    pub heldout: Vec<Vec<u32>>,
    /// SHA-256 of the source.
    pub sha256: String,
}

impl CalibrationSource {
    /// The kind, as manifests name it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::General => "general",
            Self::File(_) => "file",
        }
    }

    /// Reads, renders by the fine-tune's chat template and tokenises; a text is cut to `max_tokens`.
    pub(crate) fn tokenise(&self, finetuned: &Finetuned, max_tokens: usize) -> Result<Samples, CompressError> {
        let (text, path) = match self {
            Self::General => (GENERAL.to_string(), PathBuf::from("the bundled calibration set")),
            Self::File(path) => {
                let bytes = fs_err::read(path)?;
                let text = String::from_utf8(bytes).map_err(|e| CompressError::Calibration {
                    path: path.clone(),
                    what: format!(
                        "not UTF-8 at byte {}; expected JSON lines",
                        e.utf8_error().valid_up_to()
                    ),
                })?;
                (text, path.clone())
            }
        };
        let tokenizer = Tokenizer::from_dir(finetuned.dir_of("tokenizer.json"))?;
        let mut template = None;
        let mut samples = Samples {
            calibration: Vec::new(),
            heldout: Vec::new(),
            sha256: hex::encode(Sha256::digest(text.as_bytes())),
        };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        for (i, (number, line)) in lines.enumerate() {
            let invalid = |what: String| CompressError::Calibration {
                path: path.clone(),
                what: format!("line {}: {what}", number + 1),
            };
            let sample = parse(line).map_err(&invalid)?;
            let mut tokens = match sample {
                Sample::Text(text) => tokenizer.encode(&text, true)?,
                Sample::Messages(messages) => {
                    if template.is_none() {
                        template = Some(chat_template(finetuned)?);
                    }
                    let rendered = match &template {
                        Some(template) => template
                            .render(&messages, None, false, &serde_json::Map::new())
                            .map_err(|e| invalid(e.to_string()))?,
                        None => String::new(),
                    };
                    tokenizer.encode(&rendered, false)?
                }
            };
            tokens.truncate(max_tokens);
            if tokens.is_empty() {
                return Err(invalid("the text has no tokens".to_string()));
            }
            if i % 2 == 0 {
                samples.calibration.push(tokens);
            } else {
                samples.heldout.push(tokens);
            }
        }
        if samples.calibration.is_empty() {
            return Err(CompressError::Calibration {
                path,
                what: "has no texts; expected JSON lines of {\"text\": …} or {\"messages\": […]}, some hundred of the fine-tune's own task are best"
                    .to_string(),
            });
        }
        Ok(samples)
    }
}

/// The fine-tune's own template; an adapter may leave it to its base.
fn chat_template(finetuned: &Finetuned) -> Result<ChatTemplate, CompressError> {
    let own = ChatTemplate::from_dir(finetuned.dir())?;
    let template = match own {
        Some(own) => Some(own),
        None => match ChatTemplate::from_files(&|file| finetuned.dir_of(file).join(file))? {
            Some(mixed) => Some(mixed),
            None => ChatTemplate::from_dir(finetuned.base_dir())?,
        },
    };
    Ok(template.ok_or_else(|| deltamux_model::TemplateError::Missing(finetuned.dir().to_path_buf()))?)
}

#[derive(Debug, PartialEq)]
enum Sample {
    Text(String),
    Messages(Vec<Value>),
}

fn parse(line: &str) -> Result<Sample, String> {
    let value: Value = serde_json::from_str(line).map_err(|e| format!("not JSON: {e}"))?;
    let text = value.get("text");
    let messages = value.get("messages");
    match (text, messages) {
        (Some(Value::String(text)), None) if !text.is_empty() => Ok(Sample::Text(text.clone())),
        (None, Some(Value::Array(messages))) if !messages.is_empty() => {
            let mut messages = messages.clone();
            match value.get("answer") {
                None | Some(Value::Null) => {}
                Some(Value::String(answer)) => {
                    messages.push(serde_json::json!({ "role": "assistant", "content": answer }));
                }
                Some(other) => return Err(format!("`answer` is {other}, expected a string")),
            }
            Ok(Sample::Messages(messages))
        }
        _ => Err("expected a non-empty string `text` or a non-empty list `messages`, and not both".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_becomes_the_last_message() {
        let sample = parse(r#"{"messages":[{"role":"user","content":"2+2"}],"answer":"4"}"#).unwrap();
        let Sample::Messages(messages) = sample else {
            panic!("messages")
        };
        assert_eq!(messages[1], serde_json::json!({"role": "assistant", "content": "4"}));
    }

    #[test]
    fn lines_that_are_neither_text_nor_messages_are_refused() {
        for line in [
            "{}",
            "[]",
            r#"{"text":""}"#,
            r#"{"text":"a","messages":[{}]}"#,
            r#"{"messages":[]}"#,
            "{",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        let error = parse(r#"{"messages":[{"role":"user","content":"x"}],"answer":4}"#).unwrap_err();
        assert_eq!(error, "`answer` is 4, expected a string");
    }

    #[test]
    fn the_bundled_set_parses_and_is_diverse() {
        let samples: Vec<Sample> = GENERAL.lines().map(|l| parse(l).unwrap()).collect();
        assert!(samples.len() >= 100);
        assert!(samples.iter().any(|s| matches!(s, Sample::Text(_))));
    }
}
