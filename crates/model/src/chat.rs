//! Chat templates: Jinja as transformers renders it.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// Why a template was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template does not parse.
    #[error("{path}: chat template: {what}", path = path.display())]
    Invalid {
        /// The file it came from.
        path: PathBuf,
        /// The parser's message.
        what: String,
    },
    /// The template raised an exception (`raise_exception`), or failed on these messages.
    #[error("chat template: {0}")]
    Render(String),
    /// The model has no chat template.
    #[error("the model has no chat template: send a prompt to /v1/completions, or add chat_template.jinja to {0}")]
    Missing(PathBuf),
}

/// A model's chat template with the special tokens it may name.
#[derive(Debug, Clone)]
pub struct ChatTemplate {}

impl ChatTemplate {
    /// Reads `chat_template.jinja`, or the field `chat_template` of `tokenizer_config.json` (a string, or a list with
    /// an entry named `default`), and the special tokens (`bos_token`, `eos_token`, …) of `tokenizer_config.json`.
    /// `Ok(None)` when the model has no template.
    pub fn from_dir(_dir: &Path) -> Result<Option<Self>, TemplateError> {
        todo!()
    }

    /// A template from its text and special tokens.
    pub fn new(_source: &str, _special: &[(String, String)], _origin: &Path) -> Result<Self, TemplateError> {
        todo!()
    }

    /// The prompt text: byte for byte what transformers' `apply_chat_template(tokenize=False)` gives. `kwargs` are
    /// further template variables (`enable_thinking`, …).
    pub fn render(
        &self,
        _messages: &[Value],
        _tools: Option<&[Value]>,
        _add_generation_prompt: bool,
        _kwargs: &serde_json::Map<String, Value>,
    ) -> Result<String, TemplateError> {
        todo!()
    }
}
