//! Text to token ids and back.

mod byte_level;
mod stream;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenizers::DecoderWrapper;

use byte_level::ByteLevel;
pub use stream::DecodeStream;

/// More ids than any real vocabulary has: tables by id must not exhaust memory.
const MAX_VOCABULARY: usize = 1 << 22;

/// Why a tokenizer was refused or a text could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
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

/// A model's tokenizer. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tokenizer: tokenizers::Tokenizer,
    /// Bytes of every token, where the decoder joins bytes and nothing else.
    byte_level: Option<ByteLevel>,
    vocab_size: usize,
    /// Bytes of text that one token stands for at most; `None` when a normaliser may shorten texts.
    longest_token: Option<usize>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` in `dir`.
    pub fn from_dir(dir: &Path) -> Result<Self, TokenizerError> {
        let path = dir.join("tokenizer.json");
        if !path.exists() && dir.join("tokenizer.model").exists() {
            return Err(TokenizerError::Invalid {
                path,
                what: "missing, and tokenizer.model is not read: write it with transformers' \
                       AutoTokenizer.from_pretrained(…).save_pretrained(…)"
                    .to_owned(),
            });
        }
        let json = fs_err::read(&path)?;
        Self::from_json(&json, &path)
    }

    /// Reads the text of a `tokenizer.json`; `path` is named in errors.
    pub fn from_json(json: &[u8], path: &Path) -> Result<Self, TokenizerError> {
        let invalid = |what: String| TokenizerError::Invalid {
            path: path.to_path_buf(),
            what,
        };
        // The library panics on JSON that breaks off inside a decoder, so the syntax is checked before it reads the file;
        // should it panic on anything else that a file can hold, that is the file's fault too.
        serde_json::from_slice::<serde::de::IgnoredAny>(json)
            .map_err(|e| invalid(format!("not a valid tokenizer: not JSON: {e}")))?;
        let parsed = std::panic::catch_unwind(|| tokenizers::Tokenizer::from_bytes(json))
            .map_err(|_| invalid("not a valid tokenizer: a part of it has an unexpected form".to_owned()))?;
        let mut tokenizer =
            parsed.map_err(|e| invalid(format!("not a valid tokenizer: {}", one_line(&e.to_string()))))?;
        // The file may carry what its last user set; as in transformers, a call asks for these itself or goes without.
        tokenizer
            .with_truncation(None)
            .map_err(|e| invalid(one_line(&e.to_string())))?;
        tokenizer.with_padding(None);
        let vocab_size = tokenizer
            .get_vocab(true)
            .into_values()
            .max()
            .map_or(0, |highest| highest as usize + 1);
        if vocab_size > MAX_VOCABULARY {
            return Err(invalid(format!(
                "the highest token id is {}: expected less than {MAX_VOCABULARY}",
                vocab_size - 1
            )));
        }
        let longest_token = match tokenizer.get_normalizer() {
            Some(_) => None,
            None => tokenizer.get_vocab(true).keys().map(String::len).max(),
        };
        let byte_level = match tokenizer.get_decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => Some(ByteLevel::new(&tokenizer, vocab_size)),
            _ => None,
        };
        Ok(Self {
            inner: Arc::new(Inner {
                tokenizer,
                byte_level,
                vocab_size,
                longest_token,
            }),
        })
    }

    /// Tokens that `text` has at least, without encoding it: a text far beyond a context is refused before it costs
    /// time and memory.
    pub fn least_tokens(&self, text: &str) -> usize {
        self.inner
            .longest_token
            .map_or(0, |longest| text.len() / longest.max(1))
    }

    /// Token ids of `text`; special tokens written in the text become their ids; `add_special_tokens` runs the
    /// post-processor (BOS of Llama 3), which templated prompts must not.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self
            .inner
            .tokenizer
            .encode_fast(text, add_special_tokens)
            .map_err(text_error)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of `ids`; bytes that are not UTF-8 become U+FFFD, ids that the vocabulary lacks are left out. Spaces are
    /// not "cleaned up" (transformers' `clean_up_tokenization_spaces=False`): a text survives the round trip.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        self.inner
            .tokenizer
            .decode(ids, skip_special_tokens)
            .map_err(text_error)
    }

    /// The token's own text (for logprobs), e.g. `"Ġthe"` decoded to `" the"`; special tokens as they are written;
    /// empty for an id that the vocabulary lacks.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(&self.token_bytes(id)).into_owned()
    }

    /// The token's own bytes: those of part of a character where the token holds no more.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        if let Some(table) = &self.inner.byte_level {
            return table.bytes(id).to_vec();
        }
        let token = self.inner.tokenizer.id_to_token(id).unwrap_or_default();
        if let Some(byte) = fallback_byte(&token) {
            return vec![byte];
        }
        // Decoders may strip the first token of a text, so the token is read as the second of two.
        let once = self.decode(&[id], false).unwrap_or_default();
        let twice = self.decode(&[id, id], false).unwrap_or_default();
        twice.strip_prefix(once.as_str()).unwrap_or(&once).as_bytes().to_vec()
    }

    /// The id of a token written literally, e.g. `<|im_end|>`.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.tokenizer.token_to_id(token)
    }

    /// Whether decoding leaves this token out.
    pub fn is_special(&self, id: u32) -> bool {
        let tokenizer = &self.inner.tokenizer;
        tokenizer
            .id_to_token(id)
            .is_some_and(|token| tokenizer.get_added_vocabulary().is_special_token(&token))
    }

    /// Rows that the vocabulary needs, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab_size
    }

    /// A decoder of one growing sequence. Special tokens are skipped.
    pub fn decode_stream(&self) -> DecodeStream {
        DecodeStream::new(self.clone())
    }
}

/// The byte that a byte-fallback token (`<0xE5>`) stands for.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

fn text_error(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Text(one_line(&error.to_string()))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
