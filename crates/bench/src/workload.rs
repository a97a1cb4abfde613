//! The workload file: requests with their times, one JSON object a line, as DeltaZip's traces have it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::bundle::SourceFile;
use crate::prompts::Prompt;

/// Why a workload file or a map of its models was refused.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A line that is no request.
    #[error("{path}:{line}: {what}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What was found and what is expected.
        what: String,
    },
    /// No requests.
    #[error("{path}: holds no request", path = .0.display())]
    Empty(PathBuf),
    /// A map of models that cannot be read.
    #[error("the model map `{map}`: {what}; expected FROM=TO,… or a JSON file {{\"from\": \"to\"}}")]
    Map {
        /// The map as it was given.
        map: String,
        /// What is wrong.
        what: String,
    },
}

/// One request of a workload file.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadRequest {
    /// What it asks.
    pub prompt: Prompt,
    /// When it is due, seconds from the start of the trace.
    pub timestamp_s: f64,
    /// The model it names, if it names one.
    pub model: Option<String>,
    /// Completion tokens before the answer may end.
    pub min_tokens: Option<u32>,
    /// Completion tokens at most.
    pub max_tokens: Option<u32>,
    /// Whether the answer goes on past the end-of-sequence token.
    pub ignore_eos: bool,
}

/// A workload file.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Its name and digest.
    pub source: SourceFile,
    /// Its requests, timestamps ascending.
    pub requests: Vec<WorkloadRequest>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default, rename = "id")]
    _id: Option<Value>,
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    timestamp: f64,
    model: Option<String>,
    min_tokens: Option<u32>,
    max_tokens: Option<u32>,
    #[serde(default)]
    ignore_eos: bool,
}

impl Workload {
    /// Reads a file; every line is checked before anything is sent.
    pub fn read(path: &Path) -> Result<Self, WorkloadError> {
        Self::parse(&fs_err::read(path)?, path)
    }

    /// Reads a file's bytes; `path` names it in errors and in bundles.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, WorkloadError> {
        let name = path
            .file_name()
            .map_or_else(|| "workload".into(), |n| n.to_string_lossy().into_owned());
        let source = SourceFile {
            name,
            sha256: hex::encode(Sha256::digest(bytes)),
        };
        let mut requests: Vec<WorkloadRequest> = Vec::new();
        for (i, line) in bytes.split(|b| *b == b'\n').enumerate() {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let last = requests.last().map(|r| r.timestamp_s);
            let request = parse_line(line, last).map_err(|what| WorkloadError::Line {
                path: path.into(),
                line: i + 1,
                what,
            })?;
            requests.push(request);
        }
        if requests.is_empty() {
            return Err(WorkloadError::Empty(path.into()));
        }
        Ok(Self { source, requests })
    }

    /// Renames the models that `map` names.
    pub fn rename(&mut self, map: &HashMap<String, String>) {
        for request in &mut self.requests {
            if let Some(to) = request.model.as_ref().and_then(|from| map.get(from)) {
                request.model = Some(to.clone());
            }
        }
    }
}

fn parse_line(line: &[u8], last: Option<f64>) -> Result<WorkloadRequest, String> {
    let line: Line = serde_json::from_slice(line).map_err(|e| {
        // The position within one line says nothing more than the line's number.
        let text = e.to_string();
        text.rsplit_once(" at line")
            .map_or(text.clone(), |(what, _)| what.to_owned())
    })?;
    let prompt = match (line.prompt, line.messages) {
        (Some(text), None) => Prompt::Text(text),
        (None, Some(messages)) if messages.is_empty() => return Err("`messages` is empty".into()),
        (None, Some(messages)) => Prompt::Messages(messages),
        (Some(_), Some(_)) => return Err("has both `prompt` and `messages`; expected one of them".into()),
        (None, None) => return Err("has neither `prompt` nor `messages`".into()),
    };
    let t = line.timestamp;
    if !t.is_finite() || t < 0.0 {
        return Err(format!("timestamp {t} is no time from the start in seconds"));
    }
    if let Some(last) = last.filter(|last| *last > t) {
        return Err(format!(
            "timestamp {t} is before {last} of the request above; expected ascending timestamps"
        ));
    }
    if let Some((min, max)) = line.min_tokens.zip(line.max_tokens).filter(|(min, max)| min > max) {
        return Err(format!("min_tokens {min} is above max_tokens {max}"));
    }
    if line.max_tokens == Some(0) {
        return Err("max_tokens is 0; expected at least 1".into());
    }
    Ok(WorkloadRequest {
        prompt,
        timestamp_s: t,
        model: line.model,
        min_tokens: line.min_tokens,
        max_tokens: line.max_tokens,
        ignore_eos: line.ignore_eos,
    })
}

