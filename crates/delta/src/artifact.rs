//! The artifact: one directory a variant, a manifest beside packed safetensors.

use std::path::{Path, PathBuf};

use deltamux_model::{ModelConfig, VariantWeights};

/// Why an artifact was refused.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The file system.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A file is not what it should be.
    #[error("{path}: {what}", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What was found and what is expected.
        what: String,
    },
    /// The artifact was made from another base.
    #[error(
        "{path}: made for the base with digest {expected}, but this base has {found}; serve it with its own base or compress again",
        path = path.display()
    )]
    OtherBase {
        /// The artifact.
        path: PathBuf,
        /// Digest in the manifest.
        expected: String,
        /// Digest of the base at hand.
        found: String,
    },
}

/// An artifact whose manifest has been read.
#[derive(Debug)]
pub struct Artifact {}

impl Artifact {
    /// Reads and checks the manifest only (cheap: registration).
    pub fn open(_dir: &Path) -> Result<Self, ArtifactError> {
        todo!()
    }

    /// Name of the variant in the manifest.
    pub fn name(&self) -> &str {
        todo!()
    }

    /// Content digest of the artifact: the variant's generation.
    pub fn generation(&self) -> &str {
        todo!()
    }

    /// Bytes that the variant takes in memory when loaded.
    pub fn resident_bytes(&self) -> u64 {
        todo!()
    }

    /// Directory of the tokenizer, chat template and generation config that this variant brings with it, for each file
    /// name: its own if it differs from the base's, else `None`.
    pub fn text_file(&self, _name: &str) -> Option<PathBuf> {
        todo!()
    }

    /// Maps the packed tensors, checks every digest and shape against `base` and its digest, and returns the weights
    /// ready for the forward pass.
    pub fn load(&self, _base: &ModelConfig, _base_digest: &str) -> Result<VariantWeights, ArtifactError> {
        todo!()
    }
}
