//! What the integration tests share: the tiny family and ways to damage things.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::{Path, PathBuf};

use deltamux_delta::artifact::{ArtifactWriter, Manifest, Target};
use deltamux_delta::compress::Compressed;
use deltamux_delta::{CalibrationSource, CompressError, CompressOptions, compress};

pub fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/tiny")
        .join(name)
}

/// Options with the first `lines` calibration lines of a tiny task, written to `dir`.
pub fn options(task: &str, lines: usize, dir: &Path) -> CompressOptions {
    let all = fs_err::read_to_string(tiny("data").join(format!("{task}.calibration.jsonl"))).unwrap();
    let path = dir.join(format!("{task}.{lines}.jsonl"));
    fs_err::write(&path, all.lines().take(lines).collect::<Vec<_>>().join("\n")).unwrap();
    CompressOptions {
        calibration: CalibrationSource::File(path),
        ..CompressOptions::new()
    }
}

pub fn run(base: &Path, finetuned: &Path, out: &Path, options: &CompressOptions) -> Result<Compressed, CompressError> {
    compress(base, finetuned, out, options, &|_, _, _| {})
}

/// Compresses the tiny variant `task` to `dir/task`.
pub fn artifact(task: &str, dir: &Path) -> PathBuf {
    let out = dir.join(task);
    run(&tiny("base"), &tiny(task), &out, &options(task, 8, dir)).unwrap();
    out
}

pub fn copy_dir(from: &Path, to: &Path) {
    fs_err::create_dir_all(to).unwrap();
    for entry in fs_err::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs_err::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A tensor of a safetensors file.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// All tensors of a safetensors file.
pub fn tensors(path: &Path) -> Vec<Tensor> {
    let file = deltamux_model::WeightsFile::open(path).unwrap();
    file.tensors()
        .iter()
        .map(|(name, t)| Tensor {
            name: name.clone(),
            dtype: match t.dtype.as_str() {
                "U8" => "U8",
                "U32" => "U32",
                "BF16" => "BF16",
                "F32" => "F32",
                "F16" => "F16",
                other => panic!("type {other}"),
            },
            shape: t.shape.clone(),
            bytes: file.bytes(t).to_vec(),
        })
        .collect()
}

/// Writes an artifact like `from` to `to`, with tensors and manifest changed, and digests that match again.
pub fn rewrite(from: &Path, to: &Path, change: impl FnOnce(&mut Vec<Tensor>, &mut Manifest)) {
    let mut manifest = Manifest::read(from).unwrap();
    let mut all = tensors(&from.join("delta.safetensors"));
    change(&mut all, &mut manifest);
    let target = Target::new(to, false, "manifest.json").unwrap();
    let mut writer = ArtifactWriter::new();
    for tensor in all {
        writer.raw(&tensor.name, tensor.dtype, tensor.shape, tensor.bytes);
    }
    let (info, _) = writer.write(&target).unwrap();
    manifest.files.retain(|f| f.name != "delta.safetensors");
    for file in &manifest.files {
        fs_err::copy(from.join(&file.name), target.dir().join(&file.name)).unwrap();
    }
    manifest.files.push(info);
    manifest.write(&target).unwrap();
    target.publish().unwrap();
}
