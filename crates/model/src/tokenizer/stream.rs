//! Incremental detokenising.

use super::{Tokenizer, TokenizerError};

/// Ids that are held back at most before their text is taken as it is: an incomplete character needs at most three
/// bytes, so a longer wait cannot complete anything.
const MAX_HELD_IDS: usize = 16;

/// Incremental detokenisation: holds incomplete UTF-8 back, so that pieces concatenate to the whole text. Owned, so it
/// can live in a request's state.
///
/// Of a byte-level vocabulary the concatenation equals [`Tokenizer::decode`] for every sequence of ids. Of the others
/// (byte fallback) it does unless bytes that are no UTF-8 follow directly on bytes that are: decoding the whole would
/// then take back characters that were already certain.
#[derive(Debug, Clone)]
pub struct DecodeStream {
    tokenizer: Tokenizer,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// Byte-level: bytes of an incomplete character, at most three.
    Bytes(Vec<u8>),
    /// Otherwise: the ids of the last piece, which decide how the next ones are spaced, then those held back.
    Window {
        ids: Vec<u32>,
        /// Ids in front whose text is out.
        given: usize,
    },
}

impl DecodeStream {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        let state = match tokenizer.inner.byte_level {
            Some(_) => State::Bytes(Vec::new()),
            None => State::Window {
                ids: Vec::new(),
                given: 0,
            },
        };
        Self { tokenizer, state }
    }

    /// Text that became certain with `id`; empty while bytes of a character are missing.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        match &mut self.state {
            State::Bytes(held) => {
                if let Some(table) = &self.tokenizer.inner.byte_level {
                    held.extend_from_slice(table.visible_bytes(id));
                }
                Ok(take_certain(held))
            }
            State::Window { ids, .. } => {
                ids.push(id);
                self.next_piece(false)
            }
        }
    }

    /// Text still held back at the end (replacement characters for bytes that never completed).
    pub fn finish(&mut self) -> Result<String, TokenizerError> {
        match &mut self.state {
            State::Bytes(held) => {
                let text = String::from_utf8_lossy(held).into_owned();
                held.clear();
                Ok(text)
            }
            State::Window { .. } => self.next_piece(true),
        }
    }

    /// The text that the held ids add to what is out; empty while it may still change, unless this is the end.
    fn next_piece(&mut self, end: bool) -> Result<String, TokenizerError> {
        let State::Window { ids, given } = &mut self.state else {
            return Ok(String::new());
        };
        let out = self.tokenizer.decode(&ids[..*given], true)?;
        let text = self.tokenizer.decode(ids, true)?;
        let wait = !end && ids.len() - *given <= MAX_HELD_IDS;
        let piece = match text.strip_prefix(out.as_str()) {
            Some("") => return Ok(String::new()),
            Some(piece) if wait && piece.ends_with(char::REPLACEMENT_CHARACTER) => return Ok(String::new()),
            Some(piece) => piece.to_owned(),
            // The new bytes make the run of bytes before them invalid, for now or for good.
            None if wait => return Ok(String::new()),
            None => self.tokenizer.decode(&ids[*given..], true)?,
        };
        ids.drain(..*given);
        *given = ids.len();
        Ok(piece)
    }
}

/// Takes the text of all bytes that no later byte can change.
fn take_certain(held: &mut Vec<u8>) -> String {
    let incomplete = match held.utf8_chunks().last() {
        // A chunk's invalid bytes are incomplete rather than wrong when they are the beginning of some character.
        Some(chunk) if is_beginning_of_character(chunk.invalid()) => chunk.invalid().len(),
        _ => 0,
    };
    let certain = held.len() - incomplete;
    let text = String::from_utf8_lossy(&held[..certain]).into_owned();
    held.drain(..certain);
    text
}

/// Whether these bytes are a proper beginning of a UTF-8 character.
fn is_beginning_of_character(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds bytes one by one and returns the pieces.
    fn pieces(bytes: &[u8]) -> Vec<String> {
        let mut held = Vec::new();
        let mut pieces: Vec<_> = bytes
            .iter()
            .map(|b| {
                held.push(*b);
                take_certain(&mut held)
            })
            .collect();
        pieces.push(String::from_utf8_lossy(&held).into_owned());
        pieces
    }

    #[test]
    fn bytes_of_a_character_are_held_until_it_is_complete() {
        assert_eq!(pieces("a客".as_bytes()), ["a", "", "", "客", ""]);
        assert_eq!(pieces("😀".as_bytes()), ["", "", "", "😀", ""]);
    }

    #[test]
    fn wrong_bytes_are_given_as_soon_as_they_are_known_to_be_wrong() {
        assert_eq!(pieces(b"\xffa"), ["\u{fffd}", "a", ""]);
        assert_eq!(pieces(b"\xe5a"), ["", "\u{fffd}a", ""]);
        assert_eq!(pieces(b"\xe5\xae"), ["", "", "\u{fffd}"]);
    }

    #[test]
    fn pieces_concatenate_to_the_lossy_text_of_any_bytes() {
        use proptest::prelude::*;
        proptest!(|(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0x80..=0xffu8], 0..64))| {
            prop_assert_eq!(pieces(&bytes).concat(), String::from_utf8_lossy(&bytes));
        });
    }
}
