//! One test for each way in which an artifact can be broken: refused with a line that names what is wrong.

mod common;

use std::path::Path;
use std::sync::OnceLock;

use common::{artifact, copy_dir, rewrite, tiny};
use deltamux_delta::artifact::{EmbeddingInfo, Manifest, Storage};
use deltamux_delta::{Artifact, ArtifactError};
use deltamux_model::Checkpoint;

/// One good artifact for all tests.
fn good() -> &'static Path {
    static GOOD: OnceLock<(tempfile::TempDir, std::path::PathBuf)> = OnceLock::new();
    let (_, path) = GOOD.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = artifact("route", dir.path());
        (dir, path)
    });
    path
}

fn load(dir: &Path) -> Result<(), ArtifactError> {
    let base = Checkpoint::open(&tiny("base")).unwrap();
    Artifact::open(dir)?.load(base.config(), &base.digest()).map(|_| ())
}

/// The error's text: of opening, loading or inspecting, which all must agree that something is wrong.
fn refused(dir: &Path) -> String {
    let error = load(dir).unwrap_err().to_string();
    assert!(!error.contains('\n'), "one line: {error}");
    error
}

fn damaged(change: impl FnOnce(&Path)) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("route");
    copy_dir(good(), &copy);
    change(&copy);
    (dir, copy)
}

#[test]
fn the_artifact_that_the_tests_damage_is_good() {
    load(good()).unwrap();
    Artifact::open(good()).unwrap().inspect().unwrap();
}

#[test]
fn a_truncated_file_is_refused_with_both_lengths() {
    let (_dir, path) = damaged(|dir| {
        let file = dir.join("delta.safetensors");
        let bytes = fs_err::read(&file).unwrap();
        fs_err::write(&file, &bytes[..bytes.len() - 7]).unwrap();
    });
    let length = fs_err::metadata(good().join("delta.safetensors")).unwrap().len();
    let error = refused(&path);
    assert!(
        error.contains("delta.safetensors") && error.contains("truncated"),
        "{error}"
    );
    assert!(
        error.contains(&length.to_string()) && error.contains(&(length - 7).to_string()),
        "{error}"
    );
    assert!(Artifact::open(&path).unwrap().inspect().is_err());
}

#[test]
fn a_changed_byte_is_refused_wherever_it_is() {
    let length = fs_err::metadata(good().join("delta.safetensors")).unwrap().len() as usize;
    for at in [3, 9, length / 2, length - 1] {
        let (_dir, path) = damaged(|dir| {
            let file = dir.join("delta.safetensors");
            let mut bytes = fs_err::read(&file).unwrap();
            bytes[at] ^= 1;
            fs_err::write(&file, bytes).unwrap();
        });
        let error = refused(&path);
        assert!(
            error.contains("SHA-256") && error.contains("delta.safetensors"),
            "{error}"
        );
    }
}

#[test]
fn a_missing_file_is_named() {
    let (_dir, path) = damaged(|dir| fs_err::remove_file(dir.join("delta.safetensors")).unwrap());
    assert!(refused(&path).contains("delta.safetensors"));
}

#[test]
fn a_directory_without_manifest_is_no_artifact() {
    let (_dir, path) = damaged(|dir| fs_err::remove_file(dir.join("manifest.json")).unwrap());
    assert!(refused(&path).contains("no manifest.json"));
    assert!(load(&tiny("base")).is_err());
}

#[test]
fn a_manifest_that_is_not_json_or_of_another_version_is_refused() {
    let manifest = |text: &str| {
        let (_dir, path) = damaged(|dir| fs_err::write(dir.join("manifest.json"), text).unwrap());
        refused(&path)
    };
    assert!(manifest("{\"format_version\": 1").contains("not JSON"));
    assert!(manifest("{\"format_version\": 99}").contains("format version 99"));
    assert!(manifest("{}").contains("no `format_version`"));
    // The first version had one width for both factors.
    let old = manifest("{\"format_version\": 1}");
    assert!(
        old.contains("format version 1") && old.contains("compress again"),
        "{old}"
    );
    assert!(manifest("{\"format_version\": 2}").contains("missing field"));
}

