//! `manifest.json`: what an artifact says of itself.

use std::collections::BTreeMap;
use std::path::Path;

use deltamux_kernels::lowbit;
use deltamux_model::{Checkpoint, LinearId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{ArtifactError, DELTA_FILE, MANIFEST_FILE, Packed, SHARD_FILE, TEXT_FILES, Widths, sealed};

/// The version of the format that this build writes and reads.
///
/// 2: V and U have widths of their own, scales a symmetric coding. Version 1 is refused. Signs came later and are no new
/// version: builds that do not know them refuse an artifact that has some (`linears` lists no rank for a tensor that is
/// there, or the kind of an embedding is unknown), and read all others as before.
pub const FORMAT_VERSION: u32 = 2;

/// Longest manifest that is read: far above what a model of a thousand layers needs.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// Largest dimension of a linear that is read: products of two cannot overflow.
const MAX_DIMENSION: usize = 1 << 28;

/// What an artifact says of itself. Nothing in it depends on the machine, the clock or the paths of the run that made
/// it: the same inputs give the same bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// Name of the variant.
    pub name: String,
    /// Compression method.
    pub method: String,
    /// Requested share of the linears' bf16 bytes.
    pub ratio: f64,
    /// `model` when the budget moved between matrices, `matrix` when each kept its own.
    pub budget: String,
    /// The base that the difference is relative to.
    pub base: BaseInfo,
    /// Vocabulary of the variant where it differs from the base's.
    pub vocab_size: Option<usize>,
    /// The linears that changed, in model order.
    pub linears: Vec<LinearInfo>,
    /// Number of linears that equal the base's and store nothing.
    pub unchanged_linears: usize,
    /// How the input embedding is stored.
    pub embedding: EmbeddingInfo,
    /// How an untied output head is stored; absent for a tied one.
    pub head: Option<EmbeddingInfo>,
    /// Names of the norms and biases that changed and are stored exactly.
    pub vectors: Vec<String>,
    /// Byte counts.
    pub totals: Totals,
    /// Relative output error over all changed linears (mean over linears).
    pub rel_output_error: RelError,
    /// The allocation's objective over its lower bound, minus 1; absent for methods without an allocation.
    pub allocation_gap: Option<f64>,
    /// What the method was calibrated on.
    pub calibration: CalibrationInfo,
    /// Every other file of the artifact.
    pub files: Vec<FileInfo>,
}

/// The base of an artifact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BaseInfo {
    /// Digest of its weights and arithmetic (`Checkpoint::digest`).
    pub digest: String,
    /// Architecture, for people.
    pub architecture: String,
    /// Decoder layers, for people.
    pub num_layers: usize,
    /// Width of the residual stream, for people.
    pub hidden_size: usize,
    /// Rows of its embedding.
    pub vocab_size: usize,
}

/// Relative output errors, `tr(D C Dᵀ) / tr(ΔW C ΔWᵀ)` with `D = ΔW − ΔŴ`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RelError {
    /// On the calibration activations.
    pub calibration: Option<f64>,
    /// On held-out activations.
    pub heldout: Option<f64>,
}

/// One compressed linear.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinearInfo {
    /// Module name, e.g. `model.layers.3.mlp.up_proj`: its tensor in the packed file.
    pub name: String,
    /// `[outputs, inputs]`.
    pub shape: [usize; 2],
    /// Ranks that are stored.
    pub ranks: usize,
    /// Stored ranks by bits a weight of V, and under `0` the ranks that were dropped.
    pub bits: BTreeMap<String, usize>,
    /// Stored ranks by bits a weight of U, and under `0` the ranks that were dropped.
    pub bits_u: BTreeMap<String, usize>,
    /// What is stored; artifacts of earlier builds do not say, and hold factors.
    #[serde(default, skip_serializing_if = "Storage::is_factors")]
    pub storage: Storage,
    /// Bytes in the packed file, this tensor's part of its header included.
    pub bytes: u64,
    /// Relative output error of this linear.
    pub rel_output_error: RelError,
    /// Share of the difference's energy outside the ranks from which the stored ones were chosen: of
    /// `tr(ΔW C ΔWᵀ)` where the method's factors are optimal for the outputs (`best`), of `‖ΔW‖²` otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual_energy: Option<f64>,
}

/// What the packed tensor of a linear holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// Quantised factors.
    #[default]
    Factors,
    /// One bit a weight and a scale: no ranks.
    Signs,
}

impl Storage {
    /// Whether it is [`Storage::Factors`].
    pub fn is_factors(&self) -> bool {
        *self == Self::Factors
    }
}

