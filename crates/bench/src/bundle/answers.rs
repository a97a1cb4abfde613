//! `answers.jsonl`: one line for each task that a model was asked, from which the quality figures are recomputed.

use serde::{Deserialize, Serialize};

/// One task, what was answered, and what that is worth. Its times are in the row of `events.parquet` with the same
/// `point` and `request`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerRecord {
    /// Point, counted from 0.
    pub point: u32,
    /// Task within the point, counted from 0.
    pub request: u32,
    /// Model that was asked.
    pub model: String,
    /// SHA-256 of the file of tasks, hexadecimal.
    pub tasks_sha256: String,
    /// Line of that file, counted from 1.
    pub line: u64,
    /// SHA-256 of the task's messages as compact JSON, hexadecimal.
    pub prompt_sha256: String,
    /// The right answer, as the file has it.
    pub expected: String,
    /// `completed`, or the kind of failure.
    pub outcome: String,
    /// The answer; null when the request failed.
    pub answer: Option<String>,
    /// Whether it is right; null when the request failed.
    #[serde(rename = "match")]
    pub matches: Option<bool>,
    /// Prompt tokens, from the server's usage.
    pub prompt_tokens: Option<u32>,
    /// Completion tokens, from the server's usage.
    pub completion_tokens: Option<u32>,
    /// The comparison with a full fine-tune; null when there was none, or the right answer has no token.
    pub divergence: Option<DivergenceSums>,
}

/// Sums over the tokens of one right answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DivergenceSums {
    /// Tokens compared.
    pub positions: u64,
    /// Kullback-Leibler divergences KL(reference ‖ model), nats.
    pub kl_nats: f64,
    /// Tokens at which both find the same token most likely.
    pub same: u64,
    /// Negative log-likelihoods of the tokens under the model, nats.
    pub loss_nats: f64,
    /// The same under the reference.
    pub reference_loss_nats: f64,
}

/// Why the bytes are no file of answers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct AnswersError {
    /// Line, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// The bytes of a file with these answers, in their order.
pub fn write_answers(records: &[AnswerRecord]) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = Vec::new();
    for record in records {
        serde_json::to_writer(&mut bytes, record)?;
        bytes.push(b'\n');
    }
    Ok(bytes)
}

/// The answers in the bytes of a file.
pub fn read_answers(bytes: &[u8]) -> Result<Vec<AnswerRecord>, AnswersError> {
    let Some(lines) = bytes.strip_suffix(b"\n") else {
        return match bytes {
            [] => Ok(Vec::new()),
            _ => Err(AnswersError {
                line: bytes.split(|b| *b == b'\n').count(),
                what: "does not end".to_owned(),
            }),
        };
    };
    let lines = lines.split(|b| *b == b'\n').enumerate();
    lines
        .map(|(i, line)| {
            serde_json::from_slice(line).map_err(|e| AnswersError {
                line: i + 1,
                what: e.to_string(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(request: u32) -> AnswerRecord {
        AnswerRecord {
            point: 0,
            request,
            model: "sql".into(),
            tasks_sha256: "ab".repeat(32),
            line: u64::from(request) + 1,
            prompt_sha256: "cd".repeat(32),
            expected: "one\ntwo".into(),
            outcome: "completed".into(),
            answer: Some("\u{2028}\"ö\"".into()),
            matches: Some(false),
            prompt_tokens: Some(3),
            completion_tokens: None,
            divergence: Some(DivergenceSums {
                positions: 2,
                kl_nats: 0.125,
                same: 1,
                loss_nats: 1.5,
                reference_loss_nats: 0.75,
            }),
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let records = vec![record(0), record(1)];
        let bytes = write_answers(&records).unwrap();
        assert_eq!(read_answers(&bytes).unwrap(), records);
        assert_eq!(read_answers(b""), Ok(Vec::new()));
    }

    #[test]
    fn a_line_that_is_no_answer_is_named() {
        let bytes = write_answers(&[record(0), record(1)]).unwrap();
        assert_eq!(read_answers(&bytes[..bytes.len() - 1]).unwrap_err().line, 2);
        let text = String::from_utf8(bytes).unwrap();
        let error = read_answers(text.replacen("\"line\":2", "\"row\":2", 1).as_bytes()).unwrap_err();
        assert!(error.line == 2 && error.what.contains("row"), "{error}");
        assert_eq!(read_answers(b"\n").unwrap_err().line, 1);
    }
}
