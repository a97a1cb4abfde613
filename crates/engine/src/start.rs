//! From a configuration to a running engine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use deltamux_kernels::Threads;
use deltamux_model::{Backend, Checkpoint, CpuBackend, LoadOptions, WeightCache};

use crate::core::{Command, Core};
use crate::engine::Inner;
use crate::executor::Executor;
use crate::loader::{self, ArtifactSource, CheckpointSource, Keys, Source};
use crate::memory::{self, Demands, human};
use crate::registry::{BASE, BaseModel, Entry, Registry, scan};
use crate::request::{EngineConfig, EngineError, EngineStats, Mode, SubmitError, VariantState};
use crate::residency::Residency;
use crate::scheduler::{Limits, ModelKey, Scheduler};
use crate::shared::Shared;
use crate::sync::lock;
use crate::text;

/// A base that has been read, and what reads the variants.
pub(crate) struct Parts {
    /// The base.
    pub(crate) base: Arc<BaseModel>,
    /// Its entry.
    pub(crate) base_entry: Arc<Entry>,
    /// Its arithmetic; in swap mode the first model that is resident.
    pub(crate) backend: Box<dyn Backend>,
    /// What reads the variants.
    pub(crate) source: Box<dyn Source>,
    /// The variants.
    pub(crate) variants: Vec<Entry>,
    /// Keys of further generations.
    pub(crate) keys: Keys,
}

/// See [`crate::Engine::start_with`].
pub(crate) fn start(config: EngineConfig, progress: &dyn Fn(u64, u64)) -> Result<Inner, EngineError> {
    check(&config)?;
    let available = deltamux_model::memory::available();
    let checkpoint = Checkpoint::open(&config.base)?;
    let bytes = CpuBackend::resident_bytes(&checkpoint, config.precision);
    if let Some(limit) = config.memory.filter(|&limit| limit < bytes) {
        return Err(EngineError::Config(format!(
            "--memory is {}, but the base alone takes {}; raise --memory",
            human(limit),
            human(bytes)
        )));
    }
    let text = text::of_directory(&config.base, checkpoint.config())?;
    let threads = Threads::new(config.threads);
    let options = LoadOptions {
        precision: config.precision,
        progress,
        cache: &config.weight_cache,
        check_finite: true,
    };
    let backend = CpuBackend::load_with(&checkpoint, threads.clone(), &options)?;
    let weight_cache = backend.cache_use();
    let backend: Box<dyn Backend> = Box::new(backend);
    let base = Arc::new(BaseModel {
        name: base_name(&config),
        root: config.base.clone(),
        config: checkpoint.config().clone(),
        text,
        mode: config.mode,
        precision: config.precision,
        weight_cache,
        checkpoint,
    });
    let keys = Keys::default();
    let base_entry = Arc::new(base_entry(&base, keys.next(), backend.as_ref()));
    let variants = match &config.variants {
        Some(folder) => open_variants(&base, folder, &keys)?,
        None => Vec::new(),
    };
    let source: Box<dyn Source> = match config.mode {
        Mode::Delta => Box::new(ArtifactSource {
            base: base.clone(),
            base_entry: base_entry.clone(),
        }),
        Mode::Swap => Box::new(CheckpointSource {
            threads,
            precision: config.precision,
        }),
    };
    let parts = Parts {
        base,
        base_entry,
        backend,
        source,
        variants,
        keys,
    };
    assemble(&config, parts, available)
}

/// The base's entry.
pub(crate) fn base_entry(base: &BaseModel, key: ModelKey, backend: &dyn Backend) -> Entry {
    assert_eq!(key, BASE, "the base has the first key");
    Entry {
        key,
        name: base.name.clone(),
        parent: None,
        root: base.root.clone(),
        generation: OnceLock::new(),
        bytes: backend.weight_bytes() as u64,
        vocab_size: base.config.vocab_size,
        text: Some(base.text.clone()),
        state: Mutex::new(VariantState::Resident),
    }
}

/// Registers the variants, divides the memory and starts the threads.
pub(crate) fn assemble(config: &EngineConfig, parts: Parts, available: Option<u64>) -> Result<Inner, EngineError> {
    let Parts {
        base,
        base_entry,
        mut backend,
        source,
        variants,
        keys,
    } = parts;
    let page_bytes = backend.kv_page_bytes() as u64;
    let division = memory::divide(&Demands {
        mode: config.mode,
        memory: config.memory,
        variant_memory: config.variant_memory,
        kv_memory: config.kv_memory,
        max_model_len: config.max_model_len,
        model_len: base.config.max_position_embeddings,
        max_seqs: config.max_seqs,
        base_bytes: base_entry.bytes,
        page_bytes: page_bytes.max(1),
        largest_variant: variants.iter().map(|v| v.bytes).max().unwrap_or(0),
        available,
    })
    .map_err(EngineError::Config)?;
    for variant in &variants {
        if let Some(why) = too_large(variant.bytes, division.variant_bytes) {
            variant.set_state(VariantState::Refused { why });
        }
    }

    let mut registry = Registry::new(base_entry.clone());
    let variants: Vec<Arc<Entry>> = variants.into_iter().map(Arc::new).collect();
    for variant in &variants {
        registry.insert(variant.clone());
    }
    let base_bytes = if config.mode == Mode::Delta {
        base_entry.bytes
    } else {
        0
    };
    let stats = EngineStats {
        kv_pages_total: division.kv_pages,
        kv_page_bytes: backend.kv_page_bytes(),
        base_bytes,
        ..EngineStats::default()
    };
    let shared = Arc::new(Shared::new(
        config.mode,
        division.max_model_len,
        config.max_queue.max(1),
        registry,
        stats,
    ));

    let (commands, inbox) = channel();
    for entry in std::iter::once(&base_entry).chain(&variants) {
        // The receiver is a few lines above: it is alive.
        let _ = commands.send(Command::Register(entry.clone()));
    }
    let (loads, jobs) = channel();
    loader::spawn(source, jobs, commands.clone())?;
    let mut residency = Residency::new(division.variant_bytes);
    let executor = match config.mode {
        Mode::Delta => {
            backend.allocate_kv(division.kv_pages);
            Executor::Shared(backend)
        }
        Mode::Swap => {
            residency.register_resident(BASE, base_entry.bytes, loader::Weights::Full(Mutex::new(backend)));
            Executor::Turns {
                pages: division.kv_pages,
                current: Weak::new(),
            }
        }
    };
    let limits = Limits {
        max_batch_tokens: config.max_batch_tokens,
        max_seqs: config.max_seqs,
        aging: config.aging,
        exclusive: config.mode == Mode::Swap,
    };
    let scheduler = Scheduler::new(limits, division.kv_pages);
    let core = Core::new(shared.clone(), inbox, loads, executor, scheduler, residency);
    let step_thread = spawn_step_thread(core, shared.clone())?;
    Ok(Inner {
        shared,
        commands,
        step_thread: Mutex::new(Some(step_thread)),
        base,
        keys,
        variant_bytes: division.variant_bytes,
        seeds: AtomicU64::new(0),
    })
}

