//! A LoRA adapter in PEFT's format, compressed: it becomes an artifact that holds what the adapter says.

mod common;

use std::path::{Path, PathBuf};

use common::{copy_dir, options, run, tiny};
use deltamux_delta::peft::Adapter;
use deltamux_delta::{Artifact, CompressOptions, EmbeddingPolicy, Method};
use deltamux_model::Checkpoint;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/adapter")
}

#[test]
fn an_adapter_is_stored_as_the_ranks_that_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let base = Checkpoint::open(&tiny("base")).unwrap();
    let adapter = Adapter::open(&fixture(), base.config()).unwrap();
    let out = dir.path().join("adapter");
    let made = run(&tiny("base"), &fixture(), &out, &options("sql", 12, dir.path())).unwrap();
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
    run(&tiny("base"), &fixture(), &out, &options).unwrap();
    let full = dir.path().join("full");
    deltamux_delta::restore(&tiny("base"), &out, &full, false, &|_, _| {}).unwrap();
    let base = Checkpoint::open(&tiny("base")).unwrap();
    let adapter = Adapter::open(&fixture(), base.config()).unwrap();
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
