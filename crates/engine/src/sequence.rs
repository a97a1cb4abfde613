//! One request from its submission to its end.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use crate::loader::Weights;
use crate::output::{EndConditions, Output};
use crate::registry::Entry;
use crate::request::{Event, FinishReason, LogProb, ModelText, Request, SubmitError, TokenLogProbs, Usage};
use crate::residency::Lease;
use crate::sampler::{RawLogProbs, Sampler};

/// A checked request on its way to the step thread.
pub(crate) struct Submission {
    /// What answers.
    pub(crate) entry: Arc<Entry>,
    /// Its text side.
    pub(crate) text: Arc<ModelText>,
    /// The request.
    pub(crate) request: Request,
    /// Completion tokens at most, clamped to the context.
    pub(crate) max_tokens: usize,
    /// Seed for a request that gives none.
    pub(crate) seed: u64,
    /// When it came.
    pub(crate) submitted: Instant,
    /// Where its events go.
    pub(crate) events: UnboundedSender<Event>,
}

/// A request that waits or runs.
pub(crate) struct Sequence {
    /// What answers.
    pub(crate) entry: Arc<Entry>,
    /// Keeps it in memory while the request runs.
    pub(crate) lease: Option<Lease<Weights>>,
    /// Prompt and completion so far.
    pub(crate) tokens: Vec<u32>,
    prompt_tokens: usize,
    text: Arc<ModelText>,
    sampler: Sampler,
    output: Output,
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    events: UnboundedSender<Event>,
}

impl Sequence {
    /// The state of a request that was submitted.
    pub(crate) fn new(submission: Submission) -> Self {
        let Submission {
            entry,
            text,
            request,
            max_tokens,
            seed,
            submitted,
            events,
        } = submission;
        let mut ids = request.stop_token_ids;
        if !request.ignore_eos {
            ids.extend(&text.generation.eos_token_ids);
        }
        let ends = EndConditions {
            ids,
            stop: request.stop,
            min_tokens: request.min_tokens,
            max_tokens,
        };
        Self {
            entry,
            lease: None,
            prompt_tokens: request.prompt.len(),
            sampler: Sampler::new(request.sampling, &request.prompt, seed),
            output: Output::new(text.tokenizer.decode_stream(), ends),
            tokens: request.prompt,
            text,
            submitted,
            started: None,
            first_token: None,
            events,
        }
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Whether it has been scheduled before.
    pub(crate) fn has_started(&self) -> bool {
        self.started.is_some()
    }

    /// It is scheduled for the first time.
    pub(crate) fn start(&mut self, now: Instant, lease: Option<Lease<Weights>>) {
        self.started.get_or_insert(now);
        self.lease = lease;
    }

    /// Whether nobody listens any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// Tells that it cannot be completed.
    pub(crate) fn fail(&self, why: SubmitError) {
        // A closed channel is a client that has gone; nothing is owed to it.
        let _ = self.events.send(Event::Failed(why));
    }

    /// Chooses the next token from the logits and sends it. Returns whether the request has ended.
    pub(crate) fn advance(&mut self, logits: &[f32]) -> Result<bool, SubmitError> {
        let position = self.output.tokens();
        let choice = self
            .sampler
            .choose(logits, position, self.output.forbidden())
            .ok_or_else(|| {
                SubmitError::Internal(format!(
                    "the model `{}` gave no finite logit for token {position} of the completion",
                    self.entry.name
                ))
            })?;
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.tokens.push(choice.id);
        let piece = self
            .output
            .push(choice.id)
            .map_err(|e| SubmitError::Internal(e.to_string()))?;
        let _ = self.events.send(Event::Token {
            id: choice.id,
            text: piece.text,
            logprobs: choice.logprobs.map(|raw| self.with_text(choice.id, raw)),
        });
        match piece.end {
            Some((reason, text)) => {
                self.finish(now, reason, text);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn with_text(&self, id: u32, raw: RawLogProbs) -> TokenLogProbs {
        let entry = |id, logprob| LogProb {
            id,
            text: self.text.tokenizer.token_text(id),
            logprob,
        };
        TokenLogProbs {
            chosen: entry(id, raw.chosen),
            top: raw.top.into_iter().map(|(id, logprob)| entry(id, logprob)).collect(),
        }
    }

    fn finish(&self, now: Instant, reason: FinishReason, text: String) {
        let started = self.started.unwrap_or(now);
        let first_token = self.first_token.unwrap_or(now);
        let _ = self.events.send(Event::Done {
            reason,
            text,
            usage: Usage {
                prompt_tokens: self.prompt_tokens,
                cached_tokens: 0,
                completion_tokens: self.output.tokens(),
            },
            queued: started.saturating_duration_since(self.submitted),
            prefill: first_token.saturating_duration_since(started),
            decode: now.saturating_duration_since(first_token),
        });
    }
}
