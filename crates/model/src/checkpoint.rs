//! Weights as Hugging Face writes them: one or many safetensors files, memory-mapped and checked.

mod files;

pub(crate) use files::shard_names;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use crate::layout::{EMBEDDING, HEAD};
use crate::weights_file::{StoredTensor, WeightsFile, WeightsFileError};
use crate::{DType, ModelConfig, TensorView};

/// Names that an error message lists.
const LISTED: usize = 10;
/// Elements that one task of [`Checkpoint::check_finite`] reads.
const CHECK_ELEMENTS: usize = 1 << 19;
/// Bytes that [`Checkpoint::digest`] reads before it gives their memory back.
const DIGEST_PIECE: usize = 1 << 22;

/// Why a checkpoint was refused.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// `config.json` was refused.
    #[error(transparent)]
    Config(#[from] crate::ConfigError),
    /// The weights cannot be kept as asked for.
    #[error("{0}")]
    Precision(String),
    /// A file is not what it should be.
    #[error("{path}: {what}", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What was found and what is expected.
        what: String,
    },
}

impl From<WeightsFileError> for CheckpointError {
    fn from(error: WeightsFileError) -> Self {
        match error {
            WeightsFileError::Io(error) => Self::Io(error),
            WeightsFileError::Invalid { path, what } => Self::Invalid { path, what },
        }
    }
}

/// An open checkpoint directory.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config: ModelConfig,
    files: Vec<WeightsFile>,
    /// Every stored tensor: its name in the model → file and name there.
    tensors: BTreeMap<String, Location>,
    digest: OnceLock<String>,
}

/// Where a tensor lies. The name in the file differs from the one in the model for a tied head that fills in for the
/// embedding.
#[derive(Debug, Clone)]
struct Location {
    file: usize,
    stored: StoredTensor,
}

impl Checkpoint {
    /// Opens a model directory: reads `config.json`, maps every safetensors file (`model.safetensors`, or the shards
    /// that `model.safetensors.index.json` names) and checks headers, names and shapes against the configuration
    /// (missing tensors are refused by name). Values are checked by [`Checkpoint::check_finite`].
    ///
    /// A tied model that stores only `lm_head.weight` has its embedding filled from that: the tensor is then known as
    /// `model.embed_tokens.weight`. An untied model without `lm_head.weight` is refused. Tensors that the model does
    /// not use (`rotary_emb.inv_freq` of old exports, a head stored beside the embedding it is tied to) are kept but
    /// neither checked nor part of the digest.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let config = ModelConfig::from_dir(dir)?;
        let (files, mut tensors) = files::open(dir)?;
        if config.tie_word_embeddings
            && !tensors.contains_key(EMBEDDING)
            && let Some(head) = tensors.remove(HEAD)
        {
            tensors.insert(EMBEDDING.to_owned(), head);
        }
        let checkpoint = Self {
            dir: dir.to_path_buf(),
            config,
            files,
            tensors,
            digest: OnceLock::new(),
        };
        checkpoint.check_complete()?;
        for (name, shape) in checkpoint.config.tensors() {
            checkpoint.expect(&name, &shape)?;
        }
        Ok(checkpoint)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The weights files.
    pub(crate) fn files(&self) -> &[WeightsFile] {
        &self.files
    }

