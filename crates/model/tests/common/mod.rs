//! Where tests find models.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The repository's `models` folder.
pub fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

/// A model of the tiny family.
pub fn tiny(name: &str) -> PathBuf {
    models().join("tiny").join(name)
}

/// The directory that an environment variable names; without it says that the test did not run.
fn from_env(variable: &str) -> Option<PathBuf> {
    let dir = std::env::var_os(variable).map(PathBuf::from);
    if dir.is_none() {
        println!("not run: {variable} is not set");
    }
    dir
}

/// The SmolLM2 base.
pub fn smollm2() -> Option<PathBuf> {
    from_env("DELTAMUX_SMOLLM2")
}

/// The test bed with the SmolLM2 base, its fine-tunes and their goldens.
pub fn testbed() -> Option<PathBuf> {
    from_env("DELTAMUX_TESTBED")
}

/// A safetensors file of these tensors (type, shape, bytes), written by the reference implementation.
pub fn safetensors_bytes<S: AsRef<str>>(tensors: &BTreeMap<String, (S, Vec<usize>, Vec<u8>)>) -> Vec<u8> {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        let dtype = serde_json::from_value(dtype.as_ref().into()).expect("a type of the format");
        let view = safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).expect("bytes that fit the shape");
        (name.as_str(), view)
    });
    safetensors::serialize(views, None).expect("a file")
}
