//! Where things lie.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::shell::{Cmd, cargo};

/// The repository and its target directory.
#[derive(Debug)]
pub struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// Asks cargo for the workspace that this tool belongs to.
    pub fn find() -> anyhow::Result<Self> {
        let metadata = Cmd::new(cargo())
            .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
            .stdout()?;
        let metadata: serde_json::Value = serde_json::from_str(&metadata).context("output of cargo metadata")?;
        let path = |key: &str| {
            let path = metadata[key].as_str().map(PathBuf::from);
            path.with_context(|| format!("cargo metadata has no {key}"))
        };
        Ok(Self {
            root: path("workspace_root")?,
            target: path("target_directory")?,
        })
    }

    /// The repository.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The target directory.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The `deltamux` binary of the release profile.
    pub fn binary(&self) -> PathBuf {
        self.target.join("release").join("deltamux")
    }

    /// The Python environment of the tests.
    pub fn venv(&self) -> PathBuf {
        self.target.join("venv")
    }

    /// The SmolLM2 base model that `cargo xtask smollm2` makes.
    pub fn smollm2(&self) -> PathBuf {
        self.target.join("smollm2")
    }

    /// The test bed with the SmolLM2 fine-tunes that `cargo xtask testbed` lays out.
    pub fn testbed(&self) -> PathBuf {
        self.target.join("testbed")
    }

    /// The script that lays the test bed out; it lies beside the repository, where it lies at all.
    pub fn testbed_script(&self) -> Option<PathBuf> {
        let script = self.root.parent()?.join("shared/testbed/setup.sh");
        script.is_file().then_some(script)
    }

    /// A command that runs cargo in the repository.
    pub fn cargo(&self) -> Cmd {
        Cmd::new(cargo()).dir(&self.root)
    }
}
