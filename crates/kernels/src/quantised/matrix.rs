//! A weight matrix of 8 or 4 bits.

use std::ops::Range;

use super::encode::encode;
use super::layout::{BLOCK, Bits, GROUP, SCALE_BYTES};
use super::rows::{QuantisedRows, ROW_GROUP};
use super::tile::{Kernel, scale, weight, zero};
use crate::lanes::{LANES, Lanes};
use crate::quantised::layout::PANEL;
use crate::scratch::Scratch;
use crate::threads::DisjointRows;
use crate::{AlignedBytes, Bytes, Threads};

/// Panels that share the rows while these are in the cache, and that one task computes.
pub(crate) const TASK_PANELS: usize = 4;

/// Rows that share a part of the panels while it is in the cache.
const ROW_BLOCK: usize = 16 * ROW_GROUP;

/// Blocks of a panel that are reused by the rows: 17 KB of 8-bit weights.
const BLOCKS: usize = 16;

/// Rows from which on the arithmetic leaves the processor too little room to look ahead by itself.
const FETCHING_ROWS: usize = 4;

/// Bytes between what is read and what is fetched, where a panel is read in one go.
const DISTANCE: usize = 2048;

/// A weight matrix `[outputs, inputs]` in 8 or 4 bits, packed for `y = x Wᵀ`. Cloning shares the weights.
#[derive(Debug, Clone)]
pub struct QuantisedMatrix {
    bits: Bits,
    outputs: usize,
    inputs: usize,
    packed: Bytes,
}

impl QuantisedMatrix {
    /// Quantises a row-major matrix.
    ///
    /// # Panics
    /// If `weights` does not have `outputs · inputs` elements.
    pub fn quantise(weights: &[f32], outputs: usize, inputs: usize, bits: Bits, threads: &Threads) -> Self {
        assert_eq!(
            Some(weights.len()),
            outputs.checked_mul(inputs),
            "weights are [outputs, inputs]"
        );
        let row = |output: usize, row: &mut [f32]| row.copy_from_slice(&weights[output * inputs..][..inputs]);
        Self::from_rows(outputs, inputs, bits, threads, row)
    }