/// Runs the core; a panic (a broken invariant) fails every request instead of leaving its client waiting.
fn spawn_step_thread(mut core: Core, shared: Arc<Shared>) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name("step".to_owned()).spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| core.run()));
        let why = match outcome {
            Ok(()) => SubmitError::ShuttingDown,
            Err(panic) => {
                let text = loader::panic_text(&*panic);
                tracing::error!("the step thread panicked: {text}");
                SubmitError::Internal(format!("the step thread panicked: {text}"))
            }
        };
        lock(&shared.closed).get_or_insert(why.clone());
        core.fail_all(&why);
    })
}

fn check(config: &EngineConfig) -> Result<(), EngineError> {
    for (flag, value) in [
        ("--max-batch-tokens", config.max_batch_tokens),
        ("--max-seqs", config.max_seqs),
    ] {
        if value == 0 {
            return Err(EngineError::Config(format!("{flag} is 0; it must be at least 1")));
        }
    }
    // The Naive baseline reads each checkpoint as it is stored, whenever it is swapped in.
    if config.mode == Mode::Swap && config.weight_cache != WeightCache::Off {
        return Err(EngineError::Config(
            "--weight-cache keeps the base's packed weights, which --mode swap has no single one of; leave it out"
                .to_owned(),
        ));
    }
    Ok(())
}

fn base_name(config: &EngineConfig) -> String {
    let directory = || {
        let path = fs_err::canonicalize(&config.base).unwrap_or_else(|_| config.base.clone());
        path.file_name()
            .map_or_else(|| "base".to_owned(), |name| name.to_string_lossy().into_owned())
    };
    config.base_name.clone().unwrap_or_else(directory)
}

/// Refuses the folders that are easily given by mistake. An empty one is none: variants may be registered later.
fn check_folder(folder: &Path, mode: Mode) -> Result<(), EngineError> {
    let shown = folder.display();
    if folder.join("manifest.json").is_file() || folder.join("config.json").is_file() {
        let parent = folder.parent().unwrap_or(folder).display();
        return Err(EngineError::Config(format!(
            "--variants {shown} is itself a variant: give the folder that holds it, {parent}"
        )));
    }
    let (other, holds, remedy) = match mode {
        Mode::Delta => (
            Mode::Swap,
            "full checkpoints",
            "compress them first, or serve them with --mode swap",
        ),
        Mode::Swap => (
            Mode::Delta,
            "artifacts of `deltamux compress`",
            "serve them without --mode swap",
        ),
    };
    if !scan(folder, other)?.is_empty() {
        return Err(EngineError::Config(format!(
            "--variants {shown} holds {holds}: {remedy}"
        )));
    }
    Ok(())
}

fn open_variants(base: &BaseModel, folder: &Path, keys: &Keys) -> Result<Vec<Entry>, EngineError> {
    let mut entries = Vec::new();
    let found = scan(folder, base.mode)?;
    if found.is_empty() {
        check_folder(folder, base.mode)?;
    }
    for (name, root) in found {
        if name == base.name {
            // In swap mode the base often lies among its fine-tunes; any other directory of its name cannot be asked.
            if fs_err::canonicalize(&root).ok() != fs_err::canonicalize(&base.root).ok() {
                tracing::warn!(
                    "{}: has the base's own name and is not served; rename it",
                    root.display()
                );
            }
            continue;
        }
        let key = keys.next();
        entries.push(base.open_variant(key, &name, &root).unwrap_or_else(|error| {
            let why = match error {
                EngineError::Variant { why, .. } => why,
                other => other.to_string(),
            };
            tracing::warn!("variant `{name}` is refused: {why}");
            base.refused_variant(key, &name, &root, why)
        }));
    }
    Ok(entries)
}

/// Why a variant of `bytes` never fits into the variants' memory, if it does not.
pub(crate) fn too_large(bytes: u64, variant_bytes: u64) -> Option<String> {
    (bytes > variant_bytes).then(|| {
        format!(
            "takes {} in memory, but variants have {}; raise --variant-memory (or --memory)",
            human(bytes),
            human(variant_bytes)
        )
    })
}
