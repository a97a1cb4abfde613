//! The engine's events to JSON, whole or in chunks.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use deltamux_engine::{Event, FinishReason, TokenLogProbs};

use super::types::{CompletionResponse, TextChoice, TextLogProbs, TopLogProbs};
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
        .map(|(index, choice)| TextChoice {
            index,
            text: choice.text,
            logprobs: logprobs.then(|| log_probs(&choice.logprobs, &mut 0)),
            finish_reason: choice.reason,
        })
        .collect();
    Json(response(envelope, choices, Some(Some(usage)))).into_response()
}

fn response(
    envelope: &Envelope,
    choices: Vec<TextChoice>,
    usage: Option<Option<UsageReport>>,
) -> CompletionResponse<'_> {
    CompletionResponse {
        id: &envelope.id,
        object: "text_completion",
        created: envelope.created,
        model: &envelope.model,
        system_fingerprint: envelope.system_fingerprint.as_deref(),
        choices,
        usage,
    }
}

/// The lists for some tokens; `offset` is the characters before them and moves on.
fn log_probs(tokens: &[TokenLogProbs], offset: &mut usize) -> TextLogProbs {
    let mut lists = TextLogProbs::default();
    for token in tokens {
        let mut top: Vec<(String, f32)> = Vec::with_capacity(token.top.len() + 1);
        for alternative in token.top.iter().chain([&token.chosen]) {
            // Different ids may have one text, and the chosen token is mostly among the most likely ones; the first of
            // them is the most likely.
            if !top.iter().any(|(text, _)| *text == alternative.text) {
                top.push((alternative.text.clone(), written(alternative.logprob)));
            }
        }
        lists.tokens.push(token.chosen.text.clone());
        lists.token_logprobs.push(written(token.chosen.logprob));
        lists.top_logprobs.push(TopLogProbs(top));
        lists.text_offset.push(*offset);
        *offset += token.chosen.text.chars().count();
    }
    lists
}

/// Writes the chunks of a streamed answer: one a token, the last of each choice with the reason of its end.
#[derive(Debug)]
pub struct TextChunks {
    envelope: Envelope,
    offsets: Vec<usize>,
    include_usage: bool,
}

impl TextChunks {
    /// For `count` choices.
    pub fn new(envelope: Envelope, count: usize, params: &Params) -> Self {
        Self {
            envelope,
            offsets: vec![0; count],
            include_usage: params.include_usage,
        }
    }

    fn push(&self, choices: Vec<TextChoice>, usage: Option<UsageReport>, out: &mut Frames) {
        out.push(&response(&self.envelope, choices, self.include_usage.then_some(usage)));
    }

    fn push_text(
        &mut self,
        index: usize,
        text: String,
        logprobs: Option<&TokenLogProbs>,
        finish_reason: Option<FinishReason>,
        out: &mut Frames,
    ) {
        let offset = &mut self.offsets[index];
        let choice = TextChoice {
            index,
            text,
            logprobs: logprobs.map(|token| log_probs(std::slice::from_ref(token), offset)),
            finish_reason,
        };
        self.push(vec![choice], None, out);
    }
}

impl Chunks for TextChunks {
    fn event(&mut self, choice: usize, event: Event, out: &mut Frames) {
        match event {
            Event::Token { text, logprobs, .. } => self.push_text(choice, text, logprobs.as_ref(), None, out),
            Event::Done { reason, text, .. } => self.push_text(choice, text, None, Some(reason), out),
            // The stream ends with an error instead of a chunk.
            Event::Failed(_) => {}
        }
    }

    fn usage(&mut self, usage: &UsageReport, out: &mut Frames) {
        self.push(Vec::new(), Some(usage.clone()), out);
    }
}
