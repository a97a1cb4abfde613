//! The artifact: one directory a variant, a manifest beside packed safetensors.
//!
//! ```text
//! sql/
//!   manifest.json          what it is, of which base, every tensor's ranks, bytes and errors, every file's digest
//!   delta.safetensors      packed factors or signs of the changed linears, exact vectors, embedding changes
//!   tokenizer.json …       text files of the fine-tune that differ from the base's
//! ```

mod layout;
mod manifest;
mod packed;
mod reader;
pub(crate) mod sealed;
mod signs;
mod verify;
mod writer;

use std::path::{Path, PathBuf};

use deltamux_model::{ModelConfig, VariantWeights};

pub use layout::{Coding, PackedBand, PackedLinear, Widths, header_entry_bytes, packed_bytes, symmetric_scale};
pub(crate) use layout::{FIXED_BYTES, SCALE_BITS};
pub use manifest::{
    BaseInfo, CalibrationInfo, EmbeddingInfo, FORMAT_VERSION, FileInfo, LinearInfo, Manifest, RelError, Storage, Totals,
};
pub(crate) use manifest::{MAX_MANIFEST_BYTES, check_name};
pub use packed::{Packed, decode, packed_len};
pub(crate) use reader::{EMBEDDING, EmbeddingNames, HEAD, Mapped, Tensors, vector_lengths};
pub use signs::{PackedSigns, sign_bytes};
pub use verify::Inspection;
pub(crate) use verify::{check_stored, digest_file, verify_files};
pub use writer::{ArtifactWriter, Target};

/// The packed tensors.
pub const DELTA_FILE: &str = "delta.safetensors";
/// The manifest.
pub const MANIFEST_FILE: &str = "manifest.json";
/// What stands in place of the manifest in one shard of an artifact (`compress --shard`).
pub const SHARD_FILE: &str = "shard.json";
/// Files beside the weights that travel with a variant when they differ from the base's.
pub const TEXT_FILES: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "config.json",
];

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

impl ArtifactError {
    pub(crate) fn invalid(path: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self::Invalid {
            path: path.into(),
            what: what.into(),
        }
    }
}

/// An artifact whose manifest has been read.
#[derive(Debug, Clone)]
pub struct Artifact {
    dir: PathBuf,
    manifest: Manifest,
    generation: String,
    resident: u64,
}

impl Artifact {
    /// Reads and checks the manifest only (cheap: registration).
    pub fn open(dir: &Path) -> Result<Self, ArtifactError> {
        let manifest = Manifest::read(dir)?;
        let generation = manifest.generation();
        let resident = manifest.resident_bytes();
        Ok(Self {
            dir: dir.to_path_buf(),
            manifest,
            generation,
            resident,
        })
    }

    /// The artifact's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Name of the variant in the manifest.
    pub fn name(&self) -> &str {
        &self.manifest.name
    }

    /// Content digest of the artifact (base, packed tensors, text files; not the name): the variant's generation.
    pub fn generation(&self) -> &str {
        &self.generation
    }

    /// Bytes that the variant takes in memory when loaded.
    pub fn resident_bytes(&self) -> u64 {
        self.resident
    }

    /// Path of a text file (see [`TEXT_FILES`]) that this variant brings with it: its own if it differs from the
    /// base's, else `None`.
    pub fn text_file(&self, name: &str) -> Option<PathBuf> {
        let listed = TEXT_FILES.contains(&name) && self.manifest.files.iter().any(|f| f.name == name);
        listed.then(|| self.dir.join(name))
    }

    /// Maps the packed tensors, checks every digest and shape against `base` and its digest, and returns the weights
    /// ready for the forward pass.
    pub fn load(&self, base: &ModelConfig, base_digest: &str) -> Result<VariantWeights, ArtifactError> {
        if self.manifest.base.digest != base_digest {
            return Err(ArtifactError::OtherBase {
                path: self.dir.clone(),
                expected: self.manifest.base.digest.clone(),
                found: base_digest.to_string(),
            });
        }
        self.verify_files()?;
        reader::load(self, base)
    }
}
