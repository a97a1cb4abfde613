//! The safetensors files of a model directory: one, or the shards that an index names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use serde::Deserialize;

use super::{CheckpointError, Location};
use crate::weights_file::{UniqueStrings, WeightsFile};

/// The file of a model in one piece.
const SINGLE: &str = "model.safetensors";
/// The file that names the shards of a model in several.
const INDEX: &str = "model.safetensors.index.json";

/// `model.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: UniqueStrings,
}

/// Opens every file and says where each tensor lies. As in transformers, `model.safetensors` goes before an index.
pub(super) fn open(dir: &Path) -> Result<(Vec<WeightsFile>, BTreeMap<String, Location>), CheckpointError> {
    let single = dir.join(SINGLE);
    let index = dir.join(INDEX);
    if single.exists() {
        let files = vec![WeightsFile::open(&single)?];
        let tensors = locate(&files)?;
        return Ok((files, tensors));
    }
    if index.exists() {
        return open_shards(dir, &index);
    }
    let invalid = |what: String| CheckpointError::Invalid {
        path: dir.to_path_buf(),
        what,
    };
    for other in ["pytorch_model.bin", "pytorch_model.bin.index.json"] {
        if dir.join(other).exists() {
            return Err(invalid(format!(
                "no {SINGLE} but {other}: pickled weights are not read; convert the model with transformers' \
                 save_pretrained"
            )));
        }
    }
    Err(invalid(format!("no weights: expected {SINGLE} or {INDEX}")))
}

fn open_shards(dir: &Path, index: &Path) -> Result<(Vec<WeightsFile>, BTreeMap<String, Location>), CheckpointError> {
    let invalid = |what: String| CheckpointError::Invalid {
        path: index.to_path_buf(),
        what,
    };
    let weight_map = read_index(index)?;
    let names: BTreeSet<_> = weight_map.values().collect();
    let mut files = Vec::with_capacity(names.len());
    for name in names {
        let path = dir.join(name);
        if !path.exists() {
            return Err(invalid(format!(
                "names the file {name}, which is missing: download it, or repair the index"
            )));
        }
        files.push(WeightsFile::open(&path)?);
    }
    let tensors = locate(&files)?;
    for (tensor, file) in &weight_map {
        match tensors.get(tensor) {
            Some(location) if files[location.file].path() == dir.join(file) => {}
            Some(location) => {
                return Err(invalid(format!(
                    "says that tensor {tensor} is in {file}, but it is in {}",
                    files[location.file].path().display()
                )));
            }
            None => {
                return Err(invalid(format!(
                    "says that tensor {tensor} is in {file}, which has no such tensor"
                )));
            }
        }
    }
    Ok((files, tensors))
}

/// The files that an index names, sorted.
pub(crate) fn shard_names(index: &Path) -> Result<BTreeSet<String>, CheckpointError> {
    Ok(read_index(index)?.into_values().collect())
}

/// Tensor → file of an index; every file lies in the index's directory or below.
fn read_index(index: &Path) -> Result<BTreeMap<String, String>, CheckpointError> {
    let invalid = |what: String| CheckpointError::Invalid {
        path: index.to_path_buf(),
        what,
    };
    let text = fs_err::read(index)?;
    let Index {
        weight_map: UniqueStrings(weight_map),
    } = serde_json::from_slice(&text).map_err(|e| invalid(format!("not a valid index: {e}")))?;
    for name in weight_map.values() {
        let inside = !name.is_empty() && Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
        if !inside {
            return Err(invalid(format!("file name {name:?} leaves the model's directory")));
        }
    }
    Ok(weight_map)
}

/// Where each tensor lies; one that lies in two files is refused.
fn locate(files: &[WeightsFile]) -> Result<BTreeMap<String, Location>, CheckpointError> {
    let mut tensors: BTreeMap<String, Location> = BTreeMap::new();
    for (index, file) in files.iter().enumerate() {
        for (name, stored) in file.tensors() {
            let location = Location {
                file: index,
                stored: stored.clone(),
            };
            if let Some(other) = tensors.insert(name.clone(), location) {
                return Err(CheckpointError::Invalid {
                    path: file.path().to_path_buf(),
                    what: format!(
                        "tensor {name} is also in {}: expected it in one file only",
                        files[other.file].path().display()
                    ),
                });
            }
        }
    }
    Ok(tensors)
}
