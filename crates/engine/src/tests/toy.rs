//! A toy model: real enough that its logits depend on every token and position of the sequence, as they lie in the KV
//! pages, and on the variant; small enough for thousands of steps a second.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use deltamux_model::backend::PAGE_TOKENS;
use deltamux_model::{
    Backend, CacheUse, ChatTemplate, Checkpoint, ForwardError, GenerationConfig, LogitRows, ModelConfig, SequenceChunk,
    Tokenizer, VariantWeights,
};

use crate::loader::{Keys, Source, Weights};
use crate::registry::{BASE, BaseModel, Entry};
use crate::request::{EngineConfig, Event, FinishReason, Mode, ModelText, Request, SamplingParams, VariantState};
use crate::start::{Parts, assemble, base_entry};
use crate::sync::lock;
use crate::{Engine, RequestStream, SubmitError};

/// The tiny family's base directory: its tokenizer and configuration, not its weights.
pub(crate) fn tiny_base() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/base")
}

/// What tests steer and watch.
#[derive(Debug, Default)]
pub(crate) struct Controls {
    /// Largest number of sequences that one step has held.
    pub(crate) widest: AtomicUsize,
    /// Distinct variants in one step at most.
    pub(crate) most_variants: AtomicUsize,
    /// While set, the loader waits.
    loader_held: Mutex<bool>,
    loader_free: Condvar,
    /// While set, the step thread waits inside a forward pass.
    steps_held: Mutex<bool>,
    steps_free: Condvar,
    /// A token that makes the backend panic.
    pub(crate) panic_on: Mutex<Option<u32>>,
}

impl Controls {
    fn set(flag: &Mutex<bool>, signal: &Condvar, held: bool) {
        *lock(flag) = held;
        signal.notify_all();
    }

    fn pass(flag: &Mutex<bool>, signal: &Condvar) {
        let mut held = lock(flag);
        while *held {
            held = signal.wait(held).expect("not poisoned");
        }
    }

    pub(crate) fn hold_loader(&self, held: bool) {
        Self::set(&self.loader_held, &self.loader_free, held);
    }

    pub(crate) fn hold_steps(&self, held: bool) {
        Self::set(&self.steps_held, &self.steps_free, held);
    }
}

struct Toy {
    config: ModelConfig,
    /// What a full model mixes in (swap mode).
    own: u64,
    /// Token and position of each slot of each page.
    pages: Vec<[(u32, usize); PAGE_TOKENS]>,
    controls: Arc<Controls>,
}