/// How an embedding or head is stored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum EmbeddingInfo {
    /// It equals the base's.
    #[default]
    Unchanged,
    /// It changed, but the base's is used (`--embeddings base`).
    Base,
    /// Exact rows.
    Rows {
        /// Number of rows.
        rows: usize,
        /// Bytes in the packed file.
        bytes: u64,
    },
    /// The whole matrix, exact.
    Full {
        /// Bytes in the packed file.
        bytes: u64,
    },
    /// Quantised factors over the base's rows, and exact rows on top.
    Factored {
        /// Ranks that are stored.
        ranks: usize,
        /// Number of exact rows.
        rows: usize,
        /// Bytes in the packed file.
        bytes: u64,
        /// `‖ΔE − ΔÊ‖² / ‖ΔE‖²` over the factored rows.
        rel_error: Option<f64>,
    },
    /// The signs of the difference to the base's rows with a scale for each row, and exact rows on top.
    Signs {
        /// Number of exact rows.
        rows: usize,
        /// Bytes in the packed file.
        bytes: u64,
        /// `‖ΔE − ΔÊ‖² / ‖ΔE‖²` over the rows of signs.
        rel_error: Option<f64>,
    },
}

/// Byte counts of an artifact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Stored bytes of the compressed linears: codes, scales, zero points, singular values, headers.
    pub linear_bytes: u64,
    /// What those linears take in bf16.
    pub linear_bf16_bytes: u64,
    /// `linear_bytes / linear_bf16_bytes`; absent when no linear changed.
    pub linear_ratio: Option<f64>,
    /// Everything else in the packed file and the text files; in the manifest itself, without the manifest.
    pub other_bytes: u64,
}

/// What a method was calibrated on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CalibrationInfo {
    /// `general` for the bundled set, `file` for the user's.
    pub source: String,
    /// SHA-256 of the calibration file.
    pub sha256: String,
    /// Texts whose second moments the method saw.
    pub texts: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Texts on which only the error was measured.
    pub heldout_texts: usize,
    /// Their tokens.
    pub heldout_tokens: usize,
}

/// A file of the artifact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileInfo {
    /// File name inside the artifact.
    pub name: String,
    /// Length.
    pub bytes: u64,
    /// SHA-256, hex.
    pub sha256: String,
}

/// Far beyond any real vocabulary or width: a hostile manifest must not make sizes overflow or exhaust memory.
const LARGEST_DIMENSION: usize = 1 << 22;

impl Manifest {
    /// Reads and checks `manifest.json` in `dir`.
    pub fn read(dir: &Path) -> Result<Self, ArtifactError> {
        let path = dir.join(MANIFEST_FILE);
        if !path.exists() && dir.join(SHARD_FILE).is_file() {
            return Err(ArtifactError::invalid(
                dir,
                "is one shard of an artifact; put all of them together with `deltamux merge`",
            ));
        }
        if !path.exists() && dir.is_dir() {
            return Err(ArtifactError::invalid(
                dir,
                format!("not an artifact: it has no {MANIFEST_FILE}; `deltamux compress` makes one"),
            ));
        }
        let length = fs_err::metadata(&path)?.len();
        if length > MAX_MANIFEST_BYTES {
            return Err(ArtifactError::invalid(
                path,
                format!("{length} bytes, but a manifest has at most {MAX_MANIFEST_BYTES}"),
            ));
        }
        let bytes = fs_err::read(&path)?;
        let invalid = |what| ArtifactError::invalid(&path, what);
        let manifest = Self::parse(&bytes).map_err(invalid)?;
        sealed::check(&bytes).map_err(invalid)?;
        Ok(manifest)
    }

    /// The text of the file: the manifest as JSON, and as its last entry the SHA-256 of the text without that entry.
    pub fn to_text(&self) -> serde_json::Result<Vec<u8>> {
        sealed::seal(self)
    }

