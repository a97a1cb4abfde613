//! `config.json`: the architectures that deltamux runs, and a refusal by name for the rest.

use std::path::PathBuf;

/// Model family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// `LlamaForCausalLM` (SmolLM2, Llama 2/3, TinyLlama, …).
    Llama,
    /// `MistralForCausalLM` without a sliding window.
    Mistral,
    /// `Qwen2ForCausalLM`: biases on q, k and v.
    Qwen2,
    /// `Qwen3ForCausalLM`: RMS norms on the heads of q and k.
    Qwen3,
}

/// Scaling of the rotary frequencies.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// None.
    None,
    /// Llama 3.1's frequency-dependent scaling.
    Llama3 {
        /// Division of the low frequencies.
        factor: f64,
        /// Wavelengths longer than `original_max_position_embeddings / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths shorter than `original_max_position_embeddings / high_freq_factor` stay.
        high_freq_factor: f64,
        /// Context length of pre-training.
        original_max_position_embeddings: usize,
    },
}

/// What the forward pass needs to know of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Model family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key/value heads (grouped-query attention).
    pub num_kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Longest sequence.
    pub max_position_embeddings: usize,
    /// Epsilon of the RMS norms.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// Bias on the attention's output projection (`attention_bias` of Llama).
    pub o_bias: bool,
    /// Biases on the MLP.
    pub mlp_bias: bool,
    /// RMS norms on the heads of q and k.
    pub qk_norm: bool,
    /// End-of-sequence ids of `config.json`.
    pub eos_token_ids: Vec<u32>,
    /// The whole file, for what a variant's configuration is compared on.
    pub raw: serde_json::Value,
}

/// Why a `config.json` was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Not JSON, or a field is missing or of the wrong type or value.
    #[error("{path}: {what}", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Field, what was found, what is expected.
        what: String,
    },
}

impl ModelConfig {
    /// Reads `config.json` in `dir`.
    pub fn from_dir(_dir: &std::path::Path) -> Result<Self, ConfigError> {
        todo!()
    }
}
