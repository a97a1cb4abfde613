//! Why a fine-tune could not be compressed.

use std::path::PathBuf;

use crate::ArtifactError;

/// Why a fine-tune could not be compressed.
#[derive(Debug, thiserror::Error)]
pub enum CompressError {
    /// The file system.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A checkpoint was refused.
    #[error(transparent)]
    Checkpoint(#[from] deltamux_model::CheckpointError),
    /// An adapter was refused.
    #[error(transparent)]
    Adapter(#[from] crate::peft::PeftError),
    /// The fine-tune's tokenizer was refused.
    #[error(transparent)]
    Tokenizer(#[from] deltamux_model::TokenizerError),
    /// The fine-tune's chat template was refused.
    #[error(transparent)]
    Template(#[from] deltamux_model::TemplateError),
    /// The artifact could not be written.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// An option has no meaning.
    #[error("{0}")]
    Option(String),
    /// Base and fine-tune do not fit together.
    #[error("{finetuned}: {what}", finetuned = finetuned.display())]
    Mismatch {
        /// The fine-tune.
        finetuned: PathBuf,
        /// What differs, both values, and the remedy.
        what: String,
    },
    /// The calibration file is not what it should be.
    #[error("{path}: {what}", path = path.display())]
    Calibration {
        /// The file.
        path: PathBuf,
        /// Line, what was found, what is expected.
        what: String,
    },
    /// The forward pass refused a batch.
    #[error("calibration: {0}")]
    Forward(#[from] deltamux_model::ForwardError),
    /// Finished work of an earlier run is not what was written.
    #[error("{path}: {what}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and the remedy.
        what: String,
    },
    /// A matrix could not be decomposed.
    #[error("{tensor}: {what}")]
    Numerics {
        /// The linear.
        tensor: String,
        /// What failed.
        what: String,
    },
}

impl CompressError {
    /// Whether another try may succeed, so that finished work is worth keeping: all but what is wrong with the command
    /// itself.
    pub fn may_pass(&self) -> bool {
        !matches!(self, Self::Option(_))
    }
}
