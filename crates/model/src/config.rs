//! `config.json`: the architectures that deltamux runs, and a refusal by name for the rest.

mod parse;

pub(crate) use parse::token_ids;

use std::path::{Path, PathBuf};

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

impl Architecture {
    /// All architectures that deltamux runs.
    pub const ALL: [Self; 4] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3];

    /// The class that `architectures` names.
    pub const fn class_name(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// The value of `model_type`.
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
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
    pub fn from_dir(dir: &Path) -> Result<Self, ConfigError> {
        let path = dir.join("config.json");
        let text = fs_err::read(&path)?;
        Self::from_json(&text, &path)
    }

    /// Reads the text of a `config.json`; `path` is named in errors.
    pub fn from_json(text: &[u8], path: &Path) -> Result<Self, ConfigError> {
        parse::parse(text).map_err(|what| ConfigError::Invalid {
            path: path.to_path_buf(),
            what,
        })
    }

    /// The fields that change the arithmetic of a forward pass, with their values as text: two configurations whose
    /// lists are equal compute the same function of the same weights. The vocabulary and the context length are not
    /// among them: the former follows from the weights, the latter only bounds a sequence.
    pub fn arithmetic_fields(&self) -> Vec<(&'static str, String)> {
        let rope_scaling = match &self.rope_scaling {
            RopeScaling::None => "none".to_owned(),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => format!(
                "llama3 factor {factor}, low_freq_factor {low_freq_factor}, high_freq_factor {high_freq_factor}, \
                 original_max_position_embeddings {original_max_position_embeddings}"
            ),
        };
        vec![
            ("architecture", self.architecture.class_name().to_owned()),
            ("hidden_size", self.hidden_size.to_string()),
            ("intermediate_size", self.intermediate_size.to_string()),
            ("num_hidden_layers", self.num_layers.to_string()),
            ("num_attention_heads", self.num_heads.to_string()),
            ("num_key_value_heads", self.num_kv_heads.to_string()),
            ("head_dim", self.head_dim.to_string()),
            ("rms_norm_eps", self.rms_norm_eps.to_string()),
            ("rope_theta", self.rope_theta.to_string()),
            ("rope_scaling", rope_scaling),
            ("tie_word_embeddings", self.tie_word_embeddings.to_string()),
            ("attention_bias", self.qkv_bias.to_string()),
            ("o_proj bias", self.o_bias.to_string()),
            ("mlp_bias", self.mlp_bias.to_string()),
            ("q_norm and k_norm", self.qk_norm.to_string()),
        ]
    }
}

#[cfg(test)]
mod tests;
