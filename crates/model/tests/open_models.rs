//! The models that the repository and the test bed bring open, and their weights are whole.

mod common;

use common::{smollm2, tiny};
use deltamux_model::{Architecture, Checkpoint};

#[test]
fn every_model_of_the_tiny_family_opens() {
    for name in ["base", "route", "date", "json", "sql"] {
        let checkpoint = Checkpoint::open(&tiny(name)).expect("a whole checkpoint");
        let config = checkpoint.config();
        assert_eq!(config.architecture, Architecture::Qwen2);
        assert!(config.qkv_bias && config.tie_word_embeddings);
        assert_eq!(checkpoint.names().len(), config.tensors().len());
        checkpoint.check_finite().expect("finite weights");
    }
}

#[test]
fn smollm2_opens() {
    let Some(dir) = smollm2() else { return };
    let checkpoint = Checkpoint::open(&dir).expect("a whole checkpoint");
    let config = checkpoint.config();
    assert_eq!(config.architecture, Architecture::Llama);
    assert_eq!(
        (
            config.num_layers,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim
        ),
        (30, 9, 3, 64)
    );
    assert_eq!(config.rope_theta, 100_000.0);
    checkpoint.check_finite().expect("finite weights");
    let embedding = checkpoint
        .expect("model.embed_tokens.weight", &[49_152, 576])
        .expect("the embedding");
    assert_eq!(embedding.row_f32(49_151), embedding.to_f32()[49_151 * 576..]);
}