fn mix(state: u64, value: u64) -> u64 {
    let mixed = (state ^ value.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed ^ (mixed >> 29)
}

fn digest(text: &str) -> u64 {
    text.bytes().fold(17, |state, byte| mix(state, u64::from(byte)))
}

impl Toy {
    fn logits(&self, chunk: &SequenceChunk<'_>, last: usize) -> Vec<f32> {
        let variant = chunk.variant.map_or(0, |v| digest(&v.generation));
        // Every earlier position is read back from its page; a wrong page, slot or order changes the result.
        let state = (0..=last).fold(self.own ^ variant, |state, position| {
            let page = &self.pages[chunk.pages[position / PAGE_TOKENS] as usize];
            let (token, stored) = page[position % PAGE_TOKENS];
            mix(mix(state, u64::from(token)), stored as u64)
        });
        // Ids 0 to 2 are special (2 ends a sequence): rare.
        let vocabulary = self.config.vocab_size as u64;
        (0..vocabulary)
            .map(|id| (mix(state, id) >> 40) as f32 / (1u64 << 24) as f32 * 8.0 - if id < 3 { 0.02 } else { 0.0 })
            .collect()
    }
}

impl Backend for Toy {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn kv_page_bytes(&self) -> usize {
        1024
    }

    fn allocate_kv(&mut self, pages: usize) {
        self.pages = vec![[(u32::MAX, usize::MAX); PAGE_TOKENS]; pages];
    }

    fn copy_kv_page(&mut self, from: u32, to: u32) {
        self.pages[to as usize] = self.pages[from as usize];
    }

    fn weight_bytes(&self) -> usize {
        1000
    }

    fn forward(&mut self, batch: &[SequenceChunk<'_>]) -> Result<Vec<Vec<f32>>, ForwardError> {
        Controls::pass(&self.controls.steps_held, &self.controls.steps_free);
        self.controls.widest.fetch_max(batch.len(), Ordering::Relaxed);
        let mut variants: Vec<&str> = batch
            .iter()
            .map(|c| c.variant.map_or("", |v| v.generation.as_str()))
            .collect();
        variants.sort_unstable();
        variants.dedup();
        self.controls.most_variants.fetch_max(variants.len(), Ordering::Relaxed);
        let panic_on = *lock(&self.controls.panic_on);
        for chunk in batch {
            for (i, &token) in chunk.tokens.iter().enumerate() {
                assert!(Some(token) != panic_on, "the toy panics as it was told");
                let position = chunk.start + i;
                let page = chunk.pages[position / PAGE_TOKENS] as usize;
                self.pages[page][position % PAGE_TOKENS] = (token, position);
            }
        }
        Ok(batch
            .iter()
            .filter(|chunk| chunk.logits == LogitRows::Last)
            .map(|chunk| self.logits(chunk, chunk.start + chunk.tokens.len() - 1))
            .collect())
    }
}

/// Loads what entries say: a name that starts with `damaged` is refused.
struct ToySource {
    mode: Mode,
    config: ModelConfig,
    controls: Arc<Controls>,
}

impl Source for ToySource {
    fn load(&mut self, entry: &Entry) -> Result<Weights, String> {
        Controls::pass(&self.controls.loader_held, &self.controls.loader_free);
        if entry.name.starts_with("damaged") {
            return Err(format!("{}: the digest differs", entry.name));
        }
        Ok(match self.mode {
            Mode::Delta => Weights::Variant(Arc::new(VariantWeights {
                generation: entry.name.clone(),
                ..VariantWeights::default()
            })),
            Mode::Swap => Weights::Full(Mutex::new(Box::new(Toy {
                config: self.config.clone(),
                own: if entry.key == BASE { 0 } else { digest(&entry.name) },
                pages: Vec::new(),
                controls: self.controls.clone(),
            }))),
        })
    }
}

/// A configuration with few pages and small steps.
pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        kv_memory: Some(64 * 1024),
        variant_memory: Some(1_000_000),
        max_batch_tokens: 32,
        max_seqs: 8,
        ..EngineConfig::new(PathBuf::from("toy"))
    }
}

/// An engine over the toy, with variants of `variant_bytes` each.
pub(crate) fn engine(config: EngineConfig, variants: &[&str], variant_bytes: u64) -> (Engine, Arc<Controls>) {
    let dir = tiny_base();
    let model = ModelConfig::from_dir(&dir).expect("configuration");
    let text = Arc::new(ModelText {
        tokenizer: Tokenizer::from_dir(&dir).expect("tokenizer"),
        template: ChatTemplate::from_dir(&dir).expect("template"),
        generation: GenerationConfig::from_dir(&dir, &model).expect("generation defaults"),
    });
    let controls = Arc::new(Controls::default());
    let base = Arc::new(BaseModel {
        name: "base".to_owned(),
        root: dir,
        config: model.clone(),
        text: text.clone(),
        mode: config.mode,
        precision: config.precision,
        weight_cache: CacheUse::Off,
        checkpoint: Checkpoint::open(&tiny_base()).expect("checkpoint"),
    });
    let backend = Box::new(Toy {
        config: model.clone(),
        own: 0,
        pages: Vec::new(),
        controls: controls.clone(),
    });
    let keys = Keys::default();
    let base_entry = Arc::new(base_entry(&base, keys.next(), backend.as_ref()));
    let variants = variants
        .iter()
        .map(|&name| Entry {
            key: keys.next(),
            name: name.to_owned(),
            parent: Some("base".to_owned()),
            root: PathBuf::from(name),
            generation: OnceLock::new(),
            bytes: variant_bytes,
            vocab_size: model.vocab_size,
            text: Some(text.clone()),
            state: Mutex::new(VariantState::Registered),
        })
        .collect();
    let source = Box::new(ToySource {
        mode: config.mode,
        config: model,
        controls: controls.clone(),
    });
    let parts = Parts {
        base,
        base_entry,
        backend,
        source,
        variants,
        keys,
    };
    (assemble(&config, parts, None).expect("starts").into(), controls)
}

