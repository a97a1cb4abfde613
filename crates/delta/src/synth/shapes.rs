//! The shapes that can be made: those of public models, from their published `config.json`, and a tiny one for tests.

use deltamux_model::Architecture;
use serde_json::{Map, Value, json};

use super::text::TextFamily;

/// The shape of a model: everything about it but its weights.
#[derive(Debug, PartialEq)]
pub struct Shape {
    /// The name on the command line.
    pub name: &'static str,
    /// The model whose shape it is, as its hub calls it; for people.
    pub model: &'static str,
    pub(super) architecture: Architecture,
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) vocabulary: usize,
    pub(super) positions: usize,
    pub(super) eps: f64,
    pub(super) theta: f64,
    /// Factor of the frequency-dependent rotary scaling of Llama 3.1 and later.
    pub(super) rope_factor: Option<f64>,
    /// Whether the output head is the embedding.
    pub(super) tied: bool,
    pub(super) text: TextFamily,
}

/// Qwen2.5: biases on q, k and v.
const QWEN25: Shape = Shape {
    name: "",
    model: "",
    architecture: Architecture::Qwen2,
    hidden: 0,
    intermediate: 0,
    layers: 0,
    heads: 0,
    kv_heads: 2,
    head_dim: 128,
    vocabulary: 151_936,
    positions: 32_768,
    eps: 1e-6,
    theta: 1e6,
    rope_factor: None,
    tied: true,
    text: TextFamily::Qwen,
};

const SMOLLM2: Shape = Shape {
    architecture: Architecture::Llama,
    head_dim: 64,
    vocabulary: 49_152,
    positions: 8192,
    eps: 1e-5,
    theta: 1e5,
    text: TextFamily::Smol,
    ..QWEN25
};

const LLAMA3: Shape = Shape {
    architecture: Architecture::Llama,
    kv_heads: 8,
    vocabulary: 128_256,
    positions: 131_072,
    eps: 1e-5,
    theta: 5e5,
    text: TextFamily::Llama3,
    ..QWEN25
};

/// All shapes, smallest first.
pub static SHAPES: [Shape; 13] = [
    Shape {
        name: "tiny",
        model: "no public model: two small layers of the Qwen2 architecture, for tests",
        hidden: 128,
        intermediate: 256,
        layers: 2,
        heads: 4,
        head_dim: 32,
        vocabulary: 1024,
        positions: 512,
        theta: 1e4,
        text: TextFamily::Smol,
        ..QWEN25
    },
    Shape {
        name: "smollm2-135m",
        model: "HuggingFaceTB/SmolLM2-135M-Instruct",
        hidden: 576,
        intermediate: 1536,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        ..SMOLLM2
    },
    Shape {
        name: "smollm2-360m",
        model: "HuggingFaceTB/SmolLM2-360M-Instruct",
        hidden: 960,
        intermediate: 2560,
        layers: 32,
        heads: 15,
        kv_heads: 5,
        ..SMOLLM2
    },
    Shape {
        name: "qwen2.5-0.5b",
        model: "Qwen/Qwen2.5-0.5B-Instruct",
        hidden: 896,
        intermediate: 4864,
        layers: 24,
        heads: 14,
        head_dim: 64,
        ..QWEN25
    },
    Shape {
        name: "qwen3-0.6b",
        model: "Qwen/Qwen3-0.6B",
        architecture: Architecture::Qwen3,
        hidden: 1024,
        intermediate: 3072,
        layers: 28,
        heads: 16,
        kv_heads: 8,
        positions: 40_960,
        ..QWEN25
    },
    Shape {
        name: "llama-3.2-1b",
        model: "meta-llama/Llama-3.2-1B-Instruct",
        hidden: 2048,
        intermediate: 8192,
        layers: 16,
        heads: 32,
        head_dim: 64,
        rope_factor: Some(32.0),
        ..LLAMA3
    },
    Shape {
        name: "qwen2.5-1.5b",
        model: "Qwen/Qwen2.5-1.5B-Instruct",
        hidden: 1536,
        intermediate: 8960,
        layers: 28,
        heads: 12,
        ..QWEN25
    },
    Shape {
        name: "smollm2-1.7b",
        model: "HuggingFaceTB/SmolLM2-1.7B-Instruct",
        hidden: 2048,
        intermediate: 8192,
        layers: 24,
        heads: 32,
        kv_heads: 32,
        theta: 1.3e5,
        ..SMOLLM2
    },
    Shape {
        name: "qwen2.5-3b",
        model: "Qwen/Qwen2.5-3B-Instruct",
        hidden: 2048,
        intermediate: 11_008,
        layers: 36,
        heads: 16,
        ..QWEN25
    },
    Shape {
        name: "llama-3.2-3b",
        model: "meta-llama/Llama-3.2-3B-Instruct",
        hidden: 3072,
        intermediate: 8192,
        layers: 28,
        heads: 24,
        rope_factor: Some(32.0),
        ..LLAMA3
    },
    Shape {
        name: "mistral-7b-v0.3",
        model: "mistralai/Mistral-7B-Instruct-v0.3",
        architecture: Architecture::Mistral,
        hidden: 4096,
        intermediate: 14_336,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        vocabulary: 32_768,
        eps: 1e-5,
        tied: false,
        text: TextFamily::Mistral,
        ..QWEN25
    },
    Shape {
        name: "qwen2.5-7b",
        model: "Qwen/Qwen2.5-7B-Instruct",
        hidden: 3584,
        intermediate: 18_944,
        layers: 28,
        heads: 28,
        kv_heads: 4,
        vocabulary: 152_064,
        tied: false,
        ..QWEN25
    },
    Shape {
        name: "llama-3.1-8b",
        model: "meta-llama/Llama-3.1-8B-Instruct",
        hidden: 4096,
        intermediate: 14_336,
        layers: 32,
        heads: 32,
        rope_factor: Some(8.0),
        tied: false,
        ..LLAMA3
    },
];

