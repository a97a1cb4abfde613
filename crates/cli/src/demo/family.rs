//! The bundled tiny family: where it lies and what belongs to it.

use std::path::{Path, PathBuf};

use anyhow::bail;

/// Variants of the family; each has its own held-out tasks and calibration texts.
pub const VARIANTS: [&str; 4] = ["route", "date", "json", "sql"];

/// A family on disk: `base/`, one directory a fine-tune, `data/`.
#[derive(Debug, Clone)]
pub struct Family {
    dir: PathBuf,
}

impl Family {
    /// The family in `dir`, or the one that comes with deltamux: `models/tiny` in the working directory or one of its
    /// parents, else beside the directory that the binary was built in.
    pub fn find(dir: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(dir) = dir {
            if !dir.join("base/config.json").is_file() {
                bail!("{}: holds no base/config.json, so it is no model family", dir.display());
            }
            return Ok(Self { dir: dir.into() });
        }
        let starts = [std::env::current_dir().ok(), std::env::current_exe().ok()];
        let candidates = starts
            .iter()
            .flatten()
            .flat_map(|start| start.ancestors())
            .map(|p| p.join("models/tiny"));
        match candidates
            .into_iter()
            .find(|dir| dir.join("base/config.json").is_file())
        {
            Some(dir) => Ok(Self { dir }),
            None => {
                bail!("models/tiny is not here: run the demo inside a clone of the repository, or give --family DIR")
            }
        }
    }

    /// Directory of the base.
    pub fn base(&self) -> PathBuf {
        self.dir.join("base")
    }

    /// Directory of a fine-tune.
    pub fn full(&self, variant: &str) -> PathBuf {
        self.dir.join(variant)
    }

    /// Held-out tasks of a variant.
    pub fn tasks(&self, variant: &str) -> PathBuf {
        self.dir.join(format!("data/{variant}.heldout.jsonl"))
    }

    /// Calibration texts of a variant.
    pub fn calibration(&self, variant: &str) -> PathBuf {
        self.dir.join(format!("data/{variant}.calibration.jsonl"))
    }
}
