//! Checkpoints, tokenizer, chat template and the forward pass over a ragged batch.
//!
//! Everything above this crate sees models through [`Checkpoint`] (files), [`Tokenizer`] and [`ChatTemplate`] (text)
//! and [`Backend`] (arithmetic); nothing above it knows on which device the arithmetic runs.

pub mod backend;
pub mod chat;
pub mod checkpoint;
pub mod config;
pub mod cpu;
pub mod generation;
pub mod hub;
pub mod layout;
pub mod linear;
pub mod memory;
pub mod precision;
pub mod tensor;
pub mod tokenizer;
pub mod variant;
pub mod weights_file;

pub use backend::{Backend, ForwardError, LogitRows, PAGE_TOKENS, SequenceChunk};
pub use chat::{ChatTemplate, TemplateError};
pub use checkpoint::{Checkpoint, CheckpointError};
pub use config::{Architecture, ConfigError, ModelConfig, RopeScaling};
pub use cpu::cache::{CacheUse, WeightCache};
pub use cpu::{CpuBackend, LayerWeights, LayerwiseModel, LoadOptions};
pub use generation::GenerationConfig;
pub use hub::HubError;
pub use linear::{LinearId, LinearKind};
pub use precision::Precision;
pub use tensor::{DType, TensorView};
pub use tokenizer::{DecodeStream, Tokenizer, TokenizerError};
pub use variant::{EmbeddingDelta, MatrixDelta, VariantWeights};
pub use weights_file::{WeightsFile, WeightsFileError};
