//! Puts the shards of one model together into an artifact.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use deltamux_model::LinearId;
use serde::{Deserialize, Serialize};

use super::Compressed;
use super::error::CompressError;
use super::linears::{Allocated, Allocations};
use super::work::Inputs;
use super::write::mean_error;
use crate::artifact::{
    ArtifactError, ArtifactWriter, DELTA_FILE, FORMAT_VERSION, FileInfo, LinearInfo, MANIFEST_FILE, MAX_MANIFEST_BYTES,
    Manifest, Mapped, SHARD_FILE, Target, Tensors, Totals, check_stored, sealed, verify_files,
};

/// `shard.json`: what a shard is a part of, and its part.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ShardManifest {
    pub format_version: u32,
    /// What all shards of one artifact share, and which shard this is.
    pub inputs: Inputs,
    /// The allocations that were made, each with the name of its linear or shard.
    pub allocations: Allocations,
    /// The manifest of this part.
    pub manifest: Manifest,
}

impl ShardManifest {
    pub fn write(&self, target: &Target) -> Result<FileInfo, ArtifactError> {
        let text = sealed::seal(self).map_err(std::io::Error::from)?;
        target.write(SHARD_FILE, &text)
    }

    pub fn read(dir: &Path) -> Result<Self, ArtifactError> {
        let path = dir.join(SHARD_FILE);
        let invalid = |what: String| ArtifactError::invalid(&path, what);
        if !path.exists() && dir.is_dir() {
            return Err(ArtifactError::invalid(
                dir,
                format!("not a shard: it has no {SHARD_FILE}; `deltamux compress --shard` makes one"),
            ));
        }
        let length = fs_err::metadata(&path)?.len();
        if length > MAX_MANIFEST_BYTES {
            return Err(invalid(format!(
                "{length} bytes, but a shard's description has at most {MAX_MANIFEST_BYTES}"
            )));
        }
        let bytes = fs_err::read(&path)?;
        sealed::check(&bytes).map_err(invalid)?;
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| invalid(format!("not JSON: {e}")))?;
        let version = value.get("format_version").and_then(serde_json::Value::as_u64);
        if version != Some(u64::from(FORMAT_VERSION)) {
            let version = version.map_or_else(|| "unknown".to_string(), |v| v.to_string());
            return Err(invalid(format!(
                "format version {version}, but this build reads version {FORMAT_VERSION}; make the shards again"
            )));
        }
        let shard: Self = serde_json::from_value(value).map_err(|e| invalid(format!("shard: {e}; make it again")))?;
        shard.inputs.shard.check().map_err(|e| invalid(e.to_string()))?;
        shard.manifest.check().map_err(invalid)?;
        Ok(shard)
    }
}

/// Puts the shards in `dirs` together into the artifact directory `out`, named `name` or like the directory. The
/// artifact is what one run would have made if each matrix had its own budget; with one budget for the model each
/// shard has shared out its own.
///
/// # Errors
/// Shards that are missing, there twice, damaged, or not of one run.
pub fn merge(dirs: &[PathBuf], out: &Path, name: Option<&str>, force: bool) -> Result<Compressed, CompressError> {
    let name = super::variant_name(out, name)?;
    super::check_target(out, force, MANIFEST_FILE)?;
    let shards = read_all(dirs)?;
    for (dir, shard) in &shards {
        verify_files(dir, &shard.manifest)?;
    }
    let mut writer = ArtifactWriter::new();
    let mut linears = BTreeMap::new();
    for (dir, shard) in &shards {
        copy_tensors(dir, shard, &mut writer, &mut linears)?;
    }
    if !linears.is_empty() && !linears.values().any(LinearInfo::is_stored) {
        return Err(CompressError::Option(format!(
            "ratio {} left no room for a single rank of any linear: make the shards with a higher --ratio",
            shards[0].1.manifest.ratio
        )));
    }
    let target = Target::new(out, force, MANIFEST_FILE)?;
    let (delta, sizes) = writer.write(&target)?;
    let mut files = vec![delta];
    let (first_dir, first) = &shards[0];
    for file in first.manifest.files.iter().filter(|file| file.name != DELTA_FILE) {
        files.push(target.write(&file.name, &fs_err::read(first_dir.join(&file.name))?)?);
    }
    let mut linears: Vec<LinearInfo> = linears.into_values().collect();
    LinearInfo::set_bytes(&mut linears, &sizes);
    let mut allocations: Vec<&(String, Allocated)> = shards.iter().flat_map(|(_, s)| &s.allocations).collect();
    allocations.sort_by_key(|(name, _)| (LinearId::from_weight(&format!("{name}.weight")), name));
    let totals = Totals::of(&linears, &files);
    // A method that was not asked for a ratio says what it takes.
    let taken = totals.linear_ratio.unwrap_or(first.manifest.ratio);
    let manifest = Manifest {
        name,
        ratio: first.inputs.ratio.unwrap_or(taken),
        unchanged_linears: shards.iter().fold(0, |sum, (_, s)| {
            usize::saturating_add(sum, s.manifest.unchanged_linears)
        }),
        rel_output_error: mean_error(&linears),
        totals,
        linears,
        allocation_gap: Allocated::gap(allocations.iter().map(|(_, a)| *a)),
        // Shards without a changed linear looked at no text.
        calibration: {
            let used = shards.iter().find(|(_, s)| s.manifest.calibration.tokens > 0);
            used.map_or(&first.manifest, |(_, s)| &s.manifest).calibration.clone()
        },
        files,
        ..first.manifest.clone()
    };
    let written = manifest.write(&target)?;
    target.publish()?;
    let total_bytes = manifest.files.iter().map(|f| f.bytes).sum::<u64>() + written.bytes;
    Ok(Compressed { manifest, total_bytes })
}