    /// Quantises the matrix whose row of an output `row(output, values)` writes to `values` (length `inputs`), so that
    /// the whole of it never exists in f32.
    ///
    /// # Panics
    /// If the packed matrix would be larger than memory.
    pub fn from_rows(
        outputs: usize,
        inputs: usize,
        bits: Bits,
        threads: &Threads,
        row: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Self {
        let mut packed = AlignedBytes::zeroed(bits.packed_bytes(outputs, inputs).expect("a matrix fits in memory"));
        let parts = DisjointRows::new(&mut packed[..], bits.panel_bytes(inputs));
        // Encoding a weight costs more than a multiply-add.
        threads.for_each(outputs.div_ceil(PANEL), outputs.saturating_mul(inputs), |panel| {
            // SAFETY: each panel's bytes are handed out once.
            let packed = unsafe { parts.rows(panel, 1) };
            let padded = inputs.next_multiple_of(BLOCK);
            let mut values = vec![0.0; PANEL * padded];
            for (output, values) in (panel * PANEL..outputs).zip(values.chunks_exact_mut(padded.max(1))) {
                row(output, &mut values[..inputs]);
            }
            encode(bits, &values, packed);
        });
        Self {
            bits,
            outputs,
            inputs,
            packed: packed.into(),
        }
    }

    /// A matrix from what [`QuantisedMatrix::packed`] gave, for example from a mapped file; `None` if `packed` has
    /// another length than such a matrix. Any content is safe to compute with.
    pub fn from_packed(packed: Bytes, outputs: usize, inputs: usize, bits: Bits) -> Option<Self> {
        (bits.packed_bytes(outputs, inputs) == Some(packed.len())).then_some(Self {
            bits,
            outputs,
            inputs,
            packed,
        })
    }

    /// The packed weights.
    pub fn packed(&self) -> &Bytes {
        &self.packed
    }

    /// Width of the codes.
    pub fn bits(&self) -> Bits {
        self.bits
    }

    /// Length of an output row.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Length of an input row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes that the packed weights occupy.
    pub fn bytes(&self) -> usize {
        self.packed.len()
    }

    /// Writes weight row `output`, dequantised, to `row` (length `inputs`): an embedding look-up.
    ///
    /// # Panics
    /// If `output` is not below `outputs` or `row` has another length.
    pub fn row(&self, output: usize, row: &mut [f32]) {
        assert!(output < self.outputs, "row {output} of {} outputs", self.outputs);
        assert_eq!(row.len(), self.inputs, "row is [inputs]");
        let column = output % PANEL;
        let (head, blocks) = self.panel(output / PANEL);
        let unit = self.unit(head, column);
        for (block, row) in blocks.chunks_exact(self.bits.block_bytes()).zip(row.chunks_mut(BLOCK)) {
            let (scales, codes) = block.split_at(SCALE_BYTES);
            for (k, w) in row.iter_mut().enumerate() {
                let level = weight(self.bits, codes, column, k) as f32 - zero(self.bits, scales, column, k / GROUP);
                *w = level * scale(self.bits, scales, column, k / GROUP) * unit;
            }
        }
    }

    /// `y[m] = W x[m]`; `x` is `[rows, inputs]`, `y` `[rows, outputs]`.
    ///
    /// # Panics
    /// If `x` or `y` has another length.
    pub fn matmul(&self, x: &[f32], rows: usize, y: &mut [f32], threads: &Threads) {
        let mut quantised = QuantisedRows::new();
        quantised.quantise(x, rows, self.inputs, threads);
        self.matmul_quantised(&quantised, y, threads);
    }

    /// `y[m] = W x[m]`; `y` is `[rows, outputs]`.
    ///
    /// # Panics
    /// If the rows are not `inputs` long or `y` has another length.
    pub fn matmul_quantised(&self, x: &QuantisedRows, y: &mut [f32], threads: &Threads) {
        assert_eq!(
            Some(y.len()),
            x.rows().checked_mul(self.outputs),
            "y is [rows, outputs]"
        );
        let panels = self.outputs.div_ceil(PANEL);
        let cost = y.len() * self.inputs;
        let y = DisjointRows::new(y, self.outputs);
        threads.for_each(panels.div_ceil(TASK_PANELS), cost, |task| {
            let panels = task * TASK_PANELS..panels.min((task + 1) * TASK_PANELS);
            // SAFETY: no two tasks have a panel in common.
            unsafe { self.columns(panels, x, 0..x.rows(), &y, 0) };
        });
    }

    /// Computes the outputs of some panels for some rows of `x`, into the same rows of `y`, where output 0 is column
    /// `column`.
    ///
    /// # Safety
    /// No other thread reads or writes these rows of these columns of `y` meanwhile.
    ///
    /// # Panics
    /// If there are no such panels or rows, the first row is not a multiple of eight or the rows have another length.
    pub(crate) unsafe fn columns(
        &self,
        panels: Range<usize>,
        x: &QuantisedRows,
        rows: Range<usize>,
        y: &DisjointRows<'_>,
        column: usize,
    ) {
        // SAFETY: as the caller promises.
        unsafe { self.columns_on(Kernel::best(), panels, x, rows, y, column) }
    }

    /// [`Self::columns`] on one kernel.
    ///
    /// # Safety
    /// As for [`Self::columns`].
    pub(super) unsafe fn columns_on(
        &self,
        kernel: Kernel,
        panels: Range<usize>,
        x: &QuantisedRows,
        rows: Range<usize>,
        y: &DisjointRows<'_>,
        column: usize,
    ) {
        assert_eq!(
            x.inputs(),
            self.inputs,
            "rows of x are as long as the matrix has inputs"
        );
        assert!(panels.end <= self.outputs.div_ceil(PANEL), "panels of the matrix");
        let whole = |row: usize| row.is_multiple_of(ROW_GROUP) || row == x.rows();
        assert!(
            whole(rows.start) && whole(rows.end) && rows.end <= x.rows(),
            "rows of x"
        );
        for first_panel in panels.clone().step_by(TASK_PANELS) {
            let panels = first_panel..panels.end.min(first_panel + TASK_PANELS);
            for first_row in rows.clone().step_by(ROW_BLOCK) {
                let rows = first_row..rows.end.min(first_row + ROW_BLOCK);
                // SAFETY: as the caller promises.
                unsafe { self.some_columns(kernel, panels.clone(), x, rows, y, column) };
            }
        }
    }

    /// Some panels times some rows whose accumulators fit in the cache.
    ///
    /// # Safety
    /// As for [`Self::columns`].
    unsafe fn some_columns(
        &self,
        kernel: Kernel,
        panels: Range<usize>,
        x: &QuantisedRows,
        rows: Range<usize>,
        y: &DisjointRows<'_>,
        column: usize,
    ) {
        let size = self.bits.block_bytes();
        let blocks = self.inputs.div_ceil(BLOCK);
        // Rows that are computed together read the panels best in one go; with more there is a part to reuse.
        let alone = rows.len() <= kernel.rows();
        let step = if alone { blocks.max(1) } else { BLOCKS };
        // For each panel a vector for each row.
        let mut sums = Scratch::new(panels.len() * rows.len() * LANES);
        let sums = sums.get_mut::<f32>();
        sums.fill(0.0);
        let sums: &mut [Lanes] = sums.as_chunks_mut().0;
        let part = |panel: usize, block: usize| {
            let (_, weights) = self.panel(panel);
            &weights[block * size..blocks.min(block + step) * size]
        };
        let last_panel = self.outputs.div_ceil(PANEL) - 1;
        let groups = rows.len().div_ceil(ROW_GROUP);
        for block in (0..blocks).step_by(step) {
            for (i, start) in (0..rows.len()).step_by(ROW_GROUP).enumerate() {
                let group = x.group(rows.start + start, block);
                for (panel, sums) in panels.clone().zip(sums.chunks_exact_mut(rows.len())) {
                    // What comes next in memory, while this part is computed.
                    let ahead = match block + step < blocks {
                        _ if alone && rows.len() < FETCHING_ROWS => &[],
                        _ if alone => self.after(panel),
                        true => part(panel, block + step),
                        false => part((panel + TASK_PANELS).min(last_panel), 0),
                    };
                    let ahead = &ahead[ahead.len() * i / groups..ahead.len() * (i + 1) / groups];
                    let sums = &mut sums[start..rows.len().min(start + ROW_GROUP)];
                    kernel.accumulate(self.bits, part(panel, block), group, sums, ahead);
                }
            }
        }
        for (panel, sums) in panels.zip(sums.chunks_exact(rows.len())) {
            let (head, _) = self.panel(panel);
            let units: Lanes = std::array::from_fn(|column| self.unit(head, column));
            let first = panel * PANEL;
            let columns = (self.outputs - first).min(PANEL);
            for (row, sums) in rows.clone().zip(sums) {
                // SAFETY: as the caller promises; each part is gone before the next one is taken.
                let y = unsafe { y.part(row, column + first, columns) };
                for ((y, sum), unit) in y.iter_mut().zip(sums).zip(&units) {
                    *y = sum * unit;
                }
            }
        }
    }

    /// As many bytes as a panel has, from a little after its start on: fetching them runs ahead of reading the panel.
    fn after(&self, panel: usize) -> &[u8] {
        let size = self.bits.panel_bytes(self.inputs);
        let start = panel * size + self.bits.head_bytes() + DISTANCE;
        &self.packed[start.min(self.packed.len())..(start + size).min(self.packed.len())]
    }

    /// Head and blocks of a panel.
    #[inline(always)]
    fn panel(&self, panel: usize) -> (&[u8], &[u8]) {
        let size = self.bits.panel_bytes(self.inputs);
        self.packed[panel * size..][..size].split_at(self.bits.head_bytes())
    }

    /// What all products of a column are multiplied by in the end.
    #[inline(always)]
    fn unit(&self, head: &[u8], column: usize) -> f32 {
        match self.bits {
            Bits::Eight => 1.0,
            Bits::Four => f32::from_le_bytes(std::array::from_fn(|i| head[column * 4 + i])),
        }
    }
}
