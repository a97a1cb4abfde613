//! Shapes that a configuration implies.

use std::collections::BTreeMap;

use deltamux_model::{LinearId, LinearKind, ModelConfig};

/// `(outputs, inputs)` of a linear.
pub(crate) fn linear_shape(config: &ModelConfig, kind: LinearKind) -> (usize, usize) {
    let hidden = config.hidden_size;
    let q = config.num_heads * config.head_dim;
    let kv = config.num_kv_heads * config.head_dim;
    match kind {
        LinearKind::Q => (q, hidden),
        LinearKind::K | LinearKind::V => (kv, hidden),
        LinearKind::O => (hidden, q),
        LinearKind::Gate | LinearKind::Up => (config.intermediate_size, hidden),
        LinearKind::Down => (hidden, config.intermediate_size),
    }
}

/// Every linear of the model, in model order.
pub(crate) fn linears(config: &ModelConfig) -> impl Iterator<Item = LinearId> + use<> {
    (0..config.num_layers).flat_map(|layer| LinearKind::ALL.into_iter().map(move |kind| LinearId { layer, kind }))
}

/// Length of every norm and bias, by tensor name.
pub(crate) fn vector_shapes(config: &ModelConfig) -> BTreeMap<String, usize> {
    let mut shapes = BTreeMap::new();
    shapes.insert("model.norm.weight".to_string(), config.hidden_size);
    for layer in 0..config.num_layers {
        let prefix = format!("model.layers.{layer}");
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            shapes.insert(format!("{prefix}.{norm}.weight"), config.hidden_size);
        }
        if config.qk_norm {
            for norm in ["q_norm", "k_norm"] {
                shapes.insert(format!("{prefix}.self_attn.{norm}.weight"), config.head_dim);
            }
        }
    }
    for id in linears(config) {
        let has = match id.kind {
            LinearKind::Q | LinearKind::K | LinearKind::V => config.qkv_bias,
            LinearKind::O => config.o_bias,
            LinearKind::Gate | LinearKind::Up | LinearKind::Down => config.mlp_bias,
        };
        if has {
            shapes.insert(id.bias(), linear_shape(config, id.kind).0);
        }
    }
    shapes
}