/// A greedy request with log-probabilities; the prompt is `length` tokens that depend on `salt`.
pub(crate) fn request(model: &str, salt: u32, length: usize, max_tokens: usize) -> Request {
    Request {
        model: model.to_owned(),
        prompt: (0..length as u32).map(|i| 3 + (salt * 7919 + i * 31) % 1400).collect(),
        max_tokens: Some(max_tokens),
        min_tokens: 0,
        ignore_eos: true,
        stop: Vec::new(),
        stop_token_ids: Vec::new(),
        sampling: SamplingParams {
            logprobs: Some(2),
            ..SamplingParams::default()
        },
    }
}

/// What a request was answered with, comparable bit by bit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) ids: Vec<u32>,
    pub(crate) text: String,
    /// Bits of the log-probabilities, chosen and top, with the ids of the top ones.
    pub(crate) logprobs: Vec<Vec<(u32, u32)>>,
    pub(crate) reason: FinishReason,
}

/// Reads a stream to its end.
pub(crate) fn collect(mut stream: RequestStream) -> Result<Answer, SubmitError> {
    let (mut ids, mut text, mut bits) = (Vec::new(), String::new(), Vec::new());
    while let Some(event) = stream.blocking_next() {
        match event {
            Event::Token {
                id,
                text: piece,
                logprobs,
            } => {
                ids.push(id);
                text.push_str(&piece);
                bits.extend(logprobs.map(|l| {
                    std::iter::once(&l.chosen)
                        .chain(&l.top)
                        .map(|p| (p.id, p.logprob.to_bits()))
                        .collect()
                }));
            }
            Event::Done {
                reason,
                text: rest,
                usage,
                ..
            } => {
                assert_eq!(usage.completion_tokens, ids.len());
                text.push_str(&rest);
                assert!(stream.blocking_next().is_none(), "nothing follows the end");
                return Ok(Answer {
                    ids,
                    text,
                    logprobs: bits,
                    reason,
                });
            }
            Event::Failed(why) => return Err(why),
        }
    }
    panic!("the stream ended without its last event");
}

/// Compares answers without printing all of their numbers.
pub(crate) fn assert_same(found: &[Answer], expected: &[Answer], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.ids, expected.ids, "tokens of request {i}: {what}");
        assert_eq!(
            (&found.text, found.reason),
            (&expected.text, expected.reason),
            "text of request {i}: {what}"
        );
        assert!(
            found.logprobs == expected.logprobs,
            "bits of the log-probabilities of request {i}: {what}"
        );
    }
}

/// Submits all requests at once and reads all answers.
pub(crate) fn answers(engine: &Engine, requests: &[Request]) -> Vec<Answer> {
    let streams: Vec<RequestStream> = requests
        .iter()
        .map(|r| engine.submit(r.clone()).expect("accepted"))
        .collect();
    streams
        .into_iter()
        .map(|stream| collect(stream).expect("answered"))
        .collect()
}

/// Waits until `condition` holds of the engine's figures; the test runner bounds the time.
pub(crate) fn wait_until(engine: &Engine, condition: impl Fn(&crate::EngineStats) -> bool) {
    while !condition(&engine.stats()) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The states of all models by name.
pub(crate) fn states(engine: &Engine) -> HashMap<String, VariantState> {
    engine
        .variants()
        .into_iter()
        .map(|info| (info.name, info.state))
        .collect()
}
