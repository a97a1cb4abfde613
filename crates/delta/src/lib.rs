//! Compression of a fine-tune's difference to its base, and the artifact that holds it.

pub mod artifact;

pub use artifact::{Artifact, ArtifactError};