impl Shape {
    /// The shape of that name.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        SHAPES.iter().find(|shape| shape.name == name)
    }

    /// The fields of its `config.json`.
    pub(super) fn config(&self) -> Map<String, Value> {
        let mut fields = json!({
            "architectures": [self.architecture.class_name()],
            "attention_dropout": 0.0,
            "bos_token_id": self.text.bos(),
            "eos_token_id": self.text.eos()[0],
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.positions,
            "model_type": self.architecture.model_type(),
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": self.eps,
            "rope_theta": self.theta,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
            "use_cache": true,
            "vocab_size": self.vocabulary,
        });
        let own = match self.architecture {
            Architecture::Qwen2 => json!({
                "max_window_layers": self.layers,
                "sliding_window": self.positions,
                "use_sliding_window": false,
            }),
            Architecture::Qwen3 => json!({
                "attention_bias": false,
                "head_dim": self.head_dim,
                "max_window_layers": self.layers,
                "rope_scaling": null,
                "sliding_window": null,
                "use_sliding_window": false,
            }),
            Architecture::Llama => json!({
                "attention_bias": false,
                "head_dim": self.head_dim,
                "mlp_bias": false,
                "pretraining_tp": 1,
                "rope_scaling": self.rope_factor.map(|factor| json!({
                    "factor": factor,
                    "high_freq_factor": 4.0,
                    "low_freq_factor": 1.0,
                    "original_max_position_embeddings": 8192,
                    "rope_type": "llama3",
                })),
            }),
            Architecture::Mistral => json!({ "head_dim": self.head_dim, "sliding_window": null }),
        };
        let (Some(all), Value::Object(own)) = (fields.as_object_mut(), own) else {
            unreachable!("both are objects")
        };
        all.extend(own);
        all.sort_keys(); // as transformers writes them
        std::mem::take(all)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use deltamux_model::ModelConfig;

    use super::*;

    fn config(shape: &Shape) -> ModelConfig {
        let text = serde_json::to_vec(&shape.config()).unwrap();
        ModelConfig::from_json(&text, Path::new("config.json")).unwrap()
    }

    /// The numbers of weights that the models' pages on their hub give.
    #[test]
    fn shapes_have_as_many_weights_as_the_public_models() {
        for (name, weights) in [
            ("smollm2-135m", 134_515_008),
            ("smollm2-360m", 361_821_120),
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen3-0.6b", 596_049_920),
            ("llama-3.2-1b", 1_235_814_400),
            ("qwen2.5-1.5b", 1_543_714_304),
            ("smollm2-1.7b", 1_711_376_384),
            ("qwen2.5-3b", 3_085_938_688),
            ("llama-3.2-3b", 3_212_749_824),
            ("mistral-7b-v0.3", 7_248_023_552),
            ("qwen2.5-7b", 7_615_616_512),
            ("llama-3.1-8b", 8_030_261_248u64),
        ] {
            let config = config(Shape::from_name(name).unwrap());
            let found: u64 = config
                .tensors()
                .iter()
                .map(|(_, shape)| shape.iter().product::<usize>() as u64)
                .sum();
            assert_eq!(found, weights, "{name}");
        }
    }

    #[test]
    fn every_config_says_what_the_shape_is() {
        for shape in &SHAPES {
            let config = config(shape);
            assert_eq!(config.head_dim, shape.head_dim, "{}", shape.name);
            assert_eq!(config.rope_theta, shape.theta);
            assert!(!config.eos_token_ids.is_empty());
            // Packed rows are filled as whole bytes of codes.
            for id in config.linears() {
                let (outputs, inputs) = config.linear_shape(id.kind);
                assert!(outputs % 8 == 0 && inputs % 8 == 0, "{}", shape.name);
            }
        }
    }
}
