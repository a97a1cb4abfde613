//! A LoRA adapter in PEFT's format, compressed: it becomes an artifact that holds what the adapter says.

mod common;

use std::path::{Path, PathBuf};

use common::{Tensor, copy_dir, options, run, tensors, tiny};
use deltamux_delta::artifact::{ArtifactWriter, Target};
use deltamux_delta::peft::Adapter;
use deltamux_delta::{Artifact, CompressOptions, EmbeddingPolicy, Method};
use deltamux_model::Checkpoint;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/adapter")
}

/// The fixture with other tensors, in `dir/name`.
fn changed(dir: &Path, name: &str, change: impl FnOnce(&mut Vec<Tensor>)) -> PathBuf {
    let out = dir.join(name);
    copy_dir(&fixture(), &out);
    let path = out.join("adapter_model.safetensors");
    let mut all = tensors(&path);
    change(&mut all);
    let made = dir.join(format!("{name}-tensors"));
    let target = Target::new(&made, false, "x").unwrap();
    let mut writer = ArtifactWriter::new();
    for tensor in all {
        writer.raw(&tensor.name, tensor.dtype, tensor.shape, tensor.bytes);
    }
    writer.write(&target).unwrap();
    target.publish().unwrap();
    fs_err::rename(made.join("delta.safetensors"), path).unwrap();
    out
}

/// The fixture without what it does to the embedding, which the tiny base ties to its head.
fn of_linears(dir: &Path) -> PathBuf {
    changed(dir, "of-linears", |all| {
        all.retain(|t| !t.name.contains("embed_tokens"))
    })
}

#[test]
fn an_adapted_embedding_under_a_tied_head_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let error = run(&tiny("base"), &fixture(), &out, &options("sql", 8, dir.path()))
        .unwrap_err()
        .to_string();
    assert!(error.contains("ties its output head"), "{error}");
    assert!(!out.exists());
}

#[test]
fn added_tokens_come_with_the_tied_head_that_peft_saves() {
    let dir = tempfile::tempdir().unwrap();
    let rows = 1460;
    let values: Vec<f32> = (0..rows * 256).map(|i| (i % 113) as f32 / 1000.0).collect();
    let with_head = |head: f32| {
        move |all: &mut Vec<Tensor>| {
            all.retain(|t| !t.name.contains("embed_tokens"));
            for (name, add) in [("model.embed_tokens", 0.0), ("lm_head", head)] {
                all.push(Tensor {
                    name: format!("base_model.model.{name}.weight"),
                    dtype: "F32",
                    shape: vec![rows, 256],
                    bytes: (0..rows * 256)
                        .flat_map(|i| ((i % 113) as f32 / 1000.0 + add).to_le_bytes())
                        .collect(),
                });
            }
        }
    };
    let adapter = changed(dir.path(), "grown", with_head(0.0));
    let out = dir.path().join("out");
    let options = CompressOptions {
        embeddings: EmbeddingPolicy::Exact,
        ..options("sql", 8, dir.path())
    };
    let made = run(&tiny("base"), &adapter, &out, &options).unwrap();
    assert_eq!(made.manifest.vocab_size, Some(rows));
    let full = dir.path().join("full");
    deltamux_delta::restore(&tiny("base"), &out, &full, false, &|_, _| {}).unwrap();
    let restored = Checkpoint::open(&full).unwrap();
    let embedding = restored.tensor("model.embed_tokens.weight").unwrap().to_f32();
    assert_eq!(embedding.len(), values.len());
    for (found, expected) in embedding.iter().zip(&values) {
        assert!((found - expected).abs() < 1e-3, "{found} {expected}");
    }
    // A head of its own is something else.
    let error = run(
        &tiny("base"),
        &changed(dir.path(), "other", with_head(0.5)),
        &dir.path().join("x"),
        &options,
    )
    .unwrap_err()
    .to_string();
    assert!(error.contains("another matrix than the embedding"), "{error}");
}