#[test]
fn a_manifest_may_not_name_files_outside_the_artifact() {
    let (_dir, path) = damaged(|dir| {
        let text = fs_err::read_to_string(dir.join("manifest.json")).unwrap();
        fs_err::write(
            dir.join("manifest.json"),
            text.replace("delta.safetensors", "../delta.safetensors"),
        )
        .unwrap();
    });
    assert!(refused(&path).contains("delta.safetensors"));
}

#[test]
fn another_base_is_refused_with_both_digests() {
    let base = Checkpoint::open(&tiny("date")).unwrap();
    let error = Artifact::open(good())
        .unwrap()
        .load(base.config(), &base.digest())
        .unwrap_err();
    assert!(matches!(error, ArtifactError::OtherBase { .. }));
    let text = error.to_string();
    let ours = Checkpoint::open(&tiny("base")).unwrap().digest();
    assert!(text.contains(&ours) && text.contains(&base.digest()), "{text}");
}

fn rewritten(change: impl FnOnce(&mut Vec<common::Tensor>, &mut Manifest)) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("changed");
    rewrite(good(), &path, change);
    (dir, path)
}

#[test]
fn rewriting_without_a_change_is_still_good() {
    let (_dir, path) = rewritten(|_, _| {});
    load(&path).unwrap();
}

#[test]
fn a_missing_tensor_is_named() {
    let (_dir, path) = rewritten(|tensors, _| tensors.retain(|t| t.name != "model.layers.2.mlp.up_proj"));
    let error = refused(&path);
    assert!(error.contains("`model.layers.2.mlp.up_proj` is missing"), "{error}");
}

#[test]
fn foreign_tensor_names_are_listed() {
    // https://github.com/vllm-project/vllm/issues/34186
    let (_dir, path) = rewritten(|tensors, _| {
        for tensor in tensors.iter_mut() {
            tensor.name = format!("base_model.{}", tensor.name);
        }
    });
    let error = refused(&path);
    assert!(error.contains("match nothing in the base"), "{error}");
    assert!(error.contains("`base_model.model.layers.0.mlp.down_proj`"), "{error}");

    let (_dir, path) = rewritten(|tensors, manifest| {
        tensors[0].name = "model.layers.7.mlp.up_proj".to_string(); // the base has four layers
        manifest.linears.remove(0);
    });
    assert!(refused(&path).contains("`model.layers.7.mlp.up_proj`"));
}

#[test]
fn a_tensor_that_the_manifest_does_not_list_is_refused() {
    let (_dir, path) = rewritten(|_, manifest| {
        manifest.linears.pop();
    });
    assert!(refused(&path).contains("does not list"));
}

#[test]
fn a_wrong_shape_is_refused_naming_both() {
    // https://github.com/vllm-project/vllm/pull/11727
    let (_dir, path) = rewritten(|_, manifest| manifest.linears[0].shape[0] += 8);
    let error = refused(&path);
    assert!(error.contains("[264, 256]") && error.contains("[256, 256]"), "{error}");

    let (_dir, path) = rewritten(|tensors, _| {
        let tensor = tensors.iter_mut().find(|t| t.dtype == "U8").unwrap();
        tensor.bytes.pop();
        tensor.shape[0] -= 1;
    });
    assert!(refused(&path).contains("take"));
}

#[test]
fn other_ranks_than_the_manifest_says_are_refused() {
    let (_dir, path) = rewritten(|_, manifest| {
        let linear = &mut manifest.linears[0];
        linear.ranks += 1;
        *linear.bits.entry("2".to_string()).or_default() += 1;
        *linear.bits_u.entry("2".to_string()).or_default() += 1;
    });
    assert!(refused(&path).contains("but the manifest says"));

    let (_dir, path) = rewritten(|_, manifest| {
        *manifest.linears[0].bits_u.entry("2".to_string()).or_default() += 1;
    });
    assert!(refused(&path).contains("its widths of U add up to"));
}

