//! The engine's events to JSON, whole or in chunks.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use deltamux_engine::{Event, FinishReason, LogProb, TokenLogProbs};

use super::types::{
    AssistantMessage, ChatChoice, ChatChunk, ChatLogProb, ChatLogProbs, ChatResponse, ChunkChoice, Delta, TokenLogProb,
};
use crate::openai::logprob::written;
use crate::openai::lookup::Envelope;
use crate::openai::params::Params;
use crate::openai::sse::{Chunks, Frames};
use crate::openai::usage::UsageReport;
use crate::openai::whole::Choice;

/// A whole answer.
pub fn whole(envelope: &Envelope, choices: Vec<Choice>, usage: UsageReport, logprobs: bool) -> Response {
    let choices = choices
        .into_iter()
        .enumerate()
        .map(|(index, choice)| ChatChoice {
            index,
            message: AssistantMessage {
                role: "assistant",
                content: choice.text,
                refusal: None,
            },
            logprobs: logprobs.then(|| log_probs(&choice.logprobs)),
            finish_reason: choice.reason,
        })
        .collect();
    Json(ChatResponse {
        id: &envelope.id,
        object: "chat.completion",
        created: envelope.created,
        model: &envelope.model,
        system_fingerprint: envelope.system_fingerprint.as_deref(),
        choices,
        usage,
    })
    .into_response()
}

fn log_probs(tokens: &[TokenLogProbs]) -> ChatLogProbs {
    ChatLogProbs {
        content: tokens
            .iter()
            .map(|token| ChatLogProb {
                chosen: log_prob(&token.chosen),
                top_logprobs: token.top.iter().map(log_prob).collect(),
            })
            .collect(),
        refusal: None,
    }
}

fn log_prob(token: &LogProb) -> TokenLogProb {
    TokenLogProb {
        token: token.text.clone(),
        logprob: written(token.logprob),
        bytes: (!token.text.contains(char::REPLACEMENT_CHARACTER)).then(|| token.text.clone().into_bytes()),
    }
}

/// Writes the chunks of a streamed answer: one a token, the first of each choice with the role, the last with the
/// reason of its end.
#[derive(Debug)]
pub struct ChatChunks {
    envelope: Envelope,
    started: Vec<bool>,
    include_usage: bool,
}

impl ChatChunks {
    /// For `count` choices.
    pub fn new(envelope: Envelope, count: usize, params: &Params) -> Self {
        Self {
            envelope,
            started: vec![false; count],
            include_usage: params.include_usage,
        }
    }

    fn push(&self, choices: Vec<ChunkChoice>, usage: Option<UsageReport>, out: &mut Frames) {
        out.push(&ChatChunk {
            id: &self.envelope.id,
            object: "chat.completion.chunk",
            created: self.envelope.created,
            model: &self.envelope.model,
            system_fingerprint: self.envelope.system_fingerprint.as_deref(),
            choices,
            usage: self.include_usage.then_some(usage),
        });
    }

    fn push_delta(
        &self,
        index: usize,
        delta: Delta,
        logprobs: Option<&TokenLogProbs>,
        finish_reason: Option<FinishReason>,
        out: &mut Frames,
    ) {
        let choice = ChunkChoice {
            index,
            delta,
            logprobs: logprobs.map(|token| log_probs(std::slice::from_ref(token))),
            finish_reason,
        };
        self.push(vec![choice], None, out);
    }

    fn push_text(&self, index: usize, text: String, logprobs: Option<&TokenLogProbs>, out: &mut Frames) {
        let delta = Delta {
            role: None,
            content: Some(text),
        };
        self.push_delta(index, delta, logprobs, None, out);
    }
}

impl Chunks for ChatChunks {
    fn event(&mut self, choice: usize, event: Event, out: &mut Frames) {
        if !std::mem::replace(&mut self.started[choice], true) {
            let delta = Delta {
                role: Some("assistant"),
                content: Some(String::new()),
            };
            self.push_delta(choice, delta, None, None, out);
        }
        match event {
            Event::Token { text, logprobs, .. } => self.push_text(choice, text, logprobs.as_ref(), out),
            Event::Done { reason, text, .. } => {
                if !text.is_empty() {
                    self.push_text(choice, text, None, out);
                }
                self.push_delta(choice, Delta::default(), None, Some(reason), out);
            }
            // The stream ends with an error instead of a chunk.
            Event::Failed(_) => {}
        }
    }

    fn usage(&mut self, usage: &UsageReport, out: &mut Frames) {
        self.push(Vec::new(), Some(usage.clone()), out);
    }
}
