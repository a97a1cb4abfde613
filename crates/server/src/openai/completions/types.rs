//! What is asked and answered.

use deltamux_engine::FinishReason;
use serde::{Serialize, Serializer};

use crate::openai::params::Params;
use crate::openai::usage::UsageReport;

/// Prompts to be continued.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// Who continues.
    pub model: String,
    /// The prompts, each with its path in the request.
    pub prompts: Vec<(String, Prompt)>,
    /// Parameters of generation.
    pub params: Params,
}

impl AsRef<Params> for CompletionRequest {
    fn as_ref(&self) -> &Params {
        &self.params
    }
}

/// A prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text, tokenized as the model's tokenizer does by default.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

/// A whole answer, or (with `usage` as the stream has it) a chunk of one: the two have the same form.
#[derive(Debug, Serialize)]
pub struct CompletionResponse<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub system_fingerprint: Option<&'a str>,
    pub choices: Vec<TextChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<UsageReport>>,
}

/// One choice.
#[derive(Debug, Serialize)]
pub struct TextChoice {
    pub index: usize,
    pub text: String,
    pub logprobs: Option<TextLogProbs>,
    pub finish_reason: Option<FinishReason>,
}

/// Log-probabilities, one entry a token in each list.
#[derive(Debug, Default, Serialize)]
pub struct TextLogProbs {
    pub tokens: Vec<String>,
    pub token_logprobs: Vec<f32>,
    /// Token text → log-probability, the chosen token included.
    pub top_logprobs: Vec<TopLogProbs>,
    /// Characters of the completion before the token.
    pub text_offset: Vec<usize>,
}

/// Tokens' texts with their log-probabilities, an object in JSON. Not a map of values: those hold f64 only, which would
/// write digits that an f32 does not have.
#[derive(Debug, Default)]
pub struct TopLogProbs(pub Vec<(String, f32)>);

impl Serialize for TopLogProbs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(text, logprob)| (text, logprob)))
    }
}