#[test]
fn packed_factors_of_an_unknown_coding_or_of_unequal_ranks_are_refused() {
    let change = |at: usize| {
        let (_dir, path) = rewritten(|tensors, _| {
            let tensor = tensors.iter_mut().find(|t| t.dtype == "U8").unwrap();
            tensor.bytes[at] += 2;
        });
        refused(&path)
    };
    let error = change(0);
    assert!(error.contains("coding 2") || error.contains("coding 3"), "{error}");
    // The count of ranks of two bits of U.
    let error = change(19);
    assert!(error.contains("ranks of V, but"), "{error}");
}

/// One good artifact of signs for all tests.
fn good_signs() -> &'static Path {
    static GOOD: OnceLock<(tempfile::TempDir, std::path::PathBuf)> = OnceLock::new();
    let (_, path) = GOOD.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = common::signs("route", dir.path());
        (dir, path)
    });
    path
}

/// The error of signs that were changed; `inspect` must refuse them, too.
fn refused_signs(change: impl FnOnce(&mut Vec<u8>, &mut Manifest)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("changed");
    rewrite(good_signs(), &path, |tensors, manifest| {
        let name = &manifest.linears[0].name;
        let tensor = tensors.iter_mut().find(|t| t.name == *name).unwrap();
        change(&mut tensor.bytes, manifest);
        tensor.shape[0] = tensor.bytes.len();
    });
    let error = refused(&path);
    assert_eq!(Artifact::open(&path).unwrap().inspect().unwrap_err().to_string(), error);
    error
}

#[test]
fn the_signs_that_the_tests_damage_are_good() {
    load(good_signs()).unwrap();
    Artifact::open(good_signs()).unwrap().inspect().unwrap();
}

#[test]
fn signs_of_another_length_or_another_kind_of_scales_are_refused() {
    let error = refused_signs(|bytes, _| {
        bytes.pop();
    });
    assert!(
        error.contains("self_attn.q_proj`: 8197 bytes") && error.contains("take 8198"),
        "{error}"
    );
    // A scale for each output would take more bytes.
    let error = refused_signs(|bytes, _| bytes[1] = 1);
    assert!(error.contains("scales (256) take 9218"), "{error}");
    let error = refused_signs(|bytes, _| bytes[1] = 7);
    assert!(error.contains("scales of kind 7"), "{error}");
    let error = refused_signs(|bytes, _| bytes.truncate(1));
    assert!(error.contains("at least 6"), "{error}");
}

#[test]
fn signs_with_a_scale_that_is_not_finite_are_refused() {
    for scale in [f32::NAN, f32::INFINITY] {
        let error = refused_signs(|bytes, _| bytes[2..6].copy_from_slice(&scale.to_le_bytes()));
        assert!(error.contains("q_proj`: a scale is not finite"), "{error}");
    }
}

#[test]
fn signs_where_the_manifest_says_factors_are_refused_and_the_other_way_round() {
    let error = refused_signs(|bytes, _| bytes[0] = 1);
    assert!(error.contains("coding 1; expected 2 (signs)"), "{error}");
    // A build without signs reads such a manifest: the tensor is there, but no rank is listed.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("changed");
    rewrite(good_signs(), &path, |_, manifest| {
        manifest.linears[0].storage = Storage::Factors
    });
    assert!(refused(&path).contains("does not list"));
    let path = dir.path().join("ranks");
    rewrite(good_signs(), &path, |_, manifest| {
        let linear = &mut manifest.linears[0];
        (linear.storage, linear.ranks) = (Storage::Factors, 1);
        linear.bits.insert("2".to_string(), 1);
        linear.bits_u.insert("2".to_string(), 1);
    });
    assert!(refused(&path).contains("coding 2; expected 0"));
    let path = dir.path().join("both");
    rewrite(good_signs(), &path, |_, manifest| manifest.linears[0].ranks = 1);
    assert!(refused(&path).contains("both signs and ranks"));
    let (_dir, path) = rewritten(|_, manifest| {
        let linear = &mut manifest.linears[0];
        (linear.storage, linear.ranks) = (Storage::Signs, 0);
        linear.bits.clear();
        linear.bits_u.clear();
    });
    assert!(refused(&path).contains("expected 2 (signs)"));
}

