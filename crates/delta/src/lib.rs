//! Compression of a fine-tune's difference to its base, and the artifact that holds it.

pub mod artifact;
mod shapes;
mod tensor_file;

pub use artifact::{Artifact, ArtifactError};
