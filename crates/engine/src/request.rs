//! What callers say to the engine and what it answers.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use deltamux_model::{ChatTemplate, GenerationConfig, Precision, Tokenizer, WeightCache};

/// How variants are held in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One base; variants as compressed differences, batched together.
    Delta,
    /// The Naive baseline: full checkpoints swapped in and out, one variant a batch.
    Swap,
}

/// How an engine is set up.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Directory of the base model.
    pub base: PathBuf,
    /// Folder whose sub-folders are artifacts (or, in swap mode, full checkpoints).
    pub variants: Option<PathBuf>,
    /// Name under which the base answers; default: the base directory's name.
    pub base_name: Option<String>,
    /// Delta or swap.
    pub mode: Mode,
    /// Bytes for everything; the parts below are cut from it when they are not given.
    pub memory: Option<u64>,
    /// Bytes for resident variants.
    pub variant_memory: Option<u64>,
    /// Bytes for KV pages.
    pub kv_memory: Option<u64>,
    /// Tokens in one step at most.
    pub max_batch_tokens: usize,
    /// Running sequences at most.
    pub max_seqs: usize,
    /// Waiting requests at most; beyond it a submission is refused.
    pub max_queue: usize,
    /// Longest sequence; default: the model's.
    pub max_model_len: Option<usize>,
    /// Kernel threads; 0: all cores.
    pub threads: usize,
    /// How the base's matrices (in swap mode every model's) are kept in memory.
    pub precision: Precision,
    /// Where the base's packed matrices are kept for the next start; not in swap mode.
    pub weight_cache: WeightCache,
    /// After this wait a request goes before fairness and before newer requests for variants that are already in
    /// memory, so that it is served within a bound.
    pub aging: Duration,
}

impl EngineConfig {
    /// Defaults for a base directory.
    pub fn new(base: PathBuf) -> Self {
        Self {
            base,
            variants: None,
            base_name: None,
            mode: Mode::Delta,
            memory: None,
            variant_memory: None,
            kv_memory: None,
            max_batch_tokens: 512,
            max_seqs: 256,
            max_queue: 4096,
            max_model_len: None,
            threads: 0,
            precision: Precision::Stored,
            weight_cache: WeightCache::Off,
            aging: Duration::from_secs(2),
        }
    }
}

/// How tokens are chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// Nucleus, in (0, 1].
    pub top_p: f32,
    /// 0 is off.
    pub top_k: u32,
    /// Tokens less likely than this share of the most likely one are dropped; 0 is off.
    pub min_p: f32,
    /// Seed of the request's own random stream; drawn when absent.
    pub seed: Option<u64>,
    /// OpenAI's presence penalty.
    pub presence_penalty: f32,
    /// OpenAI's frequency penalty.
    pub frequency_penalty: f32,
    /// Hugging Face's repetition penalty; 1 is off.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: HashMap<u32, f32>,
    /// Log-probabilities of the chosen token and of this many most likely ones; `None`: not wanted.
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: HashMap::new(),
            logprobs: None,
        }
    }
}

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Base name or variant name.
    pub model: String,
    /// Prompt token ids; at least one.
    pub prompt: Vec<u32>,
    /// Completion tokens at most; clamped to what the context leaves. `None`: all that is left.
    pub max_tokens: Option<usize>,
    /// Completion tokens before an end-of-sequence id or stop string may end it.
    pub min_tokens: usize,
    /// Whether end-of-sequence ids are ordinary tokens (load tests).
    pub ignore_eos: bool,
    /// Strings that end the completion; nothing of them is sent.
    pub stop: Vec<String>,
    /// Further ids that end the completion.
    pub stop_token_ids: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
}

/// A token's log-probability.
#[derive(Debug, Clone, PartialEq)]
pub struct LogProb {
    /// Token id.
    pub id: u32,
    /// The token's text.
    pub text: String,
    /// Natural logarithm of its probability, before temperature and filters.
    pub logprob: f32,
}

/// Log-probabilities at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogProbs {
    /// The chosen token.
    pub chosen: LogProb,
    /// The most likely ones, most likely first.
    pub top: Vec<LogProb>,
}

/// Why a completion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// An end-of-sequence id or stop string.
    Stop,
    /// `max_tokens`, or the end of the context.
    Length,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: usize,
    /// Of the prompt, found in the prefix cache.
    pub cached_tokens: usize,
    /// Of the completion, the end-of-sequence id included when one ended it.
    pub completion_tokens: usize,
}