#[test]
fn a_scale_that_is_not_finite_is_refused() {
    let (_dir, path) = rewritten(|tensors, _| {
        let tensor = tensors.iter_mut().find(|t| t.dtype == "U8").unwrap();
        // The first singular value, after the coding, ten counts and the unit.
        tensor.bytes[25..27].copy_from_slice(&[0xff, 0x7f]);
    });
    assert!(refused(&path).contains("not finite"));
}

#[test]
fn exact_vectors_of_another_length_or_with_nan_are_refused() {
    let (_dir, path) = rewritten(|tensors, _| {
        let tensor = tensors.iter_mut().find(|t| t.name == "model.norm.weight").unwrap();
        tensor.bytes.truncate(2);
        tensor.shape = vec![1];
    });
    assert!(refused(&path).contains("`model.norm.weight` has shape [1]"));
    let (_dir, path) = rewritten(|tensors, _| {
        let tensor = tensors.iter_mut().find(|t| t.name == "model.norm.weight").unwrap();
        tensor.bytes[4..6].copy_from_slice(&[0xc0, 0x7f]);
    });
    assert!(refused(&path).contains("NaN at index 2"));
}

#[test]
fn a_figure_changed_in_the_manifest_is_noticed() {
    let (_dir, path) = damaged(|dir| {
        let file = dir.join("manifest.json");
        let text = fs_err::read_to_string(&file).unwrap();
        fs_err::write(&file, text.replacen("\"method\": \"", "\"method\": \"better ", 1)).unwrap();
    });
    let error = refused(&path);
    assert!(error.contains("manifest.json") && error.contains("SHA-256"), "{error}");
}

#[test]
fn an_embedding_that_is_not_stored_as_the_manifest_says_is_refused() {
    let refused_as = |embedding: EmbeddingInfo| {
        let (_dir, path) = rewritten(|_, manifest| manifest.embedding = embedding);
        let error = refused(&path);
        let inspected = Artifact::open(&path).unwrap().inspect().unwrap_err().to_string();
        assert_eq!(error, inspected);
        error
    };
    let none = "holds 0 ranks and 0 exact rows of `model.embed_tokens`, but the manifest says";
    for (embedding, listed) in [
        (EmbeddingInfo::Full { bytes: 1 }, "the whole matrix"),
        (EmbeddingInfo::Rows { rows: 3, bytes: 1 }, "0 ranks and 3 exact rows"),
        (
            EmbeddingInfo::Signs {
                rows: 0,
                bytes: 1,
                rel_error: None,
            },
            "signs and 0 exact rows",
        ),
        (
            EmbeddingInfo::Factored {
                ranks: 4,
                rows: 0,
                bytes: 1,
                rel_error: None,
            },
            "4 ranks and 0 exact rows",
        ),
    ] {
        let error = refused_as(embedding);
        assert!(error.contains(none) && error.contains(listed), "{error}");
    }
}

#[test]
fn a_manifest_that_counts_memory_for_another_base_is_refused() {
    let (_dir, path) = rewritten(|_, manifest| manifest.base.hidden_size = 0);
    assert!(refused(&path).contains("hidden size of 0"));
    let (_dir, path) = rewritten(|_, manifest| manifest.base.vocab_size = 1 << 62);
    let error = Artifact::open(&path).unwrap_err().to_string();
    assert!(error.contains("base.vocab_size"), "{error}");
}
