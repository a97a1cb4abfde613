//! Queries of a task, packed in register tiles.

use std::ops::Range;

use super::MAX_HEAD_DIM;
use super::tile::tiles;

/// Queries (query heads of rows) of a task, in tiles that are computed together.
#[derive(Debug, Default)]
pub(super) struct QueryTiles {
    dim: usize,
    /// Positions that each query sees, ascending.
    counts: Vec<usize>,
    /// Tile after tile, `[head_dim, queries of the tile]` each.
    packed: Vec<f32>,
    tiles: Vec<Range<usize>>,
}

impl QueryTiles {
    /// Packs queries of `dim` elements, scaled by `1 / √dim`. `query(i, values)` writes the values of query `i` and
    /// returns how many positions it sees, no fewer than the one before.
    pub(super) fn pack(&mut self, queries: usize, dim: usize, mut query: impl FnMut(usize, &mut [f32]) -> usize) {
        let scale = 1.0 / (dim as f32).sqrt();
        self.dim = dim;
        self.counts.clear();
        self.packed.resize(queries * dim, 0.0);
        self.tiles.clear();
        self.tiles.extend(tiles(queries));
        let mut values = [0.0; MAX_HEAD_DIM];
        for tile in &self.tiles {
            let packed = &mut self.packed[tile.start * dim..tile.end * dim];
            for (m, i) in tile.clone().enumerate() {
                self.counts.push(query(i, &mut values[..dim]));
                for (packed, value) in packed.chunks_exact_mut(tile.len()).zip(&values) {
                    packed[m] = value * scale;
                }
            }
        }
    }

    /// Number of tiles.
    pub(super) fn len(&self) -> usize {
        self.tiles.len()
    }

    /// Positions that each query sees.
    pub(super) fn counts(&self) -> &[usize] {
        &self.counts
    }

    /// The queries of each tile, and their values `[head_dim, queries of the tile]`.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Range<usize>, &[f32])> {
        let values = |tile: &Range<usize>| &self.packed[tile.start * self.dim..tile.end * self.dim];
        self.tiles.iter().map(move |tile| (tile.clone(), values(tile)))
    }
}
