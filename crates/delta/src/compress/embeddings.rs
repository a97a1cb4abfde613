//! What becomes of a changed embedding or untied head.

use deltamux_model::{Checkpoint, TensorView};
use rayon::prelude::*;

use super::error::CompressError;
use super::finetuned::Finetuned;
use super::linalg::Matrix;
use crate::artifact::{ArtifactWriter, EmbeddingInfo, EmbeddingNames};

/// Up to this share of changed rows, `auto` stores them exactly.
const FEW_ROWS: f64 = 0.05;

/// How a changed embedding (or untied head) is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingPolicy {
    /// Nothing when unchanged, the changed rows when they are few, else factors.
    Auto,
    /// Every changed row exactly.
    Exact,
    /// Quantised factors at the budget's ratio, or signs with the method bitdelta.
    Factored,
    /// The base's rows, whatever the fine-tune did to them.
    Base,
}

impl EmbeddingPolicy {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Exact => "exact",
            Self::Factored => "factored",
            Self::Base => "base",
        }
    }
}

/// What will be stored of one matrix.
#[derive(Debug)]
pub(crate) enum Plan {
    Unchanged,
    Base,
    /// Exact rows.
    Rows(Vec<u32>),
    Full,
    /// The difference of these rows of the base, approximated as a matrix, and exact added rows.
    Factored(Vec<u32>, Vec<u32>),
}

/// Compares the matrix `name` of both checkpoints and decides.
pub(crate) fn plan(
    name: &str,
    base: &Checkpoint,
    finetuned: &Finetuned,
    policy: EmbeddingPolicy,
) -> Result<Plan, CompressError> {
    let hidden = base.config().hidden_size;
    let (old, new) = (base.config().vocab_size, finetuned.config().vocab_size);
    let ours = base.expect(name, &[old, hidden])?;
    let theirs = finetuned.expect(name, &[new, hidden])?;
    let theirs = theirs.view();
    let changed: Vec<u32> = (0..old.min(new))
        .into_par_iter()
        .filter(|&row| ours.row_f32(row) != theirs.row_f32(row))
        .map(|row| row as u32)
        .collect();
    let added: Vec<u32> = (old.min(new)..new).map(|row| row as u32).collect();
    let exact = |rows: Vec<u32>| {
        if rows.is_empty() {
            Plan::Unchanged
        } else {
            Plan::Rows(rows)
        }
    };
    let few = changed.len() as f64 <= FEW_ROWS * old as f64;
    Ok(match policy {
        _ if changed.is_empty() => exact(added),
        EmbeddingPolicy::Base if added.is_empty() => Plan::Base,
        EmbeddingPolicy::Base => Plan::Rows(added),
        EmbeddingPolicy::Exact if 2 * changed.len() > old => Plan::Full,
        EmbeddingPolicy::Exact => exact([changed, added].concat()),
        EmbeddingPolicy::Auto if few => exact([changed, added].concat()),
        EmbeddingPolicy::Auto | EmbeddingPolicy::Factored => Plan::Factored(changed, added),
    })
}

/// The difference over the base's rows `[vocabulary, hidden]`, of which `changed` are not zero.
pub(crate) fn difference(
    name: &str,
    base: &Checkpoint,
    finetuned: &Finetuned,
    changed: &[u32],
) -> Result<Matrix<f32>, CompressError> {
    let hidden = base.config().hidden_size;
    let (old, new) = (base.config().vocab_size, finetuned.config().vocab_size);
    let ours = base.expect(name, &[old, hidden])?;
    let theirs = finetuned.expect(name, &[new, hidden])?;
    let theirs = theirs.view();
    let mut difference = Matrix::zeros(old, hidden);
    for &row in changed {
        let row = row as usize;
        let (a, b) = (ours.row_f32(row), theirs.row_f32(row));
        for ((d, a), b) in difference.row_mut(row).iter_mut().zip(a).zip(b) {
            *d = b - a;
        }
    }
    Ok(difference)
}

/// Stores the exact part of a plan; returns what the manifest says of it, without the factors.
pub(crate) fn store_exact(
    plan: &Plan,
    names: &EmbeddingNames,
    finetuned: &Finetuned,
    writer: &mut ArtifactWriter,
) -> Result<EmbeddingInfo, CompressError> {
    let config = finetuned.config();
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let theirs = finetuned.expect(names.full, &[vocab, hidden])?;
    let theirs = theirs.view();
    Ok(match plan {
        Plan::Unchanged => EmbeddingInfo::Unchanged,
        Plan::Base => EmbeddingInfo::Base,
        Plan::Full => {
            writer.raw(
                names.full,
                theirs.dtype.name(),
                vec![vocab, hidden],
                theirs.bytes.to_vec(),
            );
            EmbeddingInfo::Full {
                bytes: theirs.bytes.len() as u64,
            }
        }
        Plan::Rows(rows) => EmbeddingInfo::Rows {
            rows: rows.len(),
            bytes: store_rows(names, &theirs, rows, writer),
        },
        Plan::Factored(_, rows) => EmbeddingInfo::Factored {
            ranks: 0,
            rows: rows.len(),
            bytes: store_rows(names, &theirs, rows, writer),
            rel_error: None,
        },
    })
}

fn store_rows(names: &EmbeddingNames, matrix: &TensorView<'_>, rows: &[u32], writer: &mut ArtifactWriter) -> u64 {
    if rows.is_empty() {
        return 0;
    }
    let &[_, hidden] = matrix.shape else { return 0 };
    let stride = hidden * matrix.dtype.bytes();
    let values: Vec<u8> = rows
        .iter()
        .flat_map(|&row| {
            matrix.bytes[row as usize * stride..(row as usize + 1) * stride]
                .iter()
                .copied()
        })
        .collect();
    let ids: Vec<u8> = rows.iter().flat_map(|row| row.to_le_bytes()).collect();
    let bytes = (values.len() + ids.len()) as u64;
    writer.raw(names.rows, matrix.dtype.name(), vec![rows.len(), hidden], values);
    writer.raw(names.row_ids, "U32", vec![rows.len()], ids);
    bytes
}
