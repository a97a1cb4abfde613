//! The models that can be asked for: names, directories, text sides, states.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use deltamux_delta::Artifact;
use deltamux_model::{CacheUse, Checkpoint, CpuBackend, ModelConfig, Precision};

use crate::request::{EngineError, Mode, ModelText, VariantInfo, VariantState};
use crate::scheduler::ModelKey;
use crate::sync::lock;
use crate::text;

/// The base's key.
pub(crate) const BASE: ModelKey = ModelKey(0);

/// One generation of one name.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Identity; never used twice.
    pub(crate) key: ModelKey,
    /// Name.
    pub(crate) name: String,
    /// The base's name, for variants.
    pub(crate) parent: Option<String>,
    /// Directory.
    pub(crate) root: PathBuf,
    /// Content digest, once known.
    pub(crate) generation: OnceLock<String>,
    /// Bytes it takes in memory when resident.
    pub(crate) bytes: u64,
    /// Rows of its vocabulary.
    pub(crate) vocab_size: usize,
    /// Text side; `None` when it was refused.
    pub(crate) text: Option<Arc<ModelText>>,
    /// State.
    pub(crate) state: Mutex<VariantState>,
}

impl Entry {
    /// What callers see.
    pub(crate) fn info(&self) -> VariantInfo {
        VariantInfo {
            name: self.name.clone(),
            parent: self.parent.clone(),
            root: self.root.clone(),
            generation: self.generation.get().cloned().unwrap_or_default(),
            state: lock(&self.state).clone(),
            bytes: self.bytes,
        }
    }

    /// Moves to another state.
    pub(crate) fn set_state(&self, state: VariantState) {
        *lock(&self.state) = state;
    }
}

/// What a variant is held against.
#[derive(Debug)]
pub(crate) struct BaseModel {
    /// Its name.
    pub(crate) name: String,
    /// Its directory.
    pub(crate) root: PathBuf,
    /// Its configuration.
    pub(crate) config: ModelConfig,
    /// Its text side.
    pub(crate) text: Arc<ModelText>,
    /// How variants are held.
    pub(crate) mode: Mode,
    /// How matrices are kept.
    pub(crate) precision: Precision,
    /// What became of the cache of its packed matrices.
    pub(crate) weight_cache: CacheUse,
    /// Its files, mapped since its weights were read.
    pub(crate) checkpoint: Checkpoint,
}

/// Names to entries; the base first, then the variants by name.
#[derive(Debug)]
pub(crate) struct Registry {
    entries: Vec<Arc<Entry>>,
}

impl Registry {
    /// A registry with the base only.
    pub(crate) fn new(base: Arc<Entry>) -> Self {
        Self { entries: vec![base] }
    }

    /// The entry of a name.
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// All entries, the base first.
    pub(crate) fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// Adds an entry, in the place of one of the same name; returns that one.
    pub(crate) fn insert(&mut self, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        if let Some(old) = self.entries.iter_mut().find(|old| old.name == entry.name) {
            return Some(std::mem::replace(old, entry));
        }
        let at = 1 + self.entries[1..].partition_point(|other| other.name < entry.name);
        self.entries.insert(at, entry);
        None
    }

    /// Takes a variant out. The base stays.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Arc<Entry>> {
        let at = self
            .entries
            .iter()
            .position(|entry| entry.name == name && entry.key != BASE)?;
        Some(self.entries.remove(at))
    }
}

impl BaseModel {
    /// Registers the directory `root` as `name`: reads what is cheap to read (manifest or headers, text files).
    pub(crate) fn open_variant(&self, key: ModelKey, name: &str, root: &Path) -> Result<Entry, EngineError> {
        if name == self.name {
            return Err(EngineError::Variant {
                name: name.to_owned(),
                why: "is the base's own name; give the variant another one".to_owned(),
            });
        }
        let refused = |why: String| EngineError::Variant {
            name: name.to_owned(),
            why,
        };
        let opened = match self.mode {
            Mode::Delta => self.open_artifact(root),
            Mode::Swap => self.open_checkpoint(root),
        }
        .map_err(refused)?;
        Ok(Entry {
            key,
            name: name.to_owned(),
            parent: Some(self.name.clone()),
            root: root.to_path_buf(),
            generation: opened.generation.map_or_else(OnceLock::new, OnceLock::from),
            bytes: opened.bytes,
            vocab_size: opened.vocab_size,
            text: Some(opened.text),
            state: Mutex::new(VariantState::Registered),
        })
    }

