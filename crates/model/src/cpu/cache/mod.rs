//! A cache of packed weights: a second start reads the matrices as the kernels want them, instead of checking and
//! packing those of the checkpoint.
//!
//! * **One file for each checkpoint and precision.** Replaced when the checkpoint changes, so that caches do not pile
//!   up. bf16 weights are stored once for activations in f32 and in bf16.
//! * **Never stale**: the file's key is made of the identity of the checkpoint's files; see `key.rs` for what that is,
//!   and why it is enough.
//! * **Never damaged**: every byte is covered by a digest, and all are checked before a matrix is used. Whatever is
//!   wrong is a warning; the weights are packed again and the file is replaced.
//! * **Read, not mapped**, into memory of our own: steps then run on huge pages, which page-cache memory has none of,
//!   and nobody can change or shorten the file under a running model.
//! * **Written after packing**, from the matrices that are in memory anyway, into a temporary file that is renamed. A
//!   write that fails is a warning.
//!
//! The checkpoint's vectors (norms, biases) are read from the checkpoint itself. Its finite weights were checked before
//! the cache was written, and its digest is in the cache, so that neither is computed again.

mod digest;
pub mod header;
mod key;
mod read;
mod write;

use std::path::PathBuf;

use deltamux_kernels::{PackedMatrix, Threads};
use sha2::{Digest as _, Sha256};

use crate::{Checkpoint, DType, Precision};
use header::{Matrix, Packing};
pub(super) use read::Stored;

/// The folder of a model's directory that [`WeightCache::Beside`] uses.
pub const FOLDER: &str = ".deltamux-cache";

/// Where packed weights are kept for the next start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WeightCache {
    /// Nowhere.
    #[default]
    Off,
    /// In the folder [`FOLDER`] of the model's directory.
    Beside,
    /// In this directory, which may serve several models; it is created.
    Dir(PathBuf),
}

/// What became of the cache when a model was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheUse {
    /// It was not wanted.
    #[default]
    Off,
    /// The weights came from it.
    Read,
    /// The weights were packed, and are in it now.
    Written,
    /// The weights were packed, and it could not be written.
    NotWritten,
}

impl WeightCache {
    /// The file for a checkpoint in a precision; `None` if there is to be none.
    pub fn file(&self, checkpoint: &Checkpoint, precision: Precision) -> Option<PathBuf> {
        let label = label(precision);
        match self {
            Self::Off => None,
            Self::Beside => Some(checkpoint.dir().join(FOLDER).join(format!("{label}.weights"))),
            Self::Dir(dir) => {
                // By the model's path: a changed model replaces its file, two models of one name have two.
                let path = fs_err::canonicalize(checkpoint.dir()).unwrap_or_else(|_| checkpoint.dir().to_owned());
                let digest = hex::encode(Sha256::digest(path.as_os_str().as_encoded_bytes()));
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let name: String = name.chars().take(40).collect();
                Some(dir.join(format!("{name}-{}-{label}.weights", &digest[..16])))
            }
        }
    }
}

/// What a precision stores.
fn label(precision: Precision) -> &'static str {
    match precision {
        Precision::Stored | Precision::Bf16Activations => "stored",
        Precision::Q8 => "q8",
        Precision::Q4 => "q4",
    }
}

/// The place of one checkpoint's weights in one precision.
pub(super) struct Slot<'a> {
    path: PathBuf,
    key: String,
    plan: Vec<Matrix>,
    checkpoint: &'a Checkpoint,
}

impl<'a> Slot<'a> {
    /// `Ok(None)`: no cache is wanted; `Err`: there can be none, and a warning has said so.
    pub(super) fn new(
        cache: &WeightCache,
        checkpoint: &'a Checkpoint,
        precision: Precision,
    ) -> Result<Option<Self>, CacheUse> {
        let Some(path) = cache.file(checkpoint, precision) else {
            return Ok(None);
        };
        let Some(key) = key::of(checkpoint, precision) else {
            tracing::warn!(
                "no weight cache: this system does not tell whether a file has changed; leave out --weight-cache"
            );
            return Err(CacheUse::NotWritten);
        };
        let plan = plan(checkpoint, precision);
        Ok(Some(Self {
            path,
            key,
            plan,
            checkpoint,
        }))
    }

    /// The weights, if the file is there, whole, and of this checkpoint.
    pub(super) fn read(&self, threads: &Threads, progress: &dyn Fn(u64, u64)) -> Option<Stored> {
        let path = self.path.display();
        match read::read(&self.path, &self.key, &self.plan, threads, progress) {
            Ok(Some(stored)) => {
                tracing::info!("{path}: packed weights read from the cache");
                self.checkpoint.remember_digest(stored.checkpoint.clone());
                Some(stored)
            }
            Ok(None) => None,
            Err(why) => {
                tracing::warn!("{path}: weight cache not used: {why}; the weights are packed again");
                None
            }
        }
    }

    /// Whether the checkpoint's next change will show; waits for that if need be. Asked before packing begins.
    pub(super) fn settle(&self) -> bool {
        let settled = key::settle(self.checkpoint);
        if !settled {
            self.not_written("the checkpoint's files have change times in the future: correct the clock");
        }
        settled
    }

    /// Stores the matrices that were packed since [`Slot::settle`].
    pub(super) fn write<'m>(self, matrix: impl Fn(&str) -> Option<&'m PackedMatrix>, threads: &Threads) -> CacheUse {
        // After the weights were read: whatever changed meanwhile shows here.
        let digest = self.checkpoint.digest();
        if !key::unchanged(self.checkpoint) {
            self.not_written("the checkpoint changed while it was read");
            return CacheUse::NotWritten;
        }
        match write::write(&self.path, self.key.clone(), digest, self.plan.clone(), matrix, threads) {
            Ok(()) => {
                tracing::info!("{}: packed weights written to the cache", self.path.display());
                CacheUse::Written
            }
            Err(error) => {
                self.not_written(&error.to_string());
                CacheUse::NotWritten
            }
        }
    }

    fn not_written(&self, why: &str) {
        let path = self.path.display();
        tracing::warn!(
            "{path}: weight cache not written: {why}; the next start packs the weights again (give another folder, or leave out \
             --weight-cache)"
        );
    }
}

/// The matrices of a checkpoint as they are stored. A type that is refused in this precision is refused when the
/// matrices are used.
fn plan(checkpoint: &Checkpoint, precision: Precision) -> Vec<Matrix> {
    let tensors = checkpoint.config().tensors().into_iter();
    let matrices = tensors.filter_map(|(name, shape)| {
        let &[outputs, inputs] = shape.as_slice() else {
            return None;
        };
        let dtype = checkpoint.tensor(&name)?.dtype;
        Some(Matrix {
            packing: packing(precision, &name, dtype),
            name,
            outputs,
            inputs,
        })
    });
    matrices.collect()
}

/// How a tensor is packed, whatever its activations.
fn packing(precision: Precision, name: &str, stored: DType) -> Packing {
    use deltamux_kernels::packed::Precision as Packed;
    match super::load::packed_precision(precision, name, stored) {
        Packed::Bf16 | Packed::Bf16Activations => Packing::Bf16,
        Packed::F32 => Packing::F32,
        Packed::Q8 => Packing::Q8,
        Packed::Q4 => Packing::Q4,
    }
}
