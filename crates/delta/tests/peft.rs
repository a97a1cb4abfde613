//! LoRA adapters in PEFT's format, held against what numpy merges from them, and what is wrong with others.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{Tensor, copy_dir, tensors, tiny};
use deltamux_delta::artifact::{ArtifactWriter, Target};
use deltamux_delta::peft::{Adapter, CONFIG_FILE, PeftError, WEIGHTS_FILE};
use deltamux_model::{Checkpoint, LinearId, ModelConfig};
use proptest::prelude::*;
use serde::Deserialize;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn base() -> ModelConfig {
    ModelConfig::from_dir(&tiny("base")).unwrap()
}

#[derive(Deserialize)]
struct Golden {
    shape: Vec<usize>,
    change: f64,
    samples: Vec<(usize, f64)>,
}

#[test]
fn merged_weights_are_those_that_numpy_makes() {
    let base = Checkpoint::open(&tiny("base")).unwrap();
    let adapter = Adapter::open(&fixture("adapter"), base.config()).unwrap();
    assert!(Adapter::is_one(&fixture("adapter")) && !Adapter::is_one(&tiny("base")));
    assert_eq!(adapter.base_name(), Some("models/tiny/base"));
    let golden: BTreeMap<String, Golden> =
        serde_json::from_slice(&fs_err::read(fixture("adapter.json")).unwrap()).unwrap();
    for (name, shape) in base.config().tensors() {
        let before = base.tensor(&name).unwrap().to_f32();
        let mut merged = before.clone();
        adapter.merge(&name, &mut merged);
        let Some(golden) = golden.get(&name) else {
            assert!(merged == before, "{name} is not in the adapter");
            continue;
        };
        assert_eq!(shape, golden.shape);
        for &(index, value) in &golden.samples {
            assert!(
                (f64::from(merged[index]) - value).abs() <= 1e-6 * value.abs().max(0.1),
                "{name} {index}"
            );
        }
        let squares = merged
            .iter()
            .zip(&before)
            .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2));
        assert!(
            (squares.sum::<f64>().sqrt() / golden.change - 1.0).abs() < 1e-5,
            "{name}"
        );
    }
    let id = LinearId::from_weight("model.layers.1.self_attn.v_proj.weight").unwrap();
    let v = adapter.difference(id).unwrap();
    assert_eq!((v.outputs(), v.inputs(), v.rank()), (64, 256, 2));
    assert!((v.scale() - 5.0 / 2f32.sqrt()).abs() < 1e-6);
    assert_eq!((v.a().len(), v.b().len()), (2 * 256, 64 * 2));
    assert_eq!(adapter.linears().count(), 4);
    assert!(adapter.embedding().is_some() && adapter.head().is_none());
    assert_eq!(adapter.replaced().len(), 2);
}

/// Writes the fixture with other tensors and another configuration to `dir/name`, and opens it.
fn changed(
    dir: &Path,
    tensors_changed: impl FnOnce(&mut Vec<Tensor>),
    config_changed: impl FnOnce(&mut serde_json::Value),
) -> Result<Adapter, PeftError> {
    let out = dir.join("adapter");
    if out.exists() {
        fs_err::remove_dir_all(&out).unwrap();
    }
    let mut all = tensors(&fixture("adapter").join(WEIGHTS_FILE));
    tensors_changed(&mut all);
    let target = Target::new(&out, false, "x").unwrap();
    let mut writer = ArtifactWriter::new();
    for tensor in all {
        writer.raw(&tensor.name, tensor.dtype, tensor.shape, tensor.bytes);
    }
    writer.write(&target).unwrap();
    target.publish().unwrap();
    fs_err::rename(out.join("delta.safetensors"), out.join(WEIGHTS_FILE)).unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&fs_err::read(fixture("adapter").join(CONFIG_FILE)).unwrap()).unwrap();
    config_changed(&mut config);
    fs_err::write(out.join(CONFIG_FILE), config.to_string()).unwrap();
    Adapter::open(&out, &base())
}

