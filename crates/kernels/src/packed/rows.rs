//! Activations laid out as the tiles read them.

use crate::Threads;
use crate::threads::DisjointRows;

/// Rows that a tile of the widest register file holds.
pub(super) const MAX_ROWS: usize = 12;

/// Tile heights with 32 vector registers: two panels wide, so 12 rows take 24 accumulators.
const TALL: [usize; 7] = [12, 8, 6, 4, 3, 2, 1];

/// Tile heights with 16 vector registers, where a panel is two registers wide.
const LOW: [usize; 5] = [6, 4, 3, 2, 1];

/// Rows `[rows, inputs]` cut into tiles; within a tile input-major: element `k · tile rows + row`.
pub(super) struct RowTiles {
    data: Vec<f32>,
    tiles: Vec<RowTile>,
    /// Inputs, rounded up to an even number with zeros.
    inputs: usize,
}

/// Which rows a tile holds.
#[derive(Clone, Copy)]
pub(super) struct RowTile {
    pub(super) first: usize,
    pub(super) rows: usize,
}

impl RowTiles {
    /// Cuts `x` into tiles that suit this number of vector registers.
    pub(super) fn new(x: &[f32], rows: usize, inputs: usize, registers: usize, threads: &Threads) -> Self {
        let heights: &[usize] = if registers >= 32 { &TALL } else { &LOW };
        let mut tiles = Vec::with_capacity(rows.div_ceil(heights[0]) + heights.len());
        let mut first = 0;
        for &height in heights {
            while rows - first >= height {
                tiles.push(RowTile { first, rows: height });
                first += height;
            }
        }
        let even = inputs.next_multiple_of(2);
        let mut data = vec![0.0; rows * even];
        let out = DisjointRows::new(&mut data, even);
        threads.for_each(tiles.len(), rows * even, |t| {
            let RowTile { first, rows } = tiles[t];
            // SAFETY: tiles hold different rows, and those of one lie together.
            let out = unsafe { out.rows(first, rows) };
            let x = &x[first * inputs..(first + rows) * inputs];
            if rows == 1 {
                out[..inputs].copy_from_slice(x);
                return;
            }
            for (m, x) in x.chunks_exact(inputs).enumerate() {
                for (out, x) in out.chunks_exact_mut(rows).zip(x) {
                    out[m] = *x;
                }
            }
        });
        Self {
            data,
            tiles,
            inputs: even,
        }
    }

    pub(super) fn tiles(&self) -> &[RowTile] {
        &self.tiles
    }

    /// Inputs `from .. to` of a tile, `[to - from, tile rows]`.
    pub(super) fn inputs(&self, tile: RowTile, from: usize, to: usize) -> &[f32] {
        let start = tile.first * self.inputs;
        &self.data[start + from * tile.rows..start + to * tile.rows]
    }
}
