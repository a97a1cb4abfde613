//! From token ids to text that may be sent, and to the end of a completion.
//!
//! Text is certain when its characters are complete and no stop string can begin in it any more; what could still
//! become a stop string is held back, so that nothing of one is ever sent.

use deltamux_model::{DecodeStream, TokenizerError};

use crate::request::FinishReason;

/// What ends a completion.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndConditions {
    /// Ids that end it: the model's end-of-sequence ids, unless ignored, and the request's own.
    pub(crate) ids: Vec<u32>,
    /// Strings that end it.
    pub(crate) stop: Vec<String>,
    /// Completion tokens before either may end it.
    pub(crate) min_tokens: usize,
    /// Completion tokens at most.
    pub(crate) max_tokens: usize,
}

/// The text side of one running request.
#[derive(Debug)]
pub(crate) struct Output {
    stream: DecodeStream,
    ends: EndConditions,
    /// Decoded, but not sent: the end of it may be the beginning of a stop string.
    held: String,
    tokens: usize,
}

/// What one token adds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Text that became certain.
    pub(crate) text: String,
    /// Set when the completion ends with this token, with the text that was held back.
    pub(crate) end: Option<(FinishReason, String)>,
}

impl Output {
    /// The state before the first token.
    pub(crate) fn new(stream: DecodeStream, mut ends: EndConditions) -> Self {
        ends.stop.retain(|stop| !stop.is_empty());
        Self {
            stream,
            ends,
            held: String::new(),
            tokens: 0,
        }
    }

    /// Completion tokens so far.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Ids that must not be chosen for the next token: those that would end the completion too early.
    pub(crate) fn forbidden(&self) -> &[u32] {
        if self.tokens < self.ends.min_tokens {
            &self.ends.ids
        } else {
            &[]
        }
    }

    /// Takes the next token.
    pub(crate) fn push(&mut self, id: u32) -> Result<Piece, TokenizerError> {
        self.tokens += 1;
        if self.ends.ids.contains(&id) && self.tokens > self.ends.min_tokens {
            // The ending token's own text is not part of the completion.
            let text = self.rest()?;
            return Ok(self.last(text, FinishReason::Stop));
        }
        let decoded = self.stream.push(id)?;
        self.held.push_str(&decoded);
        if let Some(text) = self.cut_at_stop_string() {
            return Ok(Piece {
                text,
                end: Some((FinishReason::Stop, String::new())),
            });
        }
        if self.tokens >= self.ends.max_tokens {
            let text = self.rest()?;
            return Ok(self.last(text, FinishReason::Length));
        }
        let certain = self.held.len() - self.undecided();
        let undecided = self.held.split_off(certain);
        Ok(Piece {
            text: std::mem::replace(&mut self.held, undecided),
            end: None,
        })
    }

    /// The last piece: `rest` could still hold a stop string that incomplete characters had kept from being seen.
    fn last(&mut self, rest: String, reason: FinishReason) -> Piece {
        self.held = rest;
        let (reason, held) = match self.cut_at_stop_string() {
            Some(text) => (FinishReason::Stop, text),
            None => (reason, std::mem::take(&mut self.held)),
        };
        Piece {
            text: String::new(),
            end: Some((reason, held)),
        }
    }

    /// Everything that is held back, here and in the decoder.
    fn rest(&mut self) -> Result<String, TokenizerError> {
        let tail = self.stream.finish()?;
        self.held.push_str(&tail);
        Ok(std::mem::take(&mut self.held))
    }