    /// Parses and checks the bytes of a manifest.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|e| format!("not JSON: {e}"))?;
        match value.get("format_version").and_then(serde_json::Value::as_u64) {
            Some(version) if version == u64::from(FORMAT_VERSION) => {}
            Some(version) => {
                return Err(format!(
                    "format version {version}, but this build reads version {FORMAT_VERSION}; compress again or use the build that wrote it"
                ));
            }
            None => return Err("no `format_version`: not the manifest of an artifact".to_string()),
        }
        let manifest: Self = serde_json::from_value(value).map_err(|e| format!("manifest: {e}"))?;
        manifest.check()?;
        Ok(manifest)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        check_name(&self.name)?;
        if let Some(vocab) = self.vocab_size
            && !(1..=LARGEST_DIMENSION).contains(&vocab)
        {
            return Err(format!("`vocab_size` is {vocab}: expected 1 to {LARGEST_DIMENSION}"));
        }
        for (field, size) in [
            ("base.hidden_size", self.base.hidden_size),
            ("base.vocab_size", self.base.vocab_size),
        ] {
            if size > LARGEST_DIMENSION {
                return Err(format!("`{field}` is {size}: expected at most {LARGEST_DIMENSION}"));
            }
        }
        if self.file(DELTA_FILE).is_none() {
            return Err(format!("`files` does not list {DELTA_FILE}"));
        }
        let mut seen = std::collections::BTreeSet::new();
        for file in &self.files {
            if file.name != DELTA_FILE && !TEXT_FILES.contains(&file.name.as_str()) {
                return Err(format!(
                    "`files` lists `{}`, which no artifact has; expected {DELTA_FILE} and any of {}",
                    file.name,
                    TEXT_FILES.join(", ")
                ));
            }
            if !seen.insert(&file.name) {
                return Err(format!("`files` lists `{}` twice", file.name));
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        for linear in &self.linears {
            if !seen.insert(&linear.name) {
                return Err(format!("`linears` lists `{}` twice", linear.name));
            }
            let widths = linear.widths()?;
            if linear.storage == Storage::Signs && (linear.ranks, widths.ranks()) != (0, 0) {
                return Err(format!("`{}` has both signs and ranks", linear.name));
            }
            for (factor, widths) in [("V", &widths.v), ("U", &widths.u)] {
                let stored = widths.iter().map(|&(_, ranks)| ranks).fold(0, usize::saturating_add);
                if stored != linear.ranks {
                    return Err(format!(
                        "`{}` has {} ranks, but its widths of {factor} add up to {stored}",
                        linear.name, linear.ranks
                    ));
                }
            }
            if linear.shape.iter().any(|&n| n == 0 || n > MAX_DIMENSION) {
                return Err(format!(
                    "`{}` has shape {:?}; expected dimensions from 1 to {MAX_DIMENSION}",
                    linear.name, linear.shape
                ));
            }
        }
        Ok(())
    }

    /// The listed file of this name.
    pub fn file(&self, name: &str) -> Option<&FileInfo> {
        self.files.iter().find(|f| f.name == name)
    }

    /// Content digest: base, vocabulary and every file's digest, in name order.
    pub fn generation(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(format!("deltamux artifact {}\n", self.format_version));
        hash.update(format!("base {}\n", self.base.digest));
        hash.update(format!("vocab {:?}\n", self.vocab_size));
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        for file in files {
            hash.update(format!("{} {} {}\n", file.name, file.bytes, file.sha256));
        }
        hex::encode(hash.finalize())
    }

    /// Bytes of a loaded variant: the mapped file, and what is decoded beside it (scales, zero points, rows).
    pub fn resident_bytes(&self) -> u64 {
        let mapped = self.file(DELTA_FILE).map_or(0, |f| f.bytes);
        let decoded: u64 = self
            .linears
            .iter()
            .flat_map(|l| {
                let widths = l.widths().unwrap_or_default();
                let of = |widths: Vec<(u8, usize)>, len: usize| {
                    // An f32 scale and a u16 zero point a group, and half of the f32 singular value.
                    let groups = lowbit::groups(len) as u64;
                    widths.into_iter().map(move |(bits, ranks)| {
                        let per_rank = if bits == 16 {
                            2
                        } else {
                            groups.saturating_mul(6).saturating_add(2)
                        };
                        per_rank.saturating_mul(ranks as u64)
                    })
                };
                of(widths.v, l.shape[1]).chain(of(widths.u, l.shape[0]))
            })
            .fold(0, u64::saturating_add);
        let exact = |e: &EmbeddingInfo| match e {
            EmbeddingInfo::Unchanged | EmbeddingInfo::Base | EmbeddingInfo::Factored { rows: 0, .. } => 0,
            EmbeddingInfo::Rows { rows, .. }
            | EmbeddingInfo::Factored { rows, .. }
            | EmbeddingInfo::Signs { rows, .. } => (*rows as u64).saturating_mul(4 * self.base.hidden_size as u64),
            EmbeddingInfo::Full { bytes } => *bytes,
        };
        let rows = self.vocab_size.unwrap_or(self.base.vocab_size);
        let of_factors = |e: &EmbeddingInfo| match e {
            EmbeddingInfo::Factored { ranks, .. } => {
                let groups = lowbit::groups(rows) as u64 + lowbit::groups(self.base.hidden_size) as u64;
                groups.saturating_mul(6).saturating_add(2).saturating_mul(*ranks as u64)
            }
            EmbeddingInfo::Signs { .. } => (rows as u64).saturating_mul(4),
            _ => 0,
        };
        let of = |e: &EmbeddingInfo| exact(e).saturating_add(of_factors(e));
        let embeddings = of(&self.embedding).saturating_add(self.head.as_ref().map_or(0, of));
        mapped.saturating_add(decoded).saturating_add(embeddings)
    }
}

impl BaseInfo {
    /// What the manifest says of `base`.
    pub(crate) fn of(base: &Checkpoint) -> Self {
        let config = base.config();
        Self {
            digest: base.digest(),
            architecture: config.architecture.class_name().to_string(),
            num_layers: config.num_layers,
            hidden_size: config.hidden_size,
            vocab_size: config.vocab_size,
        }
    }
}

impl Totals {
    /// The counts of `linears` and of all `files` but the manifest.
    pub(crate) fn of(linears: &[LinearInfo], files: &[FileInfo]) -> Self {
        let linear_bytes = linears.iter().map(|l| l.bytes).fold(0, u64::saturating_add);
        let bf16 = |l: &LinearInfo| (2 * l.shape[0] as u64).saturating_mul(l.shape[1] as u64);
        let linear_bf16_bytes = linears.iter().map(bf16).fold(0, u64::saturating_add);
        Self {
            linear_bytes,
            linear_bf16_bytes,
            linear_ratio: (linear_bf16_bytes > 0).then(|| linear_bytes as f64 / linear_bf16_bytes as f64),
            other_bytes: files.iter().map(|f| f.bytes).sum::<u64>() - linear_bytes,
        }
    }
}

impl LinearInfo {
    /// The entry of a linear that has not been written yet: its bytes are 0 until [`LinearInfo::set_bytes`].
    pub(crate) fn new(
        id: &LinearId,
        packed: &Packed,
        rel_output_error: RelError,
        residual_energy: Option<f64>,
    ) -> Self {
        let (storage, ranks, bits, bits_u) = match packed {
            Packed::Signs(_) => (Storage::Signs, 0, BTreeMap::new(), BTreeMap::new()),
            Packed::Factors(factors) => {
                let ranks = factors.ranks();
                let dropped = factors.inputs.min(factors.outputs) - ranks;
                let by_width = |widths: &[(u8, usize)]| -> BTreeMap<String, usize> {
                    let stored = widths.iter().map(|&(b, n)| (b.to_string(), n));
                    stored.chain([("0".to_string(), dropped)]).collect()
                };
                let widths = factors.widths();
                (Storage::Factors, ranks, by_width(&widths.v), by_width(&widths.u))
            }
        };
        Self {
            name: id.to_string(),
            shape: packed.shape(),
            ranks,
            bits,
            bits_u,
            storage,
            bytes: 0,
            rel_output_error,
            residual_energy,
        }
    }

