//! Compression of a fine-tune's difference to its base, and the artifact that holds it.
//!
//! [`compress()`] makes an artifact directory, [`Artifact`] reads one, [`restore()`] turns it back into a checkpoint,
//! [`synth()`] makes models and artifacts with random weights.

pub mod artifact;
pub mod compress;
pub mod peft;
mod restore;
pub mod synth;
mod temp;
mod tensor_file;

pub use artifact::{Artifact, ArtifactError};
pub use compress::{
    Budget, CalibrationSource, CompressError, CompressOptions, EmbeddingPolicy, Method, Shard, Stage, WidthLimits,
    compress, merge,
};
pub use restore::{RestoreError, Restored, restore};
pub use synth::{SynthError, SynthOptions, synth};