    /// The text before the earliest stop string, if one is complete. One that is complete before `min_tokens` is
    /// ordinary text.
    fn cut_at_stop_string(&mut self) -> Option<String> {
        if self.tokens <= self.ends.min_tokens {
            return None;
        }
        let start = self
            .ends
            .stop
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()))
            .min()?;
        self.held.truncate(start);
        Some(std::mem::take(&mut self.held))
    }

    /// Bytes at the end of the held text that may be the beginning of a stop string.
    fn undecided(&self) -> usize {
        let held = self.held.as_bytes();
        let partial = |stop: &String| {
            let stop = stop.as_bytes();
            (1..stop.len().min(held.len() + 1))
                .rev()
                .find(|&n| held.ends_with(&stop[..n]))
                .unwrap_or(0)
        };
        self.ends.stop.iter().map(partial).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltamux_model::Tokenizer;
    use std::path::Path;

    fn tokenizer() -> Tokenizer {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/base");
        Tokenizer::from_dir(&dir).expect("the tiny family has a tokenizer")
    }

    fn ends(stop: &[&str]) -> EndConditions {
        EndConditions {
            ids: vec![2],
            stop: stop.iter().map(|s| (*s).to_owned()).collect(),
            min_tokens: 0,
            max_tokens: 100,
        }
    }

    /// Pushes the tokens of each text in turn, and `end` last; returns the pieces sent and the end.
    fn run(ends: EndConditions, ids: &[u32]) -> (Vec<String>, Option<(FinishReason, String)>) {
        let mut output = Output::new(tokenizer().decode_stream(), ends);
        let mut pieces = Vec::new();
        for &id in ids {
            let piece = output.push(id).expect("decodes");
            pieces.push(piece.text);
            if piece.end.is_some() {
                return (pieces, piece.end);
            }
        }
        (pieces, None)
    }

    /// Ids that spell `text` with one token a byte or character where the vocabulary allows it.
    fn spell(text: &str) -> Vec<u32> {
        text.chars()
            .flat_map(|c| tokenizer().encode(&c.to_string(), false).expect("encodes"))
            .collect()
    }

    #[test]
    fn text_is_sent_at_once_when_nothing_can_stop_it() {
        let (pieces, end) = run(ends(&[]), &spell("abc"));
        assert_eq!((pieces.concat().as_str(), end), ("abc", None));
        assert!(pieces.iter().all(|p| p.len() == 1), "{pieces:?}");
    }

    #[test]
    fn an_end_of_sequence_id_ends_it_without_its_text() {
        let (pieces, end) = run(ends(&[]), &[spell("ab"), vec![2]].concat());
        assert_eq!(pieces, ["a", "b", ""]);
        assert_eq!(end, Some((FinishReason::Stop, String::new())));
    }

    /// github.com/vllm-project/vllm/issues/3574
    #[test]
    fn nothing_of_a_stop_string_that_spans_tokens_is_sent() {
        let (pieces, end) = run(ends(&["xyz"]), &spell("abxyxyzq"));
        assert_eq!(pieces, ["a", "b", "", "", "xy", "", ""]);
        assert_eq!(end, Some((FinishReason::Stop, String::new())));
    }

    #[test]
    fn what_was_held_back_is_sent_when_it_turns_out_to_be_text() {
        let (pieces, end) = run(
            EndConditions {
                max_tokens: 5,
                ..ends(&["xyz", "yq"])
            },
            &spell("axyax"),
        );
        assert_eq!(pieces, ["a", "", "", "xya", ""]);
        assert_eq!(end, Some((FinishReason::Length, "x".to_owned())));
        let (pieces, end) = run(ends(&["xyz"]), &[spell("ax"), vec![2]].concat());
        assert_eq!(pieces, ["a", "", ""]);
        assert_eq!(end, Some((FinishReason::Stop, "x".to_owned())));
    }

    #[test]
    fn the_earliest_stop_string_cuts() {
        let mut output = Output::new(tokenizer().decode_stream(), ends(&["c", "bc"]));
        let ids = spell("abc");
        let texts: Vec<Piece> = ids.iter().map(|&id| output.push(id).expect("decodes")).collect();
        assert_eq!(texts[2].text, "", "b is held back, and c alone would be the later stop");
        assert_eq!(texts.iter().map(|p| p.text.as_str()).collect::<String>(), "a");
        assert!(texts[2].end.is_some());
    }

    #[test]
    fn before_min_tokens_nothing_ends_it() {
        let conditions = EndConditions {
            min_tokens: 3,
            ..ends(&["b"])
        };
        let mut output = Output::new(tokenizer().decode_stream(), conditions.clone());
        assert_eq!(output.forbidden(), [2]);
        for id in spell("abc") {
            output.push(id).expect("decodes");
        }
        assert_eq!(output.forbidden(), [0u32; 0]);
        let (pieces, end) = run(conditions, &spell("abcdb"));
        assert_eq!(pieces.concat(), "abcd");
        assert!(end.is_some());
    }

    #[test]
    fn incomplete_characters_are_held_back_until_the_end() {
        let ids = spell("é");
        let whole = tokenizer().encode("é", false).expect("encodes");
        assert_eq!(ids, whole);
        let (pieces, end) = run(
            EndConditions {
                max_tokens: ids.len(),
                ..ends(&[])
            },
            &ids,
        );
        let text = pieces.concat() + &end.expect("length").1;
        assert_eq!(text, "é");
    }
}