    /// Names of all stored tensors, sorted; those that the model does not use included.
    pub fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    /// A tensor by name; `None` when there is none, or its type is not bf16, f16 or f32.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let location = self.tensors.get(name)?;
        Some(TensorView {
            dtype: DType::from_name(&location.stored.dtype)?,
            shape: &location.stored.shape,
            bytes: self.files[location.file].bytes(&location.stored),
        })
    }

    /// Lets the operating system take back the memory of a tensor's bytes, or of a part of them, until they are read
    /// again: so that reading a whole checkpoint does not keep all of it in memory.
    pub fn release(&self, bytes: &[u8]) {
        self.files.iter().for_each(|file| file.release(bytes));
    }

    /// A tensor that must be there with this shape.
    pub fn expect(&self, name: &str, shape: &[usize]) -> Result<TensorView<'_>, CheckpointError> {
        let Some(location) = self.tensors.get(name) else {
            return Err(self.invalid(format!("tensor {name} of shape {shape:?} is missing")));
        };
        let refuse = |what: String| CheckpointError::Invalid {
            path: self.files[location.file].path().to_path_buf(),
            what: format!("tensor {name}: {what}"),
        };
        let StoredTensor {
            dtype, shape: found, ..
        } = &location.stored;
        if found != shape {
            let vocabulary = shape.first() == Some(&self.config.vocab_size) && found.get(1..) == shape.get(1..);
            let remedy = if vocabulary && matches!(name, EMBEDDING | HEAD) {
                format!(
                    ": config.json says vocab_size {}; set it to the number of stored rows if tokens were added",
                    self.config.vocab_size
                )
            } else {
                " by config.json".to_owned()
            };
            return Err(refuse(format!("shape {found:?}, expected {shape:?}{remedy}")));
        }
        self.tensor(name)
            .ok_or_else(|| refuse(format!("type {dtype} is not supported: expected BF16, F16 or F32")))
    }

    /// Refuses NaN and infinite weights, naming the tensor and the index.
    pub fn check_finite(&self) -> Result<(), CheckpointError> {
        for name in self.used() {
            let Some(view) = self.tensor(name) else { continue };
            let step = CHECK_ELEMENTS * view.dtype.bytes();
            let found = view
                .bytes
                .par_chunks(step)
                .enumerate()
                .find_map_first(|(chunk, bytes)| {
                    let found = TensorView { bytes, ..view }.first_non_finite();
                    self.release(bytes);
                    let (index, value) = found?;
                    Some((chunk * CHECK_ELEMENTS + index, value))
                });
            if let Some((index, value)) = found {
                return Err(CheckpointError::Invalid {
                    path: self.files[self.tensors[name].file].path().to_path_buf(),
                    what: format!(
                        "tensor {name}: the element at {:?} is {value}, expected finite weights",
                        coordinates(index, view.shape)
                    ),
                });
            }
        }
        Ok(())
    }

    /// SHA-256 (hex) over the weights and what changes arithmetic: for each tensor of the model in name order its
    /// name, type, shape and bytes, then the configuration's arithmetic fields. Independent of sharding and of stored
    /// tensors that the model does not use. Computed once; later calls return the same text.
    pub fn digest(&self) -> String {
        self.digest.get_or_init(|| self.compute_digest()).clone()
    }

    /// Takes the digest that these very files had before, so that [`Checkpoint::digest`] need not read them.
    pub(crate) fn remember_digest(&self, digest: String) {
        self.digest.get_or_init(|| digest);
    }

    fn compute_digest(&self) -> String {
        let mut hash = Sha256::new();
        // Every part is preceded by its length, so that no two models give the same stream of bytes.
        let mut put = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            for piece in bytes.chunks(DIGEST_PIECE) {
                hash.update(piece);
                self.release(piece);
            }
        };
        for name in self.used() {
            let Some(view) = self.tensor(name) else { continue };
            put(name.as_bytes());
            put(view.dtype.name().as_bytes());
            put(&(view.shape.len() as u64).to_le_bytes());
            for &dim in view.shape {
                put(&(dim as u64).to_le_bytes());
            }
            put(view.bytes);
        }
        for (field, value) in self.config.arithmetic_fields() {
            put(field.as_bytes());
            put(value.as_bytes());
        }
        hex::encode(hash.finalize())
    }

    /// Names of the stored tensors that the model uses, sorted.
    fn used(&self) -> impl Iterator<Item = &str> {
        let used: BTreeSet<_> = self.config.tensors().into_iter().map(|(name, _)| name).collect();
        self.tensors
            .keys()
            .map(String::as_str)
            .filter(move |name| used.contains(*name))
    }

    /// Refuses a checkpoint that lacks tensors, naming them.
    fn check_complete(&self) -> Result<(), CheckpointError> {
        let expected = self.config.tensors();
        let missing: Vec<_> = expected
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| !self.tensors.contains_key(*name))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let mut what = match missing.len() {
            1 => format!("tensor {} is missing", missing[0]),
            count => format!("{count} tensors are missing: {}", list(&missing)),
        };
        if missing == [HEAD] {
            what.push_str(
                ": config.json says tie_word_embeddings false, so the output head must be stored; set \
                 tie_word_embeddings to true if the model shares it with the embedding",
            );
        } else if missing.len() == expected.len() {
            let found: Vec<_> = self.tensors.keys().map(String::as_str).collect();
            what.push_str(&format!("; found {} others: {}", found.len(), list(&found)));
        }
        Err(self.invalid(what))
    }

    fn invalid(&self, what: String) -> CheckpointError {
        CheckpointError::Invalid {
            path: self.dir.clone(),
            what,
        }
    }
}

/// Up to [`LISTED`] names.
fn list(names: &[&str]) -> String {
    let shown = names.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The position of a row-major index in a shape.
fn coordinates(mut index: usize, shape: &[usize]) -> Vec<usize> {
    let mut position: Vec<_> = shape
        .iter()
        .rev()
        .map(|&dim| {
            let at = index % dim.max(1);
            index /= dim.max(1);
            at
        })
        .collect();
    position.reverse();
    position
}
