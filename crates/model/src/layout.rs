//! Which tensors a model consists of, with their shapes.

use crate::{LinearId, LinearKind, ModelConfig};

/// Name of the input embedding, `[vocabulary, hidden]`.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// Name of the output head of a model that does not tie it to the embedding, `[vocabulary, hidden]`.
pub const HEAD: &str = "lm_head.weight";
/// Name of the norm after the last layer, `[hidden]`.
pub const FINAL_NORM: &str = "model.norm.weight";

impl ModelConfig {
    /// Shape `(outputs, inputs)` of a linear's weight.
    pub fn linear_shape(&self, kind: LinearKind) -> (usize, usize) {
        let queries = self.num_heads * self.head_dim;
        let keys = self.num_kv_heads * self.head_dim;
        match kind {
            LinearKind::Q => (queries, self.hidden_size),
            LinearKind::K | LinearKind::V => (keys, self.hidden_size),
            LinearKind::O => (self.hidden_size, queries),
            LinearKind::Gate | LinearKind::Up => (self.intermediate_size, self.hidden_size),
            LinearKind::Down => (self.hidden_size, self.intermediate_size),
        }
    }

    /// Whether a linear has a bias.
    pub fn linear_has_bias(&self, kind: LinearKind) -> bool {
        match kind {
            LinearKind::Q | LinearKind::K | LinearKind::V => self.qkv_bias,
            LinearKind::O => self.o_bias,
            LinearKind::Gate | LinearKind::Up | LinearKind::Down => self.mlp_bias,
        }
    }

    /// All linears, layer by layer.
    pub fn linears(&self) -> impl Iterator<Item = LinearId> + use<> {
        (0..self.num_layers).flat_map(|layer| LinearKind::ALL.into_iter().map(move |kind| LinearId { layer, kind }))
    }

    /// Every tensor of the model with its shape, named as Hugging Face names them.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let hidden = vec![self.hidden_size];
        let vocabulary = vec![self.vocab_size, self.hidden_size];
        let mut tensors = vec![
            (EMBEDDING.to_owned(), vocabulary.clone()),
            (FINAL_NORM.to_owned(), hidden.clone()),
        ];
        if !self.tie_word_embeddings {
            tensors.push((HEAD.to_owned(), vocabulary));
        }
        for layer in 0..self.num_layers {
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                tensors.push((format!("model.layers.{layer}.{norm}.weight"), hidden.clone()));
            }
            if self.qk_norm {
                for norm in ["q_norm", "k_norm"] {
                    tensors.push((
                        format!("model.layers.{layer}.self_attn.{norm}.weight"),
                        vec![self.head_dim],
                    ));
                }
            }
        }
        for id in self.linears() {
            let (outputs, inputs) = self.linear_shape(id.kind);
            tensors.push((id.weight(), vec![outputs, inputs]));
            if self.linear_has_bias(id.kind) {
                tensors.push((id.bias(), vec![outputs]));
            }
        }
        tensors
    }
}
