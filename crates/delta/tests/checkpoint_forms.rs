//! The same fine-tune in the forms in which users have it: other types, several files, another chat template, a head of
//! its own.

mod common;

use std::path::Path;

use common::{Tensor, copy_dir, options, run, tensors, tiny};
use deltamux_delta::{Artifact, CompressOptions};
use deltamux_model::Checkpoint;
use half::{bf16, f16};
use serde_json::{Value, json};

/// Writes tensors as one safetensors file.
fn write(path: &Path, all: &[Tensor]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for t in all {
        let start = data.len();
        data.extend(&t.bytes);
        let entry = json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [start, data.len()]});
        header.insert(t.name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    fs_err::write(
        path,
        [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat(),
    )
    .unwrap();
}

/// A copy of the tiny fine-tune for `route` at `to` with every tensor changed.
fn changed(to: &Path, change: impl Fn(&mut Tensor)) {
    copy_dir(&tiny("route"), to);
    let mut all = tensors(&to.join("model.safetensors"));
    all.iter_mut().for_each(change);
    write(&to.join("model.safetensors"), &all);
}

fn values(tensor: &Tensor) -> impl Iterator<Item = f32> + '_ {
    let pairs = tensor.bytes.chunks_exact(2);
    pairs.map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())
}

/// The packed file of an artifact of `tuned`.
fn packed(tuned: &Path, dir: &Path, name: &str) -> Vec<u8> {
    let out = dir.join(name);
    run(&tiny("base"), tuned, &out, &options("route", 8, dir)).unwrap();
    fs_err::read(out.join("delta.safetensors")).unwrap()
}

#[test]
fn shards_give_the_same_bytes_as_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let tuned = dir.path().join("tuned");
    copy_dir(&tiny("route"), &tuned);
    let all = tensors(&tuned.join("model.safetensors"));
    fs_err::remove_file(tuned.join("model.safetensors")).unwrap();
    let mut map = serde_json::Map::new();
    for (part, all) in all.chunks(all.len().div_ceil(3)).enumerate() {
        let name = format!("model-0000{}-of-00003.safetensors", part + 1);
        write(&tuned.join(&name), all);
        map.extend(all.iter().map(|t| (t.name.clone(), Value::from(name.clone()))));
    }
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    fs_err::write(tuned.join("model.safetensors.index.json"), index).unwrap();
    assert!(packed(&tuned, dir.path(), "shards") == packed(&tiny("route"), dir.path(), "one"));
}

#[test]
fn a_checkpoint_in_f32_or_f16_is_compressed_as_that_in_bf16() {
    let dir = tempfile::tempdir().unwrap();
    let base = Checkpoint::open(&tiny("base")).unwrap();
    let dense = |name: &str| {
        let variant = Artifact::open(&dir.path().join(name))
            .unwrap()
            .load(base.config(), &base.digest())
            .unwrap();
        let linears: std::collections::BTreeMap<_, _> = variant.linears.into_iter().collect();
        linears.values().flat_map(|d| d.to_dense()).collect::<Vec<f32>>()
    };
    packed(&tiny("route"), dir.path(), "bf16");
    let expected = dense("bf16");
    let size: f64 = expected.iter().map(|&x| f64::from(x).powi(2)).sum();
    for dtype in ["F32", "F16"] {
        let tuned = dir.path().join(format!("tuned-{dtype}"));
        changed(&tuned, |t| {
            t.bytes = match dtype {
                "F32" => values(t).flat_map(f32::to_le_bytes).collect(),
                _ => values(t).flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
            };
            t.dtype = dtype;
        });
        packed(&tuned, dir.path(), dtype);
        // The weights are the same (f16 holds them but for the tiniest), the calibration runs in other arithmetic.
        let rest: f64 = dense(dtype)
            .iter()
            .zip(&expected)
            .map(|(a, b)| f64::from(a - b).powi(2))
            .sum();
        assert!(rest < 0.2 * size, "{dtype}: {}", rest / size);
    }
}

#[test]
fn a_chat_template_of_its_own_travels_with_the_variant() {
    let dir = tempfile::tempdir().unwrap();
    let tuned = dir.path().join("tuned");
    copy_dir(&tiny("route"), &tuned);
    let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
    fs_err::write(tuned.join("chat_template.jinja"), template).unwrap();
    let out = dir.path().join("out");
    let made = run(&tiny("base"), &tuned, &out, &options("route", 8, dir.path())).unwrap();
    let found = fs_err::read_to_string(out.join("chat_template.jinja")).unwrap();
    assert_eq!(found, template);
    assert!(made.manifest.files.iter().any(|f| f.name == "chat_template.jinja"));
    // What equals the base's does not.
    assert!(!out.join("tokenizer.json").exists());
}

#[test]
fn a_head_of_its_own_is_refused_for_a_base_whose_head_is_tied() {
    let dir = tempfile::tempdir().unwrap();
    let tuned = dir.path().join("tuned");
    copy_dir(&tiny("route"), &tuned);
    let path = tuned.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs_err::read(&path).unwrap()).unwrap();
    config["tie_word_embeddings"] = false.into();
    fs_err::write(&path, config.to_string()).unwrap();
    let mut all = tensors(&tuned.join("model.safetensors"));
    let embedding = all.iter().find(|t| t.name == "model.embed_tokens.weight").unwrap();
    let head = Tensor {
        name: "lm_head.weight".to_string(),
        ..embedding.clone()
    };
    all.push(head);
    write(&tuned.join("model.safetensors"), &all);
    let error = run(&tiny("base"), &tuned, &dir.path().join("out"), &CompressOptions::new())
        .unwrap_err()
        .to_string();
    assert!(error.contains("tie_word_embeddings is false, but true"), "{error}");
    assert!(!error.contains('\n') && !dir.path().join("out").exists());
}
