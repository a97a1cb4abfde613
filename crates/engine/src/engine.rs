//! The handle on a running engine.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use deltamux_model::CacheUse;

use crate::core::Command;
use crate::loader::{ArtifactSource, Keys, Source as _, load_checkpoint};
use crate::registry::{BASE, BaseModel, Entry};
use crate::request::{
    EngineConfig, EngineError, EngineStats, Mode, ModelText, Request, SubmitError, VariantInfo, VariantState,
};
use crate::sampler;
use crate::sequence::Submission;
use crate::shared::Shared;
use crate::start;
use crate::stream::RequestStream;
use crate::sync::{lock, read, write};

/// A handle on a running engine. When the last one is dropped, the engine stops.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

/// What all handles of one engine share.
#[derive(Debug)]
pub(crate) struct Inner {
    /// Shared with the step thread.
    pub(crate) shared: Arc<Shared>,
    /// To the step thread.
    pub(crate) commands: Sender<Command>,
    /// The step thread, until somebody waits for it.
    pub(crate) step_thread: Mutex<Option<JoinHandle<()>>>,
    /// What variants are held against.
    pub(crate) base: Arc<BaseModel>,
    /// Keys of generations.
    pub(crate) keys: Keys,
    /// Bytes for resident variants.
    pub(crate) variant_bytes: u64,
    /// Seeds for requests that give none.
    pub(crate) seeds: AtomicU64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // If the step thread has stopped, there is nothing left to stop.
        let _ = self.commands.send(Command::Shutdown { grace: Duration::ZERO });
    }
}

impl Engine {
    /// Loads the base, registers every variant of the variants folder and starts the step thread. A variant that
    /// cannot be read is registered as refused, with the reason; it does not keep the engine from starting.
    ///
    /// # Errors
    /// The base cannot be served, the folder cannot be read, or limits contradict each other.
    pub fn start(config: EngineConfig) -> Result<Self, EngineError> {
        Self::start_with(config, &|_, _| {})
    }