    /// Sets the bytes of the linears that were written, from what the writer counted.
    pub(crate) fn set_bytes(linears: &mut [Self], sizes: &[(String, u64)]) {
        let sizes: BTreeMap<&str, u64> = sizes.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
        for linear in linears {
            linear.bytes = sizes.get(linear.name.as_str()).copied().unwrap_or(0);
        }
    }

    /// Whether there is a tensor for it in the packed file: factors without a rank store nothing.
    pub fn is_stored(&self) -> bool {
        self.ranks > 0 || self.storage == Storage::Signs
    }

    /// The stored ranks by width, widest first.
    pub fn widths(&self) -> Result<Widths, String> {
        Ok(Widths {
            v: self.by_width(&self.bits)?,
            u: self.by_width(&self.bits_u)?,
        })
    }

    fn by_width(&self, bits: &BTreeMap<String, usize>) -> Result<Vec<(u8, usize)>, String> {
        let mut widths = Vec::new();
        for (key, &ranks) in bits {
            match key.parse::<u8>() {
                Ok(0) => {}
                Ok(_) if ranks == 0 => {}
                Ok(bits) if super::layout::ALL_WIDTHS.contains(&bits) => widths.push((bits, ranks)),
                _ => {
                    return Err(format!(
                        "`{}` has ranks of `{key}` bits; known widths are 16, 8, 4, 3, 2 and 0 for dropped ranks",
                        self.name
                    ));
                }
            }
        }
        widths.sort_by_key(|&(bits, _)| std::cmp::Reverse(bits));
        Ok(widths)
    }
}

/// Refuses names that could not be a file name or the `model` field of a request.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-:@+".contains(c);
    if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.chars().all(allowed) {
        return Err(format!(
            "variant name `{}`: use 1 to 128 of the characters A-Z a-z 0-9 . _ - : @ +, not starting with a dot",
            name.escape_debug()
        ));
    }
    Ok(())
}
