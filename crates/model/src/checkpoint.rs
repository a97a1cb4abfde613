//! Weights as Hugging Face writes them: one or many safetensors files, memory-mapped and checked.

use std::path::{Path, PathBuf};

use crate::ModelConfig;

/// Element type of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
}

/// A tensor in the mapping.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Shape, row-major.
    pub shape: &'a [usize],
    /// Little-endian elements; not necessarily aligned.
    pub bytes: &'a [u8],
}

impl TensorView<'_> {
    /// All elements as f32 (exact for each stored type).
    pub fn to_f32(&self) -> Vec<f32> {
        todo!()
    }
}

/// Why a checkpoint was refused.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// `config.json` was refused.
    #[error(transparent)]
    Config(#[from] crate::ConfigError),
    /// A file is not what it should be.
    #[error("{path}: {what}", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What was found and what is expected.
        what: String,
    },
}

/// An open checkpoint directory.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    config: ModelConfig,
}

impl Checkpoint {
    /// Opens a model directory: reads `config.json`, maps every safetensors file (`model.safetensors`, or the shards
    /// that `model.safetensors.index.json` names) and checks headers, names and shapes against the configuration
    /// (missing tensors are refused by name). Values are checked by [`Checkpoint::check_finite`].
    pub fn open(_dir: &Path) -> Result<Self, CheckpointError> {
        todo!()
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> Vec<&str> {
        todo!()
    }

    /// A tensor by name.
    pub fn tensor(&self, _name: &str) -> Option<TensorView<'_>> {
        todo!()
    }

    /// A tensor that must be there with this shape.
    pub fn expect(&self, _name: &str, _shape: &[usize]) -> Result<TensorView<'_>, CheckpointError> {
        todo!()
    }

    /// Refuses NaN and infinite weights, naming the tensor and the index.
    pub fn check_finite(&self) -> Result<(), CheckpointError> {
        todo!()
    }

    /// SHA-256 (hex) over the weights and what changes arithmetic: for each tensor in name order its name, type, shape
    /// and bytes, then the configuration's arithmetic fields. Independent of sharding.
    pub fn digest(&self) -> String {
        todo!()
    }
}
