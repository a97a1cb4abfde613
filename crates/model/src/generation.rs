//! `generation_config.json`: end-of-sequence ids and default sampling.

use std::path::Path;

use crate::{CheckpointError, ModelConfig};

/// Defaults of a model's generation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationConfig {
    /// Ids that end a sequence: those of `generation_config.json`, else of `config.json`.
    pub eos_token_ids: Vec<u32>,
    /// Default temperature (when `do_sample` is set), top-p, top-k, repetition penalty.
    pub temperature: Option<f32>,
    /// Default nucleus.
    pub top_p: Option<f32>,
    /// Default top-k.
    pub top_k: Option<u32>,
    /// Default repetition penalty.
    pub repetition_penalty: Option<f32>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` in `dir`, with `config` for what it does not say; a missing file is no error.
    pub fn from_dir(_dir: &Path, _config: &ModelConfig) -> Result<Self, CheckpointError> {
        todo!()
    }
}
