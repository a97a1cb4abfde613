//! What is asked and answered.

use deltamux_engine::FinishReason;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::openai::params::Params;
use crate::openai::usage::UsageReport;

/// A chat to be continued.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// Who answers.
    pub model: String,
    /// Messages as the template sees them: `role`, `content` (a string) and, if given, `name`.
    pub messages: Vec<Value>,
    /// Whether the prompt ends where the assistant begins.
    pub add_generation_prompt: bool,
    /// Further variables of the template.
    pub template_kwargs: Map<String, Value>,
    /// Parameters of generation.
    pub params: Params,
}

impl AsRef<Params> for ChatRequest {
    fn as_ref(&self) -> &Params {
        &self.params
    }
}

/// A whole answer.
#[derive(Debug, Serialize)]
pub struct ChatResponse<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub system_fingerprint: Option<&'a str>,
    pub choices: Vec<ChatChoice>,
    pub usage: UsageReport,
}

/// One choice of a whole answer.
#[derive(Debug, Serialize)]
pub struct ChatChoice {
    pub index: usize,
    pub message: AssistantMessage,
    pub logprobs: Option<ChatLogProbs>,
    pub finish_reason: Option<FinishReason>,
}

/// The assistant's message.
#[derive(Debug, Serialize)]
pub struct AssistantMessage {
    pub role: &'static str,
    pub content: String,
    pub refusal: Option<String>,
}

/// A part of a streamed answer.
#[derive(Debug, Serialize)]
pub struct ChatChunk<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub system_fingerprint: Option<&'a str>,
    pub choices: Vec<ChunkChoice>,
    /// `null` until the last chunk when the usage was asked for, else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<UsageReport>>,
}

/// A choice's part of a chunk.
#[derive(Debug, Serialize)]
pub struct ChunkChoice {
    pub index: usize,
    pub delta: Delta,
    pub logprobs: Option<ChatLogProbs>,
    pub finish_reason: Option<FinishReason>,
}

/// What a chunk adds to the message.
#[derive(Debug, Default, Serialize)]
pub struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// Log-probabilities of a message's tokens.
#[derive(Debug, Serialize)]
pub struct ChatLogProbs {
    pub content: Vec<ChatLogProb>,
    pub refusal: Option<Vec<ChatLogProb>>,
}

/// Log-probabilities at one token.
#[derive(Debug, Serialize)]
pub struct ChatLogProb {
    #[serde(flatten)]
    pub chosen: TokenLogProb,
    pub top_logprobs: Vec<TokenLogProb>,
}

/// A token's log-probability.
#[derive(Debug, Serialize)]
pub struct TokenLogProb {
    pub token: String,
    pub logprob: f32,
    /// UTF-8 of the token; `null` when the token is a part of a character.
    pub bytes: Option<Vec<u8>>,
}
