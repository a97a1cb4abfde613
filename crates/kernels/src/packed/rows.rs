//! Activations laid out as the tiles read them.

use half::bf16;

use crate::Threads;
use crate::scratch::{Element, Scratch};
use crate::threads::DisjointRows;

/// Rows that a tile of the widest register file holds.
pub(super) const MAX_ROWS: usize = 12;

/// Tile heights with 32 vector registers: two panels wide, so 12 rows take 24 accumulators.
const TALL: [usize; 7] = [12, 8, 6, 4, 3, 2, 1];

/// Tile heights with 16 vector registers, where a panel is two registers wide.
const LOW: [usize; 5] = [6, 4, 3, 2, 1];

/// Rows `[rows, inputs]` cut into tiles; within a tile element-major: element `k · tile rows + row`. An element is an
/// f32 input, or two inputs rounded to bf16, the first in the low half.
pub(super) struct RowTiles<E> {
    data: Scratch,
    tiles: Vec<RowTile>,
    /// Elements of a row.
    width: usize,
    element: std::marker::PhantomData<E>,
}

/// Which rows a tile holds.
#[derive(Clone, Copy)]
pub(super) struct RowTile {
    pub(super) first: usize,
    pub(super) rows: usize,
}

/// Inputs, their number rounded up to an even one with zeros.
impl RowTiles<f32> {
    /// Cuts `x` into tiles that suit this number of vector registers.
    pub(super) fn floats(x: &[f32], rows: usize, inputs: usize, registers: usize, threads: &Threads) -> Self {
        let mut tiles = Self::empty(rows, inputs.next_multiple_of(2), registers);
        tiles.fill(x, inputs, threads, |x, out, stride| {
            for (k, x) in x.iter().enumerate() {
                out[k * stride] = *x;
            }
            if !inputs.is_multiple_of(2) {
                out[inputs * stride] = 0.0;
            }
        });
        tiles
    }
}

/// Pairs of inputs rounded to bf16; an odd last one has a zero beside it.
impl RowTiles<u32> {
    /// Cuts `x` into tiles that suit this number of vector registers.
    pub(super) fn bf16_pairs(x: &[f32], rows: usize, inputs: usize, registers: usize, threads: &Threads) -> Self {
        let mut tiles = Self::empty(rows, inputs.div_ceil(2), registers);
        let round = |x: f32| u32::from(bf16::from_f32(x).to_bits());
        tiles.fill(x, inputs, threads, |x, out, stride| {
            for (k, pair) in x.chunks(2).enumerate() {
                out[k * stride] = round(pair[0]) | pair.get(1).map_or(0, |x| round(*x)) << 16;
            }
        });
        tiles
    }
}

impl<E: Element> RowTiles<E> {
    fn empty(rows: usize, width: usize, registers: usize) -> Self {
        let heights: &[usize] = if registers >= 32 { &TALL } else { &LOW };
        let mut tiles = Vec::with_capacity(rows / heights[0] + heights.len());
        let mut first = 0;
        for &height in heights {
            while rows - first >= height {
                tiles.push(RowTile { first, rows: height });
                first += height;
            }
        }
        Self {
            data: Scratch::new(rows * width),
            tiles,
            width,
            element: std::marker::PhantomData,
        }
    }

    /// Lets `write(row of x, out, stride)` put all of each row's elements at multiples of `stride`.
    fn fill(&mut self, x: &[f32], inputs: usize, threads: &Threads, write: impl Fn(&[f32], &mut [E], usize) + Sync) {
        let data = self.data.get_mut();
        let (tiles, cost) = (&self.tiles, data.len());
        let out: DisjointRows<'_, E> = DisjointRows::new(data, self.width);
        threads.for_each(tiles.len(), cost, |t| {
            let RowTile { first, rows } = tiles[t];
            // SAFETY: tiles hold different rows, and those of one lie together.
            let out = unsafe { out.rows(first, rows) };
            let x = x[first * inputs..(first + rows) * inputs].chunks_exact(inputs);
            for (m, x) in x.enumerate() {
                write(x, &mut out[m..], rows);
            }
        });
    }

    pub(super) fn tiles(&self) -> &[RowTile] {
        &self.tiles
    }

    /// Elements `from .. to` of a tile's rows, `[to - from, tile rows]`.
    pub(super) fn elements(&self, tile: RowTile, from: usize, to: usize) -> &[E] {
        let start = tile.first * self.width;
        &self.data.get()[start + from * tile.rows..start + to * tile.rows]
    }
}