/// Reads a map of models: `FROM=TO,FROM=TO` or the path of a JSON file `{"from": "to"}`.
pub fn model_map(text: &str) -> Result<HashMap<String, String>, WorkloadError> {
    let refused = |what: String| WorkloadError::Map { map: text.into(), what };
    if text.ends_with(".json") {
        return serde_json::from_slice(&fs_err::read(text)?).map_err(|e| refused(e.to_string()));
    }
    let mut map = HashMap::new();
    for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
        let (from, to) = pair
            .split_once('=')
            .ok_or_else(|| refused(format!("`{pair}` has no `=`")))?;
        if map.insert(from.trim().to_owned(), to.trim().to_owned()).is_some() {
            return Err(refused(format!("`{}` is there twice", from.trim())));
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Workload, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.jsonl");
        fs_err::write(&path, text).unwrap();
        Workload::read(&path).map_err(|e| e.to_string().replace(&*path.to_string_lossy(), "trace.jsonl"))
    }

    const GOOD: &str = concat!(
        r#"{"id": 0, "prompt": "one", "timestamp": 0.5, "model": "delta-9", "min_tokens": 3, "max_tokens": 3, "ignore_eos": true}"#,
        "\n\n",
        r#"{"messages": [{"role": "user", "content": "two"}], "timestamp": 0.5}"#,
    );

    #[test]
    fn a_trace_in_deltazips_form_is_read() {
        let mut workload = read(GOOD).unwrap();
        assert_eq!(workload.requests.len(), 2);
        assert_eq!(workload.source.name, "trace.jsonl");
        let first = &workload.requests[0];
        assert_eq!(
            (first.timestamp_s, first.min_tokens, first.max_tokens),
            (0.5, Some(3), Some(3))
        );
        assert!(first.ignore_eos && !workload.requests[1].ignore_eos);
        workload.rename(&model_map("delta-9=sql, delta-1=x").unwrap());
        assert_eq!(workload.requests[0].model.as_deref(), Some("sql"));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, expected) in [
            (
                r#"{"prompt": "a", "timestamp": 0, "temprature": 1}"#,
                "trace.jsonl:1: unknown field `temprature`",
            ),
            (r#"{"prompt": "a"}"#, "trace.jsonl:1: missing field `timestamp`"),
            (
                r#"{"timestamp": 0}"#,
                "trace.jsonl:1: has neither `prompt` nor `messages`",
            ),
            (
                r#"{"prompt": "a", "messages": [], "timestamp": 0}"#,
                "trace.jsonl:1: has both",
            ),
            (
                r#"{"prompt": "a", "timestamp": -1}"#,
                "trace.jsonl:1: timestamp -1 is no time",
            ),
            (
                r#"{"prompt": "a", "timestamp": 0, "min_tokens": 2, "max_tokens": 1}"#,
                "trace.jsonl:1: min_tokens 2",
            ),
            (
                "{\"prompt\": \"a\", \"timestamp\": 2}\n{\"prompt\": \"b\", \"timestamp\": 1}",
                "trace.jsonl:2: timestamp 1",
            ),
            ("not json", "trace.jsonl:1: expected ident"),
            ("\n", "trace.jsonl: holds no request"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(expected), "{error} does not start with {expected}");
        }
    }

    #[test]
    fn a_map_that_cannot_be_read_is_refused() {
        assert!(model_map("a=b,a=c").unwrap_err().to_string().contains("twice"));
        assert!(model_map("a").unwrap_err().to_string().contains("has no `=`"));
    }
}
