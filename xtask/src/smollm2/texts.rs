//! Configuration and tokenizer as Hugging Face writes them, from the keys of the GGUF file.

use std::path::Path;

use anyhow::Context as _;
use fs_err as fs;
use serde_json::{Map, Value, json};

use crate::gguf::Gguf;

/// Token type of a control token in `tokenizer.ggml.token_type`.
const CONTROL: i128 = 3;

/// Writes `config.json`, `generation_config.json`, `tokenizer.json`, `tokenizer_config.json` and
/// `special_tokens_map.json` to `out`.
pub(super) fn write(gguf: &Gguf<'_>, out: &Path) -> anyhow::Result<()> {
    let special = SpecialTokens::read(gguf)?;
    for (name, value) in [
        ("config.json", config(gguf)?),
        ("generation_config.json", generation_config(gguf)?),
        ("tokenizer.json", tokenizer(gguf, &special)?),
        ("tokenizer_config.json", tokenizer_config(gguf, &special)?),
        ("special_tokens_map.json", special.map()),
    ] {
        let mut text = serde_json::to_string_pretty(&value)?;
        text.push('\n');
        fs::write(out.join(name), text)?;
    }
    Ok(())
}

/// The tokens that the text pipeline treats specially.
struct SpecialTokens<'a> {
    /// Control tokens: id and text.
    control: Vec<(usize, &'a str)>,
    bos: &'a str,
    eos: &'a str,
    pad: &'a str,
    unknown: &'a str,
}

impl<'a> SpecialTokens<'a> {
    fn read(gguf: &'a Gguf<'_>) -> anyhow::Result<Self> {
        let tokens = gguf.strings("tokenizer.ggml.tokens")?;
        let types = gguf.integers("tokenizer.ggml.token_type")?;
        anyhow::ensure!(
            tokens.len() == types.len(),
            "{} tokens, but {} token types",
            tokens.len(),
            types.len()
        );
        let named = |key: &str| -> anyhow::Result<&'a str> {
            let id = gguf.usize(&format!("tokenizer.ggml.{key}_token_id"))?;
            let token = tokens.get(id).copied();
            token.with_context(|| format!("the {key} token is {id}, but there are {} tokens", tokens.len()))
        };
        Ok(Self {
            bos: named("bos")?,
            eos: named("eos")?,
            pad: named("padding")?,
            unknown: named("unknown")?,
            control: tokens
                .iter()
                .copied()
                .enumerate()
                .filter(|&(id, _)| types[id] == CONTROL)
                .collect(),
        })
    }

    fn map(&self) -> Value {
        json!({
            "additional_special_tokens": [self.bos, self.eos],
            "bos_token": self.bos,
            "eos_token": self.eos,
            "pad_token": self.pad,
            "unk_token": self.unknown,
        })
    }
}

/// The flags of an added token that is matched literally and skipped in answers.
fn added_token(content: &str) -> Map<String, Value> {
    let mut token = Map::new();
    token.insert("content".to_owned(), content.into());
    for (flag, value) in [
        ("single_word", false),
        ("lstrip", false),
        ("rstrip", false),
        ("normalized", false),
        ("special", true),
    ] {
        token.insert(flag.to_owned(), value.into());
    }
    token
}

fn config(gguf: &Gguf<'_>) -> anyhow::Result<Value> {
    Ok(json!({
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "bos_token_id": gguf.usize("tokenizer.ggml.bos_token_id")?,
        "eos_token_id": gguf.usize("tokenizer.ggml.eos_token_id")?,
        "pad_token_id": gguf.usize("tokenizer.ggml.padding_token_id")?,
        "hidden_act": "silu",
        "hidden_size": gguf.usize("llama.embedding_length")?,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": gguf.usize("llama.feed_forward_length")?,
        "max_position_embeddings": gguf.usize("llama.context_length")?,
        "mlp_bias": false,
        "model_type": "llama",
        "num_attention_heads": gguf.usize("llama.attention.head_count")?,
        "num_hidden_layers": gguf.usize("llama.block_count")?,
        "num_key_value_heads": gguf.usize("llama.attention.head_count_kv")?,
        "pretraining_tp": 1,
        "rms_norm_eps": shortest(gguf.float("llama.attention.layer_norm_rms_epsilon")?)?,
        "rope_scaling": null,
        "rope_theta": gguf.float("llama.rope.freq_base")?,
        "tie_word_embeddings": true,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.42.3",
        "use_cache": true,
        "vocab_size": gguf.usize("llama.vocab_size")?,
    }))
}

/// The decimal number that an f32 in the file stands for: its shortest representation (1e-5, not 9.99999974737875e-6).
fn shortest(value: f64) -> anyhow::Result<f64> {
    (value as f32)
        .to_string()
        .parse()
        .context("a number that Rust prints is a number")
}

fn generation_config(gguf: &Gguf<'_>) -> anyhow::Result<Value> {
    Ok(json!({
        "_from_model_config": true,
        "bos_token_id": gguf.usize("tokenizer.ggml.bos_token_id")?,
        "eos_token_id": gguf.usize("tokenizer.ggml.eos_token_id")?,
        "pad_token_id": gguf.usize("tokenizer.ggml.padding_token_id")?,
        "transformers_version": "4.42.3",
    }))
}

fn tokenizer(gguf: &Gguf<'_>, special: &SpecialTokens<'_>) -> anyhow::Result<Value> {
    let mut added = Vec::new();
    for &(id, content) in &special.control {
        let mut token = Map::new();
        token.insert("id".to_owned(), id.into());
        token.extend(added_token(content));
        added.push(Value::Object(token));
    }
    let tokens = gguf.strings("tokenizer.ggml.tokens")?;
    let vocab: Map<String, Value> = tokens
        .iter()
        .enumerate()
        .map(|(id, t)| ((*t).to_owned(), id.into()))
        .collect();
    anyhow::ensure!(vocab.len() == tokens.len(), "the vocabulary holds a token twice");
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": special.unknown,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": gguf.strings("tokenizer.ggml.merges")?,
        },
    }))
}

fn tokenizer_config(gguf: &Gguf<'_>, special: &SpecialTokens<'_>) -> anyhow::Result<Value> {
    let decoder: Map<String, Value> = special
        .control
        .iter()
        .map(|&(id, content)| (id.to_string(), Value::Object(added_token(content))))
        .collect();
    let Value::Object(map) = special.map() else {
        anyhow::bail!("the map of special tokens is an object");
    };
    let mut config = Map::new();
    config.insert("add_prefix_space".to_owned(), false.into());
    config.insert("added_tokens_decoder".to_owned(), decoder.into());
    config.extend(map);
    config.insert(
        "chat_template".to_owned(),
        gguf.string("tokenizer.chat_template")?.into(),
    );
    config.insert("clean_up_tokenization_spaces".to_owned(), false.into());
    config.insert(
        "model_max_length".to_owned(),
        gguf.usize("llama.context_length")?.into(),
    );
    config.insert("tokenizer_class".to_owned(), "PreTrainedTokenizerFast".into());
    config.insert(
        "vocab_size".to_owned(),
        gguf.strings("tokenizer.ggml.tokens")?.len().into(),
    );
    Ok(Value::Object(config))
}
