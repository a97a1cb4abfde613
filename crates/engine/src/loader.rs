//! The loader thread: reads and verifies variants while the step thread runs others.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};

use deltamux_delta::Artifact;
use deltamux_kernels::Threads;
use deltamux_model::{Backend, Checkpoint, CpuBackend, LoadOptions, Precision, VariantWeights};

use crate::core::Command;
use crate::registry::{BaseModel, Entry};
use crate::scheduler::ModelKey;

/// What a lease keeps in memory.
pub(crate) enum Weights {
    /// A variant's difference to the base.
    Variant(Arc<VariantWeights>),
    /// A full model of its own (swap mode).
    Full(Mutex<Box<dyn Backend>>),
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Variant(_) => "Variant",
            Self::Full(_) => "Full",
        })
    }
}

/// Reads what an entry stands for.
pub(crate) trait Source: Send + 'static {
    /// The weights, or why they are refused, in one line.
    fn load(&mut self, entry: &Entry) -> Result<Weights, String>;
}

/// Starts the loader thread: it answers each entry with [`Command::Loaded`] and ends when `jobs` is closed.
pub(crate) fn spawn(
    mut source: Box<dyn Source>,
    jobs: Receiver<Arc<Entry>>,
    answers: Sender<Command>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name("loader".to_owned()).spawn(move || {
        for entry in jobs {
            let result = catch_unwind(AssertUnwindSafe(|| source.load(&entry)))
                .unwrap_or_else(|panic| Err(format!("reading it failed: {}", panic_text(&*panic))));
            if answers.send(Command::Loaded { key: entry.key, result }).is_err() {
                break;
            }
        }
    })
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

/// Artifacts of one base.
pub(crate) struct ArtifactSource {
    /// The base.
    pub(crate) base: Arc<BaseModel>,
    /// Its entry, which learns the base's digest when the first variant needs it.
    pub(crate) base_entry: Arc<Entry>,
}

impl Source for ArtifactSource {
    fn load(&mut self, entry: &Entry) -> Result<Weights, String> {
        let digest = base_digest(&self.base_entry, &self.base.checkpoint);
        let artifact = Artifact::open(&entry.root).map_err(|e| e.to_string())?;
        if let Some(registered) = entry.generation.get().filter(|&g| g != artifact.generation()) {
            return Err(format!(
                "{}: has changed on disk since it was registered (generation {}, now {}); register it again",
                entry.root.display(),
                registered,
                artifact.generation()
            ));
        }
        let weights = artifact.load(&self.base.config, &digest).map_err(|e| e.to_string())?;
        Ok(Weights::Variant(Arc::new(weights)))
    }
}

/// The base's digest, computed once, of the files that its weights were read from: whatever has replaced them on disk
/// since is not what answers.
fn base_digest(base: &Entry, checkpoint: &Checkpoint) -> String {
    base.generation.get_or_init(|| checkpoint.digest()).clone()
}

/// Full checkpoints, each a model of its own.
pub(crate) struct CheckpointSource {
    /// Kernel threads, shared by all models.
    pub(crate) threads: Threads,
    /// How matrices are kept.
    pub(crate) precision: Precision,
}

impl Source for CheckpointSource {
    fn load(&mut self, entry: &Entry) -> Result<Weights, String> {
        let backend = load_checkpoint(entry.root.clone(), &self.threads, self.precision)?;
        Ok(Weights::Full(Mutex::new(Box::new(backend))))
    }
}

/// Reads and verifies one full model.
pub(crate) fn load_checkpoint(root: PathBuf, threads: &Threads, precision: Precision) -> Result<CpuBackend, String> {
    let checkpoint = Checkpoint::open(&root).map_err(|e| e.to_string())?;
    let options = LoadOptions {
        precision,
        check_finite: true,
        ..LoadOptions::default()
    };
    CpuBackend::load_with(&checkpoint, threads.clone(), &options).map_err(|e| e.to_string())
}

/// A key for the next generation.
#[derive(Debug, Default)]
pub(crate) struct Keys(std::sync::atomic::AtomicU64);

impl Keys {
    /// A key that was never given before; the first one is [`crate::registry::BASE`].
    pub(crate) fn next(&self) -> ModelKey {
        ModelKey(self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }
}
