//! Artifacts that are damaged, or belong to another base.

use std::path::{Path, PathBuf};

use crate::support::{Broken, compress, json, names, refused, tiny};

/// One artifact of the route fine-tune, and the folder that it lies in.
fn artifact() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("route");
    compress("route", &path);
    (dir, path)
}

#[track_caller]
fn refused_everywhere(artifact: &Path, words: &[&str]) {
    refused(args!["inspect", artifact], words);
    let out = tempfile::tempdir().expect("a temporary folder");
    refused(
        args![
            "restore",
            "--base",
            tiny("base"),
            "--variant",
            artifact,
            "--out",
            out.path().join("model")
        ],
        words,
    );
    assert_eq!(names(out.path()), Vec::<String>::new(), "nothing is left behind");
    refused(
        args![
            "generate",
            "--base",
            tiny("base"),
            "--variant",
            artifact,
            "--prompt",
            "hello"
        ],
        words,
    );
}

#[test]
fn a_changed_byte_in_any_file() {
    let (_dir, path) = artifact();
    json(args!["inspect", &path, "--json"]);
    for name in names(&path) {
        let file = path.join(&name);
        let original = fs_err::read(&file).expect("a file");
        for at in [0, original.len() / 2, original.len() - 1] {
            let mut bytes = original.clone();
            bytes[at] ^= 1;
            fs_err::write(&file, bytes).expect("written");
            let output = crate::support::deltamux(args!["inspect", &path]);
            assert_eq!(output.status.code(), Some(2), "byte {at} of {name} was changed");
        }
        fs_err::write(&file, &original[..original.len() - 1]).expect("written");
        refused(args!["inspect", &path], &[]);
        fs_err::remove_file(&file).expect("removed");
        refused_everywhere(&path, &[&name]);
        fs_err::write(&file, original).expect("written");
    }
    json(args!["inspect", &path, "--json"]);
}

#[test]
fn another_base() {
    let (_dir, path) = artifact();
    let base = Broken::copy("base").first_weight("model.layers.0.mlp.up_proj.weight", 0x3f80);
    let out = tempfile::tempdir().expect("a temporary folder");
    let generate = args![
        "generate",
        "--base",
        base.path(),
        "--variant",
        &path,
        "--prompt",
        "hello"
    ];
    refused(generate, &["base", "digest"]);
    let model = out.path().join("model");
    refused(
        args!["restore", "--base", base.path(), "--variant", &path, "--out", model],
        &["base", "digest"],
    );
    assert_eq!(names(out.path()), Vec::<String>::new(), "nothing is left behind");
}

#[test]
fn a_folder_that_is_no_artifact() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    refused_everywhere(dir.path(), &["manifest"]);
    refused_everywhere(&tiny("route"), &["manifest"]);
}
