//! Rows of activations in 8 bits.

use std::sync::Mutex;

use super::group::{Codes, quantise};
use super::layout::{BLOCK, GROUP, MIDDLE};
use super::tile::Kernel;
use crate::Threads;

/// Rows that lie together, block by block.
pub(super) const ROW_GROUP: usize = 8;

/// Rows of activations quantised for products with any number of [`QuantisedMatrix`](super::QuantisedMatrix) of as many
/// inputs. A value is reused: [`QuantisedRows::quantise`] replaces what it holds.
///
/// Each row is cut into groups of [`GROUP`], with codes `round(x / scale)` and `scale = max |x| / 127`.
#[derive(Debug, Clone, Default)]
pub struct QuantisedRows {
    rows: usize,
    inputs: usize,
    /// For each group of rows and block: 64 codes of each row.
    codes: Vec<i8>,
    /// The same codes as i16, in each quad inputs 0, 2, 1, 3; for kernels that multiply i16.
    wide: Vec<i16>,
    /// For each group of rows and group of inputs: the scale of each row.
    scales: Vec<f32>,
    /// The sum of the group's activations, where the scale is.
    sums: Vec<f32>,
    /// Minus the sum of the group's codes, times [`MIDDLE`]; where the scale is.
    biases: Vec<i32>,
}

/// The rows of a group from one block on.
#[derive(Clone, Copy)]
pub(super) struct RowGroup<'a> {
    pub(super) rows: usize,
    pub(super) codes: &'a [i8],
    pub(super) wide: &'a [i16],
    pub(super) scales: &'a [f32],
    pub(super) sums: &'a [f32],
    pub(super) biases: &'a [i32],
}

/// What one task of [`QuantisedRows::quantise`] writes.
struct Part<'a> {
    codes: &'a mut [i8],
    wide: &'a mut [i16],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
    biases: &'a mut [i32],
}

impl QuantisedRows {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Length of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Quantises `x`, `[rows, inputs]`.
    ///
    /// # Panics
    /// If `x` has another length.
    pub fn quantise(&mut self, x: &[f32], rows: usize, inputs: usize, threads: &Threads) {
        self.quantise_for(Kernel::best(), x, rows, inputs, threads);
    }

    pub(super) fn quantise_for(&mut self, kernel: Kernel, x: &[f32], rows: usize, inputs: usize, threads: &Threads) {
        assert_eq!(Some(x.len()), rows.checked_mul(inputs), "x is [rows, inputs]");
        let blocks = inputs.div_ceil(BLOCK);
        let elements = rows * blocks * BLOCK;
        (self.rows, self.inputs) = (rows, inputs);
        self.codes.resize(elements, 0);
        self.wide.resize(if kernel.reads_wide() { elements } else { 0 }, 0);
        self.scales.resize(elements / GROUP, 0.0);
        self.sums.resize(elements / GROUP, 0.0);
        self.biases.resize(elements / GROUP, 0);
        if elements == 0 {
            return;
        }
        let size = blocks * BLOCK * ROW_GROUP;
        let mut wide = self.wide.chunks_mut(size);
        let parts: Vec<_> = (self.codes.chunks_mut(size))
            .zip(self.scales.chunks_mut(size / GROUP))
            .zip(self.sums.chunks_mut(size / GROUP))
            .zip(self.biases.chunks_mut(size / GROUP))
            .map(|(((codes, scales), sums), biases)| {
                let wide = wide.next().unwrap_or_default();
                Mutex::new(Part {
                    codes,
                    wide,
                    scales,
                    sums,
                    biases,
                })
            })
            .collect();
        threads.for_each(parts.len(), elements, |i| {
            // No other task locks this part, and a poisoned one would not be read.
            let mut part = parts[i].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let rows = (rows - i * ROW_GROUP).min(ROW_GROUP);
            let x = &x[i * ROW_GROUP * inputs..][..rows * inputs];
            for (row, x) in x.chunks_exact(inputs).enumerate() {
                part.quantise(x, row, rows);
            }
        });
    }

    /// The group of rows from `first` on, a multiple of [`ROW_GROUP`], and of those its blocks from `block` on.
    #[inline]
    pub(super) fn group(&self, first: usize, block: usize) -> RowGroup<'_> {
        let blocks = self.inputs.div_ceil(BLOCK);
        let rows = (self.rows - first).min(ROW_GROUP);
        let (start, end) = ((first * blocks + rows * block) * BLOCK, (first + rows) * blocks * BLOCK);
        RowGroup {
            rows,
            codes: &self.codes[start..end],
            wide: if self.wide.is_empty() {
                &[]
            } else {
                &self.wide[start..end]
            },
            scales: &self.scales[start / GROUP..end / GROUP],
            sums: &self.sums[start / GROUP..end / GROUP],
            biases: &self.biases[start / GROUP..end / GROUP],
        }
    }
}

impl Part<'_> {
    /// Quantises row `row` of a group of `rows`.
    fn quantise(&mut self, x: &[f32], row: usize, rows: usize) {
        let mut groups = x.chunks(GROUP);
        let codes = self.codes.as_chunks_mut::<GROUP>().0;
        let wide = self.wide.as_chunks_mut::<GROUP>().0;
        for i in 0..x.len().div_ceil(BLOCK) * (BLOCK / GROUP) {
            let group = groups.next().unwrap_or_default();
            let mut padded = [0.0; GROUP];
            let group = group.first_chunk().unwrap_or_else(|| {
                padded[..group.len()].copy_from_slice(group);
                &padded
            });
            let at = (i / 2 * rows + row) * (BLOCK / GROUP) + i % 2;
            let codes = Codes {
                codes: &mut codes[at],
                wide: wide.get_mut(at),
            };
            let (scale, sum) = quantise(group, codes);
            let at = i * rows + row;
            self.scales[at] = scale;
            self.sums[at] = scale * sum as f32;
            self.biases[at] = -i32::from(MIDDLE) * sum;
        }
    }
}