/// What a request's stream carries.
#[derive(Debug, Clone)]
pub enum Event {
    /// One more token. `text` may be empty (incomplete character, or held back for a stop string).
    Token {
        /// Its id.
        id: u32,
        /// Text that became certain.
        text: String,
        /// Log-probabilities, if wanted.
        logprobs: Option<TokenLogProbs>,
    },
    /// The end. `text` is what was still held back.
    Done {
        /// Why.
        reason: FinishReason,
        /// Last text.
        text: String,
        /// Token counts.
        usage: Usage,
        /// From submission to first scheduling.
        queued: Duration,
        /// From first scheduling to the first token.
        prefill: Duration,
        /// From the first token to the end.
        decode: Duration,
    },
    /// The request cannot be completed (its variant was refused at load, or the engine is stopping).
    Failed(SubmitError),
}

/// Why a request was refused.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum SubmitError {
    /// No such model.
    #[error("the model `{0}` does not exist")]
    UnknownModel(String),
    /// The variant exists but was refused at load.
    #[error("the variant `{name}` cannot be served: {why}")]
    VariantRefused {
        /// Variant.
        name: String,
        /// The refusal.
        why: String,
    },
    /// The prompt leaves no room.
    #[error("this model's maximum context length is {limit} tokens, but the prompt has {tokens}")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Longest sequence.
        limit: usize,
    },
    /// A parameter is out of range.
    #[error("{field}: {what}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What was found and what is allowed.
        what: String,
    },
    /// The queue is full.
    #[error("{waiting} requests are waiting, the queue holds no more; try again later")]
    QueueFull {
        /// Waiting requests.
        waiting: usize,
    },
    /// The engine is stopping.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The engine failed (a broken invariant, never the request's fault).
    #[error("internal error: {0}")]
    Internal(String),
}

/// Why an engine did not start or a variant was not registered.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The base or a full checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] deltamux_model::CheckpointError),
    /// A tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] deltamux_model::TokenizerError),
    /// A chat template.
    #[error(transparent)]
    Template(#[from] deltamux_model::TemplateError),
    /// Limits that contradict each other, naming the flags.
    #[error("{0}")]
    Config(String),
    /// An artifact was refused.
    #[error("variant `{name}`: {why}")]
    Variant {
        /// Variant.
        name: String,
        /// The refusal.
        why: String,
    },
    /// The file system.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Where a variant stands.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum VariantState {
    /// Known, on disk.
    Registered,
    /// Being read and verified.
    Loading,
    /// In memory.
    Resident,
    /// Refused at load, with the reason.
    Refused {
        /// The refusal.
        why: String,
    },
}

/// One model that can be asked for.
#[derive(Debug, Clone, serde::Serialize)]
pub struct VariantInfo {
    /// Name.
    pub name: String,
    /// The base's name, for variants.
    pub parent: Option<String>,
    /// Directory.
    pub root: PathBuf,
    /// Content digest; empty until known.
    pub generation: String,
    /// State.
    #[serde(flatten)]
    pub state: VariantState,
    /// Bytes it takes in memory when resident.
    pub bytes: u64,
}

/// Text side of a model.
#[derive(Debug)]
pub struct ModelText {
    /// Tokenizer.
    pub tokenizer: Tokenizer,
    /// Chat template, if the model has one.
    pub template: Option<ChatTemplate>,
    /// End-of-sequence ids and default sampling.
    pub generation: GenerationConfig,
}

/// Counters and gauges.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct EngineStats {
    /// Sequences in the running batch.
    pub running: usize,
    /// Requests waiting.
    pub waiting: usize,
    /// KV pages in use.
    pub kv_pages_used: usize,
    /// KV pages in all.
    pub kv_pages_total: usize,
    /// Bytes of one KV page.
    pub kv_page_bytes: usize,
    /// Bytes of the base's weights.
    pub base_bytes: u64,
    /// Bytes of resident variants.
    pub variant_bytes: u64,
    /// Steps so far.
    pub steps: u64,
    /// Prompt tokens computed so far.
    pub prompt_tokens: u64,
    /// Tokens generated so far.
    pub generation_tokens: u64,
    /// Requests finished so far.
    pub finished: u64,
    /// Requests cancelled so far.
    pub cancelled: u64,
    /// Requests preempted (and recomputed) so far.
    pub preemptions: u64,
    /// Variant loads so far (swap mode: checkpoint loads).
    pub variant_loads: u64,
    /// Variant evictions so far.
    pub variant_evictions: u64,
}
