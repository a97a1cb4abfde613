//! Products of activations with one or several packed matrices.

use std::cell::Cell;

use super::matrix::Weights;
use super::rows::{RowTile, RowTiles};
use super::tile::{Accumulators, TileKernel, bf16_dot_tile, bf16_tile, f32_tile};
use super::{PANEL, PackedMatrix};
use crate::Threads;
use crate::isa::registers;
use crate::quantised::{self, QuantisedRows};
use crate::scratch::Element;
use crate::threads::DisjointRows;

/// Output columns that one task computes.
const TASK_COLUMNS: usize = 64;

/// Pairs of inputs of a block: two panels of it and a tile's activations stay in the second-level cache. Shorter blocks,
/// which would stay in the first, measured 5 % slower: the sums are stored and loaded once a block.
const BLOCK_PAIRS: usize = 1024;

/// Rows of a block: their activations of one block of inputs stay in the second-level cache.
const BLOCK_ROWS: usize = 240;

/// A matrix of a joint product and where its outputs go.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    /// The weights.
    pub matrix: &'a PackedMatrix,
    /// First of its columns in the result.
    pub column: usize,
}

/// `y[m][column ..] = W x[m]` for each matrix, in one parallel region; `x` is `[rows, inputs]`, `y` `[rows, stride]`.
///
/// # Panics
/// If `x` or `y` has another length, a matrix has other inputs, or the columns of two matrices overlap or exceed
/// `stride`.
pub fn multiply(products: &[Product<'_>], x: &[f32], rows: usize, y: &mut [f32], stride: usize, threads: &Threads) {
    let Some(inputs) = products.first().map(|p| p.matrix.inputs()) else {
        return;
    };
    assert_eq!(x.len(), rows * inputs, "x is [rows, inputs]");
    assert_eq!(y.len(), rows * stride, "y is [rows, stride]");
    let mut columns: Vec<_> = products
        .iter()
        .map(|p| (p.column, p.column + p.matrix.outputs()))
        .collect();
    columns.sort_unstable();
    for (i, (_, end)) in columns.iter().enumerate() {
        let limit = columns.get(i + 1).map_or(stride, |next| next.0);
        assert!(
            *end <= limit,
            "columns of products neither overlap nor exceed the stride"
        );
    }
    assert!(
        products.iter().all(|p| p.matrix.inputs() == inputs),
        "all matrices have as many inputs as x"
    );
    if rows == 0 || inputs == 0 {
        for y in y.chunks_exact_mut(stride) {
            columns.iter().for_each(|&(from, to)| y[from..to].fill(0.0));
        }
        return;
    }
    // Laid out once for each form in which a matrix reads them.
    let wants = |form: fn(&Weights) -> bool| products.iter().any(|p| form(&p.matrix.weights));
    let floats = wants(|w| matches!(w, Weights::Bf16(_) | Weights::F32(_)))
        .then(|| RowTiles::floats(x, rows, inputs, registers(), threads));
    let pairs = wants(|w| matches!(w, Weights::Bf16Activations(_)))
        .then(|| RowTiles::bf16_pairs(x, rows, inputs, registers(), threads));
    let bytes = wants(|w| matches!(w, Weights::Quantised(_))).then(|| {
        let mut bytes = BYTES.take();
        bytes.quantise(x, rows, inputs, threads);
        bytes
    });
    let y = DisjointRows::new(y, stride);
    let tasks: Vec<(&Product<'_>, usize)> = products
        .iter()
        .flat_map(|p| {
            (0..p.matrix.outputs())
                .step_by(TASK_COLUMNS)
                .map(move |first| (p, first))
        })
        .collect();
    let outputs: usize = products.iter().map(|p| p.matrix.outputs()).sum();
    threads.for_each(tasks.len(), rows * inputs * outputs, |task| {
        let (product, first) = tasks[task];
        let column = product.column;
        match (&product.matrix.weights, &floats, &pairs, &bytes) {
            (Weights::Bf16(w), Some(x), ..) => panels(product, w, first, x, 2, &y, bf16_tile),
            (Weights::F32(w), Some(x), ..) => panels(product, w, first, x, 2, &y, f32_tile),
            (Weights::Bf16Activations(w), _, Some(x), _) => panels(product, w, first, x, 1, &y, bf16_dot_tile),
            (Weights::Quantised(matrix), .., Some(x)) => {
                let last = (first + TASK_COLUMNS).min(matrix.outputs());
                let panels = first / quantised::PANEL..last.div_ceil(quantised::PANEL);
                // SAFETY: tasks own different columns of y.
                unsafe { matrix.columns(panels, x, 0..rows, &y, column) };
            }
            _ => unreachable!("the activations were laid out for every matrix"),
        }
    });
    if let Some(bytes) = bytes {
        BYTES.set(bytes);
    }
}

thread_local! {
    /// Memory of the last call's quantised activations, for the next.
    static BYTES: Cell<QuantisedRows> = Cell::default();
}

/// Computes up to [`TASK_COLUMNS`] outputs from `first` on for all rows; `elements` of the activations make a pair of
/// inputs.
#[allow(clippy::too_many_arguments)]
fn panels<P: bytemuck::AnyBitPattern, E: Element>(
    product: &Product<'_>,
    weights: &[u8],
    first: usize,
    tiles: &RowTiles<E>,
    elements: usize,
    y: &DisjointRows<'_>,
    kernel: TileKernel<P, E>,
) {
    let (outputs, pairs) = (product.matrix.outputs(), product.matrix.inputs().div_ceil(2));
    let last = (first + TASK_COLUMNS).min(outputs);
    let weights: &[P] = bytemuck::cast_slice(weights);
    let mut sums: Accumulators = bytemuck::Zeroable::zeroed();
    for block in row_blocks(tiles.tiles()) {
        for from in (0..pairs).step_by(BLOCK_PAIRS) {
            let to = (from + BLOCK_PAIRS).min(pairs);
            for column in (first..last).step_by(PANEL) {
                let start = column / PANEL * pairs;
                let panel = &weights[start + from..start + to];
                let columns = (outputs - column).min(PANEL);
                for tile in block {
                    for (m, sums) in sums[..tile.rows].iter_mut().enumerate() {
                        // SAFETY: tasks own different columns of y, and this one holds one row's part at a time.
                        let y = unsafe { y.part(tile.first + m, product.column + column, columns) };
                        match from {
                            0 => *sums = bytemuck::Zeroable::zeroed(),
                            _ => copy(y, sums.as_flattened_mut()),
                        }
                    }
                    let x = tiles.elements(*tile, from * elements, to * elements);
                    kernel(panel, x, tile.rows, &mut sums);
                    for (m, sums) in sums[..tile.rows].iter().enumerate() {
                        // SAFETY: as above.
                        let y = unsafe { y.part(tile.first + m, product.column + column, columns) };
                        copy(sums.as_flattened(), y);
                    }
                }
            }
        }
    }
}

/// Copies as many elements as the shorter one has; most often a panel, known to the compiler.
#[inline]
fn copy(from: &[f32], to: &mut [f32]) {
    match (from.as_array::<PANEL>(), to.as_mut_array::<PANEL>()) {
        (Some(from), Some(to)) => *to = *from,
        _ => to.iter_mut().zip(from).for_each(|(to, from)| *to = *from),
    }
}

/// Runs of tiles with about [`BLOCK_ROWS`] rows.
fn row_blocks(tiles: &[RowTile]) -> impl Iterator<Item = &[RowTile]> {
    tiles.chunk_by(|a, b| a.first / BLOCK_ROWS == b.first / BLOCK_ROWS)
}
