//! The base: random weights, written as they are made.
//!
//! Every linear reads what a norm gives, with deviation 1, and its weights have deviation `1/√inputs`: what it gives has
//! deviation 1 too, and the residual stream grows with the square root of the depth only. With `1/√hidden` for the
//! embedding and the head, logits have deviation 1; a token that follows is then rarely the one before it, although a
//! tied head knows its own embedding again.

use std::path::Path;

use deltamux_model::{LinearId, LinearKind, ModelConfig, layout};
use serde_json::json;

use super::random::Streams;
use super::{Progress, Shape, Stage, SynthError, pretty};
use crate::artifact::Target;
use crate::tensor_file::{TensorFileWriter, TensorSpec};

/// Longest weights file: what transformers' `save_pretrained` cuts at by default.
pub(super) const SHARD_BYTES: u64 = 5_000_000_000;

/// Elements that are made and written at once: a multiple of a stream's block.
const PART: usize = 1 << 24;

/// Deviation of the biases of q, k and v.
const BIAS_DEVIATION: f32 = 0.1;

/// Deviation of the norms' weights around 1.
const NORM_DEVIATION: f32 = 0.05;

/// Writes the base model of `shape` to the directory `out`; weights files hold at most `shard_bytes`, unless a single
/// tensor is larger.
pub(super) fn write(
    shape: &Shape,
    seed: u64,
    out: &Path,
    shard_bytes: u64,
    progress: Progress<'_>,
) -> Result<(), SynthError> {
    let target = Target::new(out, false, "config.json")?;
    let text = pretty(&shape.config())?;
    let config = ModelConfig::from_json(&text, &target.dir().join("config.json"))?;
    target.write("config.json", &text)?;
    shape
        .text
        .write(config.vocab_size, config.max_position_embeddings, &target)?;

    let shards = shards(tensors(&config), shard_bytes);
    let total: usize = shards.iter().flatten().map(|spec| spec.bytes).sum();
    let mut written = 0;
    let mut advance = |bytes: usize| {
        written += bytes;
        progress(Stage::Base, written >> 20, total.div_ceil(1 << 20));
    };
    advance(0);
    let names: Vec<String> = match shards.len() {
        1 => vec!["model.safetensors".to_owned()],
        count => (1..=count)
            .map(|i| format!("model-{i:05}-of-{count:05}.safetensors"))
            .collect(),
    };
    let mut weight_map = serde_json::Map::new();
    for (name, specs) in names.iter().zip(shards) {
        let mut writer = TensorFileWriter::create(&target.dir().join(name), specs.clone())?;
        for spec in specs {
            let (mean, deviation) = distribution(&config, &spec.name);
            let streams = Streams::new(seed, &spec.name);
            let elements = spec.bytes / 2;
            let parts = (0..elements).step_by(PART).map(|from| {
                let part = streams.gaussian_bf16(from, (elements - from).min(PART), mean, deviation);
                advance(part.len());
                part
            });
            writer.tensor_in_parts(parts)?;
            weight_map.insert(spec.name, name.as_str().into());
        }
        writer.finish()?;
    }
    if names.len() > 1 {
        weight_map.sort_keys();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
        target.write("model.safetensors.index.json", &pretty(&index)?)?;
    }
    target.publish()?;
    Ok(())
}

/// Deviation of the weights of a linear.
pub(super) fn linear_deviation(config: &ModelConfig, kind: LinearKind) -> f32 {
    let (_, inputs) = config.linear_shape(kind);
    1.0 / (inputs as f32).sqrt()
}

/// Mean and deviation of a tensor.
fn distribution(config: &ModelConfig, name: &str) -> (f32, f32) {
    if let Some(id) = LinearId::from_weight(name) {
        (0.0, linear_deviation(config, id.kind))
    } else if matches!(name, layout::EMBEDDING | layout::HEAD) {
        (0.0, 1.0 / (config.hidden_size as f32).sqrt())
    } else if name.ends_with(".bias") {
        (0.0, BIAS_DEVIATION)
    } else {
        (1.0, NORM_DEVIATION)
    }
}

/// The tensors in the order in which a forward pass meets them.
fn tensors(config: &ModelConfig) -> Vec<TensorSpec> {
    let mut specs: Vec<TensorSpec> = config
        .tensors()
        .into_iter()
        .map(|(name, shape)| TensorSpec {
            bytes: 2 * shape.iter().product::<usize>(),
            name,
            dtype: "BF16",
            shape,
        })
        .collect();
    let place = |name: &str| match name {
        layout::EMBEDDING => (0, 0),
        layout::FINAL_NORM => (2, 0),
        layout::HEAD => (3, 0),
        _ => {
            let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
            (1, layer.and_then(|(layer, _)| layer.parse::<usize>().ok()).unwrap_or(0))
        }
    };
    specs.sort_by(|a, b| (place(&a.name), &a.name).cmp(&(place(&b.name), &b.name)));
    specs
}

/// Cuts the tensors into files of at most `limit` bytes, or of one tensor.
fn shards(specs: Vec<TensorSpec>, limit: u64) -> Vec<Vec<TensorSpec>> {
    let mut shards: Vec<Vec<TensorSpec>> = Vec::new();
    let mut room = 0;
    for spec in specs {
        let bytes = spec.bytes as u64;
        match shards.last_mut() {
            Some(last) if bytes <= room => last.push(spec),
            _ => {
                room = limit.max(bytes);
                shards.push(vec![spec]);
            }
        }
        room -= bytes;
    }
    shards
}

#[cfg(test)]
mod tests {
    use deltamux_model::Checkpoint;

    use super::*;

    #[test]
    fn a_base_in_many_files_is_the_same_base() {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape::from_name("tiny").unwrap();
        let digest = |name: &str, seed: u64, shard_bytes: u64| {
            let out = dir.path().join(name);
            write(shape, seed, &out, shard_bytes, &|_, _, _| {}).unwrap();
            let base = Checkpoint::open(&out).unwrap();
            base.check_finite().unwrap();
            base.digest()
        };
        let one = digest("one", 1, SHARD_BYTES);
        assert_eq!(digest("many", 1, 200_000), one);
        assert_ne!(digest("other", 2, SHARD_BYTES), one);
        assert!(dir.path().join("one/model.safetensors").is_file());
        let many = fs_err::read_dir(dir.path().join("many")).unwrap();
        let files: Vec<_> = many
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.path().extension().is_some_and(|e| e == "safetensors"))
            .collect();
        assert!(files.len() > 2);
        // Headers aside; the embedding alone is 256 KiB.
        let longest = files.iter().map(|entry| entry.metadata().unwrap().len()).max();
        assert!(longest < Some((1 << 18) + 10_000));
    }
}