/// What is at `out` already, if it is the shard of these inputs.
pub(super) fn finished(out: &Path, inputs: &Inputs) -> Result<Compressed, CompressError> {
    let shard = ShardManifest::read(out)?;
    let differences = inputs.differences(&shard.inputs);
    if !differences.is_empty() {
        return Err(CompressError::Option(format!(
            "{} exists already and was made from other inputs: {}; remove it, or replace it with --force",
            out.display(),
            differences.join("; ")
        )));
    }
    verify_files(out, &shard.manifest)?;
    let files: u64 = shard.manifest.files.iter().map(|f| f.bytes).sum();
    Ok(Compressed {
        total_bytes: files + fs_err::metadata(out.join(SHARD_FILE))?.len(),
        manifest: shard.manifest,
    })
}

/// All shards in order.
fn read_all(dirs: &[PathBuf]) -> Result<Vec<(PathBuf, ShardManifest)>, CompressError> {
    let mut shards: Vec<(PathBuf, ShardManifest)> = Vec::new();
    for dir in dirs {
        shards.push((dir.clone(), ShardManifest::read(dir)?));
    }
    shards.sort_by_key(|(_, shard)| shard.inputs.shard.index);
    let Some((first_dir, first)) = shards.first() else {
        return Err(CompressError::Option(
            "no shard to merge: name their directories".to_string(),
        ));
    };
    for (dir, shard) in &shards {
        let same = Inputs {
            shard: super::Shard {
                index: shard.inputs.shard.index,
                ..first.inputs.shard
            },
            ..first.inputs.clone()
        };
        let differences = shard.inputs.differences(&same);
        if !differences.is_empty() {
            return Err(CompressError::Option(format!(
                "{} and {} are not shards of one run: {}",
                dir.display(),
                first_dir.display(),
                differences.join("; ")
            )));
        }
    }
    if let Some([(a, shard), (b, _)]) = shards
        .array_windows()
        .find(|[(_, a), (_, b)]| a.inputs.shard.index == b.inputs.shard.index)
    {
        return Err(CompressError::Option(format!(
            "{} and {} are both shard {}; name each once",
            a.display(),
            b.display(),
            shard.inputs.shard
        )));
    }
    let count = first.inputs.shard.count;
    let missing: Vec<String> = (1..=count)
        .filter(|index| !shards.iter().any(|(_, s)| s.inputs.shard.index == *index))
        .map(|index| format!("{index}/{count}"))
        .collect();
    if !missing.is_empty() {
        let shown = missing.iter().take(10).cloned().collect::<Vec<_>>().join(", ");
        return Err(CompressError::Option(format!(
            "{} of {count} shards are missing: {shown}{}; make them with `deltamux compress --shard`",
            missing.len(),
            if missing.len() > 10 { " …" } else { "" }
        )));
    }
    Ok(shards)
}

/// Adds a shard's tensors to `writer` and its linears to `linears`.
fn copy_tensors(
    dir: &Path,
    shard: &ShardManifest,
    writer: &mut ArtifactWriter,
    linears: &mut BTreeMap<LinearId, LinearInfo>,
) -> Result<(), CompressError> {
    let path = dir.join(DELTA_FILE);
    let invalid = |what: String| ArtifactError::invalid(&path, what);
    let mapped = Mapped::open(&path)?;
    let tensors = Tensors::parse(&mapped, &path)?;
    for info in &shard.manifest.linears {
        let id = LinearId::from_weight(&format!("{}.weight", info.name))
            .filter(|id| id.to_string() == info.name && shard.inputs.shard.has(*id))
            .filter(|id| id.layer < shard.manifest.base.num_layers)
            .ok_or_else(|| invalid(format!("`{}` is no linear of shard {}", info.name, shard.inputs.shard)))?;
        if info.is_stored() {
            let tensor = tensors.expect(&info.name)?;
            check_stored(info, tensor.bytes()).map_err(invalid)?;
        }
        linears.insert(id, info.clone());
    }
    for name in tensors.names() {
        let tensor = tensors.expect(name)?;
        let listed = shard.manifest.linears.iter().any(|l| l.name == name && l.is_stored());
        let is_linear = LinearId::from_weight(&format!("{name}.weight")).is_some();
        if is_linear != listed || (!listed && !shard.inputs.shard.is_first()) {
            return Err(invalid(format!("`{name}` does not belong to shard {}", shard.inputs.shard)).into());
        }
        let dtype = ["U8", "F32", "F16", "BF16", "U32"]
            .into_iter()
            .find(|dtype| *dtype == tensor.dtype());
        let dtype =
            dtype.ok_or_else(|| invalid(format!("`{name}` has type {}, which no artifact has", tensor.dtype())))?;
        writer.raw(name, dtype, tensor.shape().to_vec(), tensor.bytes().to_vec());
    }
    Ok(())
}