#[test]
fn factors_whose_product_overflows_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let huge = changed(dir.path(), "huge", |all| {
        all.retain(|t| !t.name.contains("embed_tokens"));
        for tensor in all
            .iter_mut()
            .filter(|t| t.name.contains("layers.1.self_attn.v_proj.lora_"))
        {
            let count: usize = tensor.shape.iter().product();
            tensor.dtype = "F32";
            tensor.bytes = (0..count).flat_map(|_| 1e30f32.to_le_bytes()).collect();
        }
    });
    let error = run(
        &tiny("base"),
        &huge,
        &dir.path().join("out"),
        &options("sql", 8, dir.path()),
    )
    .unwrap_err()
    .to_string();
    assert!(
        error.contains("layers.1.self_attn.v_proj") && error.contains("inf"),
        "{error}"
    );
}

#[test]
fn an_adapter_is_stored_as_the_ranks_that_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let base = Checkpoint::open(&tiny("base")).unwrap();
    let fixture = of_linears(dir.path());
    let adapter = Adapter::open(&fixture, base.config()).unwrap();
    let out = dir.path().join("adapter");
    let made = run(&tiny("base"), &fixture, &out, &options("sql", 12, dir.path())).unwrap();
    let artifact = Artifact::open(&out).unwrap();
    let variant = artifact.load(base.config(), &base.digest()).unwrap();

    let adapted: Vec<_> = adapter.linears().collect();
    assert!(!adapted.is_empty());
    for id in adapted {
        let difference = adapter.difference(id).unwrap();
        let (outputs, inputs) = base.config().linear_shape(id.kind);
        let mut expected = vec![0.0; outputs * inputs];
        difference.add_to(&mut expected);
        let largest = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
        let info = made.manifest.linears.iter().find(|l| l.name == id.to_string());
        if largest == 0.0 {
            assert!(info.is_none(), "{id} adds nothing");
            continue;
        }
        let info = info.unwrap();
        if adapter.replaced().contains_key(&id.weight()) {
            continue; // another matrix altogether
        }
        assert_eq!(info.bits.get("16"), Some(&difference.rank()), "{id}");
        assert!(info.rel_output_error.heldout.unwrap() < 1e-5, "{id}");
        for (found, expected) in variant.linears[&id].to_dense().iter().zip(&expected) {
            assert!((found - expected).abs() < 2e-3 * largest, "{id} {found} {expected}");
        }
    }
    // Whole tensors that came with it.
    for (name, replacement) in adapter.replaced() {
        if replacement.shape.len() == 1 {
            assert_eq!(variant.vectors[name], replacement.values, "{name}");
        }
    }
    assert!(made.manifest.totals.linear_ratio.unwrap() < 1.0 / 16.0);
}

#[test]
fn an_adapter_answers_as_the_checkpoint_that_it_merges_to() {
    // Of the same method and texts, the factors of both are the same but for the merged checkpoint's rounding.
    let dir = tempfile::tempdir().unwrap();
    let options = CompressOptions {
        method: Method::Prinmix,
        embeddings: EmbeddingPolicy::Exact,
        ..options("sql", 12, dir.path())
    };
    let out = dir.path().join("adapter");
    run(&tiny("base"), &of_linears(dir.path()), &out, &options).unwrap();
    fs_err::remove_dir_all(dir.path().join("of-linears")).unwrap();
    let full = dir.path().join("full");
    deltamux_delta::restore(&tiny("base"), &out, &full, false, &|_, _| {}).unwrap();
    let base = Checkpoint::open(&tiny("base")).unwrap();
    let fixture = of_linears(dir.path());
    let adapter = Adapter::open(&fixture, base.config()).unwrap();
    let restored = Checkpoint::open(&full).unwrap();
    for (name, _) in base.config().tensors() {
        let mut expected = base.tensor(&name).unwrap().to_f32();
        adapter.merge(&name, &mut expected);
        let found = restored.tensor(&name).unwrap().to_f32();
        let largest = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            // Stored in the base's bf16.
            assert!((found - expected).abs() < 0.01 * largest, "{name} {found} {expected}");
        }
    }
}

#[test]
fn an_adapter_that_does_not_fit_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken");
    copy_dir(&fixture(), &broken);
    fs_err::write(broken.join("adapter_config.json"), "{}").unwrap();
    let out = dir.path().join("out");
    let error = run(&tiny("base"), &broken, &out, &options("sql", 8, dir.path()))
        .unwrap_err()
        .to_string();
    assert!(error.contains("adapter_config.json"), "{error}");
    assert!(!out.exists());
}
