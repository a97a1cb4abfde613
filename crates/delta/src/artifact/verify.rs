//! Checks an artifact's digests and counts its bytes again from the files.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::layout::{header_entry_bytes, read_widths};
use super::reader::{EMBEDDING, EmbeddingNames, HEAD, Mapped, Tensors};
use super::{
    Artifact, ArtifactError, DELTA_FILE, EmbeddingInfo, LinearInfo, MANIFEST_FILE, Manifest, Storage, Totals, signs,
};

/// What `inspect` found: counts taken from the files, not from the manifest.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// Byte counts.
    pub totals: Totals,
    /// Bytes of the whole directory, the manifest included.
    pub total_bytes: u64,
    /// Bytes of each packed linear with its part of the header, by name.
    pub linears: BTreeMap<String, u64>,
}

impl Artifact {
    /// Checks the length and digest of every file that the manifest lists.
    pub fn verify_files(&self) -> Result<(), ArtifactError> {
        verify_files(&self.dir, &self.manifest)
    }

    /// Checks every digest, holds the packed file against the manifest and counts all bytes again.
    pub fn inspect(&self) -> Result<Inspection, ArtifactError> {
        self.verify_files()?;
        let path = self.dir.join(DELTA_FILE);
        let mapped = Mapped::open(&path)?;
        let tensors = Tensors::parse(&mapped, &path)?;
        let invalid = |what: String| ArtifactError::invalid(&path, what);
        let mut linears = BTreeMap::new();
        let mut totals = Totals::default();
        for linear in &self.manifest.linears {
            let [outputs, inputs] = linear.shape.map(|n| n as u64);
            let bf16 = outputs.saturating_mul(inputs).saturating_mul(2);
            totals.linear_bf16_bytes = totals.linear_bf16_bytes.saturating_add(bf16);
            if !linear.is_stored() {
                continue;
            }
            let tensor = tensors.expect(&linear.name)?;
            check_stored(linear, tensor.bytes()).map_err(invalid)?;
            let bytes = (tensor.len() + header_entry_bytes(&linear.name, tensor.len(), tensor.offset())) as u64;
            totals.linear_bytes += bytes;
            linears.insert(linear.name.clone(), bytes);
        }
        check_embedding(&tensors, &EMBEDDING, &self.manifest.embedding).map_err(invalid)?;
        if let Some(head) = &self.manifest.head {
            check_embedding(&tensors, &HEAD, head).map_err(invalid)?;
        }
        totals.linear_ratio =
            (totals.linear_bf16_bytes > 0).then(|| totals.linear_bytes as f64 / totals.linear_bf16_bytes as f64);
        let listed = self.manifest.files.iter().map(|f| f.bytes).fold(0, u64::saturating_add);
        let manifest = fs_err::metadata(self.dir.join(MANIFEST_FILE))?.len();
        totals.other_bytes = listed.saturating_sub(totals.linear_bytes).saturating_add(manifest);
        Ok(Inspection {
            total_bytes: totals.linear_bytes + totals.other_bytes,
            totals,
            linears,
        })
    }
}

/// Checks the length and digest of every file in `dir` that its manifest lists.
pub(crate) fn verify_files(dir: &Path, manifest: &Manifest) -> Result<(), ArtifactError> {
    for file in &manifest.files {
        let path = dir.join(&file.name);
        let length = fs_err::metadata(&path)?.len();
        if length != file.bytes {
            return Err(ArtifactError::invalid(
                path,
                format!(
                    "{length} bytes, but the manifest says {}: truncated or replaced; copy the artifact again",
                    file.bytes
                ),
            ));
        }
        let found = digest_file(&path)?;
        if found != file.sha256 {
            return Err(ArtifactError::invalid(
                path,
                format!(
                    "SHA-256 is {found}, but the manifest says {}: the file was changed; copy the artifact again",
                    file.sha256
                ),
            ));
        }
    }
    Ok(())
}

/// Holds what is stored of an embedding or head against what the manifest says of it.
pub(crate) fn check_embedding(
    tensors: &Tensors<'_>,
    names: &EmbeddingNames,
    info: &EmbeddingInfo,
) -> Result<(), String> {
    let rows = tensors.get(names.row_ids).map_or(0, |ids| ids.shape().iter().product());
    let factors = tensors.get(names.factors);
    let ranks = match &factors {
        None => Some(0),
        Some(tensor) if tensor.bytes().first() == Some(&signs::SIGNS) => None,
        Some(tensor) => Some(
            read_widths(tensor.bytes())
                .map_err(|e| format!("`{}`: {e}", names.factors))?
                .1
                .ranks(),
        ),
    };
    let full = tensors.get(names.full).is_some();
    let found = (full, ranks, rows);
    let listed = match info {
        EmbeddingInfo::Unchanged | EmbeddingInfo::Base => (false, Some(0), 0),
        EmbeddingInfo::Full { .. } => (true, Some(0), 0),
        EmbeddingInfo::Rows { rows, .. } => (false, Some(0), *rows),
        EmbeddingInfo::Factored { ranks, rows, .. } => (false, Some(*ranks), *rows),
        EmbeddingInfo::Signs { rows, .. } => (false, None, *rows),
    };
    if found == listed {
        return Ok(());
    }
    let say = |(full, ranks, rows): (bool, Option<usize>, usize)| match (full, ranks) {
        (true, _) => "the whole matrix".to_string(),
        (false, None) => format!("signs and {rows} exact rows"),
        (false, Some(ranks)) => format!("{ranks} ranks and {rows} exact rows"),
    };
    Err(format!(
        "holds {} of `{}`, but the manifest says {}; compress again",
        say(found),
        names.factors,
        say(listed)
    ))
}

/// Holds what the packed bytes of a linear say of themselves against the manifest.
pub(crate) fn check_stored(linear: &LinearInfo, bytes: &[u8]) -> Result<(), String> {
    let named = |e: String| format!("`{}`: {e}", linear.name);
    let [outputs, inputs] = linear.shape;
    if linear.storage == Storage::Signs {
        return signs::check(bytes, inputs, outputs).map_err(named);
    }
    let (_, found) = read_widths(bytes).map_err(named)?;
    let listed = linear.widths()?;
    for (factor, found, listed) in [("V", &found.v, &listed.v), ("U", &found.u, &listed.u)] {
        if listed != found {
            return Err(format!(
                "`{}` holds ranks {found:?} (bits, count) of {factor}, but the manifest says {listed:?}",
                linear.name
            ));
        }
    }
    Ok(())
}

/// SHA-256 of a file, hex.
pub(crate) fn digest_file(path: &Path) -> std::io::Result<String> {
    let mut file = fs_err::File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(hex::encode(hash.finalize()));
        }
        hash.update(&buffer[..n]);
    }
}
