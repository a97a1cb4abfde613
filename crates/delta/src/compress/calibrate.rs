//! Second moments of every linear's input, gathered while the fine-tune reads the calibration texts.

use std::collections::{BTreeMap, BTreeSet};

use deltamux_model::backend::PAGE_TOKENS;
use deltamux_model::{Backend as _, CpuBackend, LinearId, LinearKind, LogitRows, SequenceChunk};
use faer::linalg::matmul::matmul;
use faer::{Accum, MatRef, Par};
use rayon::prelude::*;

use super::error::CompressError;
use super::linalg::Matrix;
use super::samples::Samples;

/// Tokens of one forward pass.
const BATCH_TOKENS: usize = 1024;

/// Rows of `C` that one task updates. Fixed, so that sums do not depend on the number of threads.
const BLOCK: usize = 128;

/// A distinct linear input of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct InputId {
    pub layer: usize,
    /// The first linear that reads it: q (also k and v), o, gate (also up) or down.
    pub first: LinearKind,
}

impl InputId {
    /// The input that a linear reads.
    pub fn of(id: LinearId) -> Self {
        let first = match id.kind {
            LinearKind::Q | LinearKind::K | LinearKind::V => LinearKind::Q,
            LinearKind::O => LinearKind::O,
            LinearKind::Gate | LinearKind::Up => LinearKind::Gate,
            LinearKind::Down => LinearKind::Down,
        };
        Self { layer: id.layer, first }
    }
}

/// A running sum of `x xᵀ`, lower triangle in blocks of rows.
#[derive(Debug, Clone)]
pub(crate) struct Moments {
    inputs: usize,
    blocks: Vec<Matrix<f32>>,
    rows: usize,
}

impl Moments {
    pub fn new(inputs: usize) -> Self {
        let blocks = (0..inputs)
            .step_by(BLOCK)
            .map(|start| {
                let end = (start + BLOCK).min(inputs);
                Matrix::zeros(end - start, end)
            })
            .collect();
        Self {
            inputs,
            blocks,
            rows: 0,
        }
    }

    /// Adds rows `[n, inputs]`.
    pub fn add(&mut self, rows: &[f32]) {
        let x = MatRef::from_row_major_slice(rows, rows.len() / self.inputs, self.inputs);
        self.rows += x.nrows();
        self.blocks.par_iter_mut().enumerate().for_each(|(b, block)| {
            let (start, count, end) = (b * BLOCK, block.rows, block.cols);
            let left = x.subcols(start, count).transpose();
            matmul(block.view_mut(), Accum::Add, left, x.subcols(0, end), 1.0, Par::Seq);
        });
    }

    /// `C = X Xᵀ / n`.
    pub fn mean(&self) -> Matrix<f64> {
        let mut c = Matrix::zeros(self.inputs, self.inputs);
        let scale = 1.0 / self.rows.max(1) as f64;
        for (b, block) in self.blocks.iter().enumerate() {
            for i in 0..block.rows {
                let row = b * BLOCK + i;
                for (col, &x) in block.row(i).iter().enumerate().take(row + 1) {
                    let x = f64::from(x) * scale;
                    c.row_mut(row)[col] = x;
                    c.row_mut(col)[row] = x;
                }
            }
        }
        c
    }
}

/// Moments of every input on the calibration texts and, apart, on the held-out ones.
#[derive(Debug, Default)]
pub(crate) struct Calibration {
    pub calibration: BTreeMap<InputId, Moments>,
    pub heldout: BTreeMap<InputId, Moments>,
}

/// Runs the texts through `model` and gathers the moments of the inputs `wanted`; `progress` gets the number of texts
/// done.
pub(crate) fn calibrate(
    model: &mut CpuBackend,
    samples: &Samples,
    wanted: &BTreeSet<InputId>,
    progress: &dyn Fn(usize),
) -> Result<Calibration, CompressError> {
    let mut done = 0;
    let mut half = |texts: &[Vec<u32>]| -> Result<BTreeMap<InputId, Moments>, CompressError> {
        let mut moments = BTreeMap::new();
        for batch in batches(texts) {
            observe(model, batch, wanted, &mut moments)?;
            done += batch.len();
            progress(done);
        }
        Ok(moments)
    };
    Ok(Calibration {
        calibration: half(&samples.calibration)?,
        heldout: half(&samples.heldout)?,
    })
}

/// Cuts texts into runs of about [`BATCH_TOKENS`] tokens.
fn batches(texts: &[Vec<u32>]) -> Vec<&[Vec<u32>]> {
    let mut batches = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (i, text) in texts.iter().enumerate() {
        if i > start && tokens + text.len() > BATCH_TOKENS {
            batches.push(&texts[start..i]);
            (start, tokens) = (i, 0);
        }
        tokens += text.len();
    }
    if start < texts.len() {
        batches.push(&texts[start..]);
    }
    batches
}

fn observe(
    model: &mut CpuBackend,
    batch: &[Vec<u32>],
    wanted: &BTreeSet<InputId>,
    moments: &mut BTreeMap<InputId, Moments>,
) -> Result<(), CompressError> {
    let mut pages = Vec::new();
    let mut next = 0u32;
    for text in batch {
        let count = text.len().div_ceil(PAGE_TOKENS) as u32;
        pages.push((next..next + count).collect::<Vec<u32>>());
        next += count;
    }
    model.allocate_kv(next as usize);
    let chunks: Vec<SequenceChunk<'_>> = batch
        .iter()
        .zip(&pages)
        .map(|(tokens, pages)| SequenceChunk {
            tokens,
            start: 0,
            pages,
            variant: None,
            logits: LogitRows::None,
        })
        .collect();
    let tokens: usize = batch.iter().map(Vec::len).sum();
    model.forward_observed(&chunks, &mut |id, rows| {
        let input = InputId::of(id);
        if input.first == id.kind && wanted.contains(&input) {
            let width = rows.len() / tokens;
            moments.entry(input).or_insert_with(|| Moments::new(width)).add(rows);
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_the_mean_outer_product() {
        let n = 200;
        let rows: Vec<f32> = (0..5 * n).map(|i| ((i * 31 % 17) as f32 - 8.0) / 8.0).collect();
        let mut moments = Moments::new(n);
        moments.add(&rows[..2 * n]);
        moments.add(&rows[2 * n..]);
        assert_eq!(moments.rows, 5);
        let c = moments.mean();
        for (i, j) in [(0, 0), (3, 150), (150, 3), (199, 128)] {
            let expected: f64 = (0..5)
                .map(|r| f64::from(rows[r * n + i]) * f64::from(rows[r * n + j]))
                .sum::<f64>()
                / 5.0;
            assert!((c.row(i)[j] - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn batches_keep_every_text_and_split_long_ones_off() {
        let texts = vec![vec![0; 600], vec![0; 500], vec![0; 3000], vec![0; 10]];
        let sizes: Vec<usize> = batches(&texts).iter().map(|b| b.len()).collect();
        assert_eq!(sizes, [1, 1, 1, 1]);
        assert_eq!(batches(&texts[..0]).len(), 0);
        assert_eq!(batches(&[vec![0; 10], vec![0; 10]]).len(), 1);
    }
}