    /// An entry that only says why it cannot be asked.
    pub(crate) fn refused_variant(&self, key: ModelKey, name: &str, root: &Path, why: String) -> Entry {
        Entry {
            key,
            name: name.to_owned(),
            parent: Some(self.name.clone()),
            root: root.to_path_buf(),
            generation: OnceLock::new(),
            bytes: 0,
            vocab_size: 0,
            text: None,
            state: Mutex::new(VariantState::Refused { why }),
        }
    }

    fn open_artifact(&self, root: &Path) -> Result<Opened, String> {
        let artifact = Artifact::open(root).map_err(|e| e.to_string())?;
        let text = text::of_artifact(&artifact, self).map_err(|e| e.to_string())?;
        Ok(Opened {
            generation: Some(artifact.generation().to_owned()),
            bytes: artifact.resident_bytes(),
            vocab_size: artifact.manifest().vocab_size.unwrap_or(self.config.vocab_size),
            text,
        })
    }

    fn open_checkpoint(&self, root: &Path) -> Result<Opened, String> {
        let checkpoint = Checkpoint::open(root).map_err(|e| e.to_string())?;
        let (config, base) = (checkpoint.config(), &self.config);
        // All full models share one set of KV pages.
        let (found, expected) = (kv_shape(config), kv_shape(base));
        if found != expected {
            return Err(format!(
                "has {found:?} layers, key/value heads and head width, but the base has {expected:?}; it is no fine-tune of this base"
            ));
        }
        Ok(Opened {
            generation: None,
            bytes: CpuBackend::resident_bytes(&checkpoint, self.precision),
            vocab_size: config.vocab_size,
            text: text::of_directory(root, config).map_err(|e| e.to_string())?,
        })
    }
}

struct Opened {
    generation: Option<String>,
    bytes: u64,
    vocab_size: usize,
    text: Arc<ModelText>,
}

/// Layers, key/value heads and head width: what the KV pages of a model depend on.
fn kv_shape(config: &ModelConfig) -> (usize, usize, usize) {
    (config.num_layers, config.num_kv_heads, config.head_dim)
}

/// The sub-folders of a variants folder that hold a variant, by name: those with a manifest, or in swap mode those with
/// a `config.json`.
pub(crate) fn scan(folder: &Path, mode: Mode) -> std::io::Result<Vec<(String, PathBuf)>> {
    let marker = match mode {
        Mode::Delta => "manifest.json",
        Mode::Swap => "config.json",
    };
    let mut found = Vec::new();
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        // A name that is not Unicode cannot be asked for over the API.
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        if !name.starts_with('.') && path.join(marker).is_file() {
            found.push((name.to_owned(), path));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: u64, name: &str) -> Arc<Entry> {
        Arc::new(Entry {
            key: ModelKey(key),
            name: name.to_owned(),
            parent: None,
            root: PathBuf::new(),
            generation: OnceLock::new(),
            bytes: 0,
            vocab_size: 0,
            text: None,
            state: Mutex::new(VariantState::Registered),
        })
    }

    #[test]
    fn a_name_stands_for_its_newest_generation() {
        let mut registry = Registry::new(entry(0, "m"));
        registry.insert(entry(1, "z"));
        registry.insert(entry(2, "a"));
        assert_eq!(registry.insert(entry(3, "z")).map(|old| old.key), Some(ModelKey(1)));
        let keys: Vec<u64> = registry.entries().iter().map(|e| e.key.0).collect();
        assert_eq!(keys, [0, 2, 3]);
        assert!(registry.remove("m").is_none(), "the base stays");
        assert_eq!(registry.remove("z").map(|old| old.key), Some(ModelKey(3)));
        assert!(registry.find("z").is_none());
    }

    #[test]
    fn only_folders_with_the_mode_s_marker_are_variants() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for (name, file) in [
            ("b", "manifest.json"),
            ("a", "manifest.json"),
            ("full", "config.json"),
            (".x", "manifest.json"),
        ] {
            fs_err::create_dir_all(dir.path().join(name)).expect("created");
            fs_err::write(dir.path().join(name).join(file), "{}").expect("written");
        }
        let names = |mode| {
            scan(dir.path(), mode)
                .expect("read")
                .into_iter()
                .map(|v| v.0)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(Mode::Delta), ["a", "b"]);
        assert_eq!(names(Mode::Swap), ["full"]);
        assert!(scan(&dir.path().join("missing"), Mode::Delta).is_err());
    }
}
