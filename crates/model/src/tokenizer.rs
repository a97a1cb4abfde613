//! Text to token ids and back.

use std::path::{Path, PathBuf};

/// Why a tokenizer was refused or a text could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// `tokenizer.json` is missing or invalid.
    #[error("{path}: {what}", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The text cannot be encoded or the ids cannot be decoded.
    #[error("tokenizer: {0}")]
    Text(String),
}

/// A model's tokenizer.
#[derive(Debug, Clone)]
pub struct Tokenizer {}

impl Tokenizer {
    /// Reads `tokenizer.json` in `dir`.
    pub fn from_dir(_dir: &Path) -> Result<Self, TokenizerError> {
        todo!()
    }

    /// Token ids of `text`; special tokens written in the text become their ids; `add_special_tokens` runs the
    /// post-processor (BOS of Llama 3), which templated prompts must not.
    pub fn encode(&self, _text: &str, _add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        todo!()
    }

    /// Text of `ids`.
    pub fn decode(&self, _ids: &[u32], _skip_special_tokens: bool) -> Result<String, TokenizerError> {
        todo!()
    }

    /// The token's own text (for logprobs), e.g. `"Ġthe"` decoded to `" the"`.
    pub fn token_text(&self, _id: u32) -> String {
        todo!()
    }

    /// The id of a token written literally, e.g. `<|im_end|>`.
    pub fn token_to_id(&self, _token: &str) -> Option<u32> {
        todo!()
    }

    /// Rows that the vocabulary needs, added tokens included.
    pub fn vocab_size(&self) -> usize {
        todo!()
    }

    /// A decoder of one growing sequence. Special tokens are skipped.
    pub fn decode_stream(&self) -> DecodeStream {
        todo!()
    }
}

/// Incremental detokenisation: holds incomplete UTF-8 back, so that pieces concatenate to the whole text. Owned, so it
/// can live in a request's state.
#[derive(Debug, Clone)]
pub struct DecodeStream {}

impl DecodeStream {
    /// Text that became certain with `id`; empty while bytes of a character are missing.
    pub fn push(&mut self, _id: u32) -> Result<String, TokenizerError> {
        todo!()
    }

    /// Text still held back at the end (replacement characters for bytes that never completed).
    pub fn finish(&mut self) -> Result<String, TokenizerError> {
        todo!()
    }
}
