//! Where tests find models.

#![allow(dead_code, reason = "each test binary uses a part")]

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