fn zeros(name: &str, shape: &[usize]) -> Tensor {
    Tensor {
        name: format!("base_model.model.{name}"),
        dtype: "F32",
        shape: shape.to_vec(),
        bytes: vec![0; 4 * shape.iter().product::<usize>()],
    }
}

const Q0: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |words: &[&str], change: &dyn Fn(&mut Vec<Tensor>)| {
        let error = changed(dir.path(), |all| change(all), |_| {}).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        for word in words {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    };
    let find = |all: &[Tensor], name: &str| all.iter().position(|t| t.name == name).unwrap();
    refused(&["A of", "layers.0.self_attn.q_proj", "missing"], &|all| {
        all.retain(|t| t.name != Q0)
    });
    refused(&["B of", "layers.0.self_attn.q_proj", "missing"], &|all| {
        all.retain(|t| t.name != Q0.replace("lora_A", "lora_B"));
    });
    refused(&[Q0, "4 rows", "3 columns"], &|all| {
        let at = find(all, &Q0.replace("lora_A", "lora_B"));
        all[at] = zeros("model.layers.0.self_attn.q_proj.lora_B.weight", &[256, 3]);
    });
    refused(&["rank 5", "say 4"], &|all| {
        all.retain(|t| !t.name.contains("layers.0.self_attn.q_proj.lora"));
        all.push(zeros("model.layers.0.self_attn.q_proj.lora_A.weight", &[5, 256]));
        all.push(zeros("model.layers.0.self_attn.q_proj.lora_B.weight", &[256, 5]));
    });
    refused(&["[256, 128]", "[256, 256]", "another base"], &|all| {
        let at = find(all, Q0);
        all[at] = zeros("model.layers.0.self_attn.q_proj.lora_A.weight", &[4, 128]);
    });
    refused(&["matrices", "[4]"], &|all| {
        let at = find(all, Q0);
        all[at] = zeros("model.layers.0.self_attn.q_proj.lora_A.weight", &[4]);
    });
    refused(&[Q0, "NaN"], &|all| {
        let at = find(all, Q0);
        all[at].bytes[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    refused(&["input_layernorm", "[255]", "[256]"], &|all| {
        let at = all.iter().position(|t| t.name.contains("input_layernorm")).unwrap();
        all[at] = zeros("model.layers.3.input_layernorm.weight", &[255]);
    });
    refused(&["unknown tensor", "layers.9.self_attn.q_proj", "4 layers"], &|all| {
        all.push(zeros("model.layers.9.self_attn.q_proj.lora_A.weight", &[4, 256]));
    });
    refused(&["unknown tensor", "token_adapter"], &|all| {
        all.push(zeros(
            "model.embed_tokens.token_adapter.trainable_tokens_delta",
            &[3, 256],
        ));
    });
    refused(&["lora_magnitude_vector", "DoRA"], &|all| {
        all.push(zeros("model.layers.0.self_attn.q_proj.lora_magnitude_vector", &[256]));
    });
    refused(&["lora_B", "only the matrix"], &|all| {
        all.push(zeros("model.layers.0.self_attn.q_proj.lora_B.bias", &[256]));
    });
    refused(&["output head", "ties"], &|all| {
        all.push(zeros("lm_head.weight", &[1454, 256]))
    });
    refused(&["same matrix"], &|all| {
        all.push(zeros(
            "model.layers.0.self_attn.q_proj.lora_A.default.weight",
            &[4, 256],
        ));
    });
    refused(&["two names"], &|all| {
        all.push(zeros(
            "model.layers.3.input_layernorm.modules_to_save.default.weight",
            &[256],
        ));
    });
    refused(&["do not belong"], &|all| {
        all.retain(|t| !t.name.contains("embed_tokens"));
        all.push(zeros("model.embed_tokens.lora_A.weight", &[4, 256]));
        all.push(zeros("model.embed_tokens.lora_B.weight", &[1454, 4]));
    });
    refused(&["vector"], &|all| {
        all.push(zeros("model.layers.0.input_layernorm.lora_A.weight", &[4, 256]));
        all.push(zeros("model.layers.0.input_layernorm.lora_B.weight", &[256, 4]));
    });
    refused(&["begin with base_model.model"], &|all| {
        all.push(Tensor {
            name: "model.norm.weight".to_string(),
            ..zeros("", &[256])
        });
    });
    refused(&["type U8"], &|all| {
        let at = find(all, Q0);
        all[at] = Tensor {
            dtype: "U8",
            bytes: vec![0; 1024],
            ..all[at].clone()
        };
    });
}

#[test]
fn an_embedding_may_have_other_rows() {
    let dir = tempfile::tempdir().unwrap();
    let adapter = changed(
        dir.path(),
        |all| {
            all.retain(|t| !t.name.contains("embed_tokens"));
            all.push(zeros("model.embed_tokens.modules_to_save.default.weight", &[1460, 256]));
            all.push(zeros("model.embed_tokens.lora_embedding_A", &[4, 1460]));
            all.push(zeros("model.embed_tokens.lora_embedding_B", &[256, 4]));
        },
        |_| {},
    )
    .unwrap();
    assert_eq!(adapter.replaced()["model.embed_tokens.weight"].shape, [1460, 256]);
    let mut values = vec![1.0; 1454 * 256];
    adapter.merge("model.embed_tokens.weight", &mut values);
    assert_eq!(values, vec![0.0; 1460 * 256]);
}

#[test]
fn the_configuration_is_refused_by_field() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |word: &str, field: &str, value: serde_json::Value| {
        let error = changed(dir.path(), |_| {}, |config| config[field] = value)
            .unwrap_err()
            .to_string();
        assert!(error.contains(word) && error.contains(CONFIG_FILE), "{error}");
    };
    refused("IA3", "peft_type", "IA3".into());
    refused("DoRA", "use_dora", true.into());
    refused("init_lora_weights", "init_lora_weights", "pissa".into());
    refused("rank 0", "r", 0.into());
    refused("lora_alpha", "lora_alpha", serde_json::Value::Null);
    refused("invalid type", "r", "8".into());
    refused("finite", "lora_alpha", 1e300.into());
}

#[test]
fn files_that_are_missing_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = |name: &str| Adapter::open(&dir.path().join(name), &base()).unwrap_err().to_string();
    assert!(error("nothing").contains(CONFIG_FILE));
    copy_dir(&fixture("adapter"), &dir.path().join("a"));
    fs_err::remove_file(dir.path().join("a").join(WEIGHTS_FILE)).unwrap();
    assert!(error("a").contains(WEIGHTS_FILE));
    fs_err::write(dir.path().join("a/adapter_model.bin"), b"\x80\x02}").unwrap();
    let message = error("a");
    assert!(
        message.contains("pickle") && message.contains(WEIGHTS_FILE),
        "{message}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever becomes of the two files, an answer comes; what is accepted can be merged.
    #[test]
    fn mangled_files_are_refused_or_read(
        config_edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        weight_edits in proptest::collection::vec((0..1500usize, any::<u8>()), 0..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut config = fs_err::read(fixture("adapter").join(CONFIG_FILE)).unwrap();
        let mut weights = fs_err::read(fixture("adapter").join(WEIGHTS_FILE)).unwrap();
        for (at, byte) in config_edits {
            let at = at.index(config.len());
            config[at] = byte;
        }
        for (at, byte) in weight_edits {
            weights[at] = byte;
        }
        if let Some(cut) = cut {
            weights.truncate(cut.index(weights.len()));
        }
        fs_err::write(dir.path().join(CONFIG_FILE), config).unwrap();
        fs_err::write(dir.path().join(WEIGHTS_FILE), weights).unwrap();
        let base = base();
        if let Ok(adapter) = Adapter::open(dir.path(), &base) {
            for (name, shape) in base.tensors() {
                adapter.merge(&name, &mut vec![0.0; shape.iter().product()]);
            }
        }
    }
}