    /// As [`Engine::start`]; `progress` is called with the bytes of the base's weights that have been read, and all that
    /// will be.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_with(config: EngineConfig, progress: &dyn Fn(u64, u64)) -> Result<Self, EngineError> {
        start::start(config, progress).map(Self::from)
    }

    /// What became of the cache of the base's packed weights when the engine started.
    pub fn weight_cache(&self) -> CacheUse {
        self.inner.base.weight_cache
    }

    /// Why no request is answered any more: the engine has failed or is stopping; `None` while it answers.
    pub fn failure(&self) -> Option<SubmitError> {
        lock(&self.inner.shared.closed).clone()
    }

    /// Queues a request. Tokens are ids of the variant's own tokenizer (see [`Engine::text`]).
    ///
    /// # Errors
    /// The model is unknown or refused, a parameter is out of range, the queue is full, or the engine is stopping.
    pub fn submit(&self, request: Request) -> Result<RequestStream, SubmitError> {
        let shared = &self.inner.shared;
        if let Some(why) = lock(&shared.closed).clone() {
            return Err(why);
        }
        // Held until the command is sent: a generation is never retired between look-up and submission.
        let registry = read(&shared.registry);
        let entry = registry
            .find(&request.model)
            .ok_or_else(|| SubmitError::UnknownModel(request.model.clone()))?;
        if let VariantState::Refused { why } = &*lock(&entry.state) {
            return Err(SubmitError::VariantRefused {
                name: entry.name.clone(),
                why: why.clone(),
            });
        }
        let text = entry
            .text
            .clone()
            .ok_or_else(|| SubmitError::Internal("a variant without text".to_owned()))?;
        let max_tokens = self.check(&request, entry)?;
        shared.enter_queue()?;
        let (events, receiver) = tokio::sync::mpsc::unbounded_channel();
        let submission = Box::new(Submission {
            entry: entry.clone(),
            text,
            request,
            max_tokens,
            seed: self.seed(),
            submitted: Instant::now(),
            events,
        });
        if self.inner.commands.send(Command::Submit(submission)).is_err() {
            shared.leave_queue();
            return Err(lock(&shared.closed).clone().unwrap_or(SubmitError::ShuttingDown));
        }
        Ok(RequestStream::new(receiver))
    }

    /// Refuses what cannot be served; returns the clamped number of completion tokens.
    fn check(&self, request: &Request, entry: &Entry) -> Result<usize, SubmitError> {
        let invalid = |field, what: String| Err(SubmitError::Invalid { field, what });
        let (tokens, limit) = (request.prompt.len(), self.inner.shared.max_model_len);
        if tokens == 0 {
            return invalid("prompt", "has no tokens; at least one is needed".to_owned());
        }
        if tokens >= limit {
            return Err(SubmitError::PromptTooLong { tokens, limit });
        }
        if let Some(id) = request.prompt.iter().find(|&&id| id as usize >= entry.vocab_size) {
            let vocabulary = entry.vocab_size;
            return invalid(
                "prompt",
                format!("token id {id} is outside of the vocabulary of {vocabulary} tokens"),
            );
        }
        if request.max_tokens == Some(0) {
            return invalid("max_tokens", "0 is out of range; it must be at least 1".to_owned());
        }
        sampler::check(&request.sampling)?;
        Ok(request.max_tokens.unwrap_or(usize::MAX).min(limit - tokens))
    }

    /// A seed that nobody can guess from the last one; it needs no entropy of its own beyond the process's.
    fn seed(&self) -> u64 {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(self.inner.seeds.fetch_add(1, Ordering::Relaxed));
        hasher.finish()
    }

    /// Name under which the base answers.
    pub fn base_name(&self) -> &str {
        &self.inner.base.name
    }

    /// The base (first) and every variant, with their states.
    pub fn variants(&self) -> Vec<VariantInfo> {
        read(&self.inner.shared.registry)
            .entries()
            .iter()
            .map(|entry| entry.info())
            .collect()
    }

    /// Tokenizer, chat template and generation defaults of the base (its name) or a variant; `None` when unknown or
    /// refused.
    pub fn text(&self, model: &str) -> Option<Arc<ModelText>> {
        read(&self.inner.shared.registry).find(model)?.text.clone()
    }

    /// Longest sequence (prompt and completion) that this engine serves.
    pub fn max_model_len(&self) -> usize {
        self.inner.shared.max_model_len
    }

    /// Registers an artifact directory at run time (or replaces a name in place: a new generation). It is read and
    /// verified in full first, so that a damaged one changes nothing; requests that were submitted before are still
    /// answered by what the name stood for then. Blocks: call it from a blocking context.
    ///
    /// # Errors
    /// The artifact is damaged, made for another base, or too large for the variants' memory.
    pub fn register(&self, name: &str, artifact: PathBuf) -> Result<VariantInfo, EngineError> {
        let inner = &self.inner;
        let entry = inner.base.open_variant(inner.keys.next(), name, &artifact)?;
        let refused = |why: String| EngineError::Variant {
            name: name.to_owned(),
            why,
        };
        if let Some(why) = start::too_large(entry.bytes, inner.variant_bytes) {
            return Err(refused(why));
        }
        self.verify(&entry).map_err(refused)?;
        let entry = Arc::new(entry);
        let mut registry = write(&inner.shared.registry);
        // A send fails only after the engine has stopped; then nothing is answered anyhow.
        let _ = inner.commands.send(Command::Register(entry.clone()));
        if let Some(old) = registry.insert(entry.clone()) {
            let _ = inner.commands.send(Command::Retire(old.key));
        }
        drop(registry);
        Ok(entry.info())
    }

    fn verify(&self, entry: &Entry) -> Result<(), String> {
        let inner = &self.inner;
        match inner.base.mode {
            Mode::Delta => {
                let base_entry = read(&inner.shared.registry).entries()[BASE.0 as usize].clone();
                let base = inner.base.clone();
                ArtifactSource { base, base_entry }.load(entry).map(drop)
            }
            Mode::Swap => {
                let threads = deltamux_kernels::Threads::new(1);
                load_checkpoint(entry.root.clone(), &threads, inner.base.precision).map(drop)
            }
        }
    }

    /// Forgets a variant: nobody can ask for it any more, and what was asked before is still answered. Gives back what
    /// it was, or `None` when the name is unknown or the base's.
    pub fn unregister(&self, name: &str) -> Option<VariantInfo> {
        let mut registry = write(&self.inner.shared.registry);
        let old = registry.remove(name)?;
        let _ = self.inner.commands.send(Command::Retire(old.key));
        Some(old.info())
    }

    /// Counters and gauges, as of the last step.
    pub fn stats(&self) -> EngineStats {
        lock(&self.inner.shared.stats).clone()
    }

    /// Stops admitting, lets running requests finish for at most `grace`, then stops the step thread and waits for it.
    /// Blocks: call it from a blocking context.
    pub fn shutdown(&self, grace: Duration) {
        lock(&self.inner.shared.closed).get_or_insert(SubmitError::ShuttingDown);
        let _ = self.inner.commands.send(Command::Shutdown { grace });
        let thread = lock(&self.inner.step_thread).take();
        if let Some(thread) = thread {
            // The step thread catches its own panics.
            let _ = thread.join();
        }
    }
}

impl From<Inner> for Engine {
    fn from(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }
}
