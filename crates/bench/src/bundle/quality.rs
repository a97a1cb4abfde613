//! Quality in `run.json`: how many answers to tasks with known answers were right, and how near a variant's predictions
//! are to those of the full fine-tune that it stands for.
//!
//! What was not measured is `null` here, with the reason beside it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The figures of the quality profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// Completion tokens that an answer may have at most.
    pub max_tokens: u32,
    /// Files of tasks.
    pub tasks: Vec<TaskFile>,
    /// One for each model and file of tasks that it was asked, in the order of the run's points: score k is of point k.
    pub scores: Vec<Score>,
}

/// A file of tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskFile {
    /// File name without folders.
    pub name: String,
    /// SHA-256 of the whole file, hexadecimal.
    pub sha256: String,
    /// Tasks that were asked: the file's first.
    pub items: u64,
    /// The only model that was asked them; absent when every model was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

impl TaskFile {
    /// Whether a model is asked these tasks.
    pub fn is_for(&self, model: &str) -> bool {
        self.model.as_deref().is_none_or(|only| only == model)
    }
}

/// A model's answers to a file of tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// The model.
    pub model: String,
    /// The file of tasks, by its place in `tasks`, counted from 0.
    pub tasks: u32,
    /// Precision of the base's weights, as the user stated it.
    pub precision: Option<String>,
    /// Tasks that were asked.
    pub items: u64,
    /// Requests that came to their end.
    pub answered: u64,
    /// Answers that were right: equal to the known one but for white space around it.
    pub correct: u64,
    /// Requests that failed: neither right nor wrong, and in no share.
    pub failed: u64,
    /// Answers that the limit of completion tokens ended.
    pub cut: u64,
    /// Right answers over answered requests; null when none was answered.
    pub exact_match: Option<Proportion>,
    /// Why it is null.
    pub exact_match_absent: Option<String>,
    /// Completion tokens of all answers, by the server's usage; null when an answer came without.
    pub completion_tokens: Option<u64>,
    /// From the first request due to the last one's end, s.
    pub duration_s: Option<f64>,
    /// How near the predictions are to a full fine-tune's, by deltamux's own arithmetic; null when they were not
    /// compared.
    pub divergence: Option<Divergence>,
    /// Why it is null.
    pub divergence_absent: Option<String>,
}

/// A share of a number of cases, with its 95 % Wilson interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Proportion {
    /// The share, 0 to 1.
    pub share: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// A model's predictions against those of a full fine-tune, over the tokens of the right answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Divergence {
    /// The full fine-tune.
    pub reference: Reference,
    /// Tasks whose right answer has tokens.
    pub items: u64,
    /// Tokens compared.
    pub positions: u64,
    /// Mean Kullback-Leibler divergence KL(reference ‖ model) of the next token's distribution, nats.
    pub mean_kl_nats: f64,
    /// Share of tokens, 0 to 1, at which both find the same token most likely.
    pub top1_agreement: f64,
    /// Perplexity of the right answers under the model.
    pub perplexity: f64,
    /// The same under the reference.
    pub reference_perplexity: f64,
}

/// A full fine-tune that a variant is compared with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// Name of its directory, or its id on the hub.
    pub name: String,
    /// Digest of its weights.
    pub digest: String,
}
