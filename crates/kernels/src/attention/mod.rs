//! Attention over paged keys and values, with grouped query heads and causal masks.
//!
//! A row visits the positions it sees in blocks of 64 positions that start at position 0, in order, with an
//! online softmax: no memory grows with the context of a task. Every 512 positions the softmax begins anew, and
//! the segments' results are added in order, so that several threads can share one long sequence. Blocks, segments and
//! all orders depend on positions only: a row's result is the same alone, in any tile or chunk and in any batch.

mod attend;
mod blocks;
mod cache;
mod plan;
mod queries;
mod softmax;
mod tile;

pub use attend::attend;
pub use cache::PagedCache;

use crate::lanes::LANES;

/// Widest head that the kernels handle.
pub const MAX_HEAD_DIM: usize = 512;

/// Positions whose keys lie side by side.
const STRIP: usize = LANES;

/// Strips of a block.
const BLOCK_STRIPS: usize = 4;

/// Positions between two updates of the running maximum.
const BLOCK: usize = BLOCK_STRIPS * STRIP;

/// Positions whose softmax is computed on its own.
const SEGMENT: usize = 8 * BLOCK;

/// Where a row's sequence lies.
#[derive(Debug, Clone, Copy)]
pub struct QueryRow<'a> {
    /// Pages of its sequence.
    pub pages: &'a [u32],
    /// Positions it sees: its own and all before it.
    pub count: usize,
}

/// Some columns of a row-major matrix `[rows, stride]`.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'a> {
    /// The whole matrix.
    pub matrix: &'a [f32],
    /// Length of its rows.
    pub stride: usize,
    /// First of the columns.
    pub from: usize,
    /// Number of columns.
    pub width: usize,
}

impl<'a> Columns<'a> {
    /// All columns of a matrix with rows of `width` elements.
    pub fn whole(matrix: &'a [f32], width: usize) -> Self {
        Self {
            matrix,
            stride: width,
            from: 0,
            width,
        }
    }

    fn row(&self, row: usize) -> &'a [f32] {
        &self.matrix[row * self.stride + self.from..][..self.width]
    }

    fn check(&self, name: &str, rows: usize, width: usize) {
        let Self { stride, from, .. } = *self;
        assert_eq!(self.width, width, "{name}: width of the columns");
        assert!(
            from + width <= stride,
            "{name}: columns {from} + {width} lie in rows of {stride}"
        );
        assert_eq!(self.matrix.len(), rows * stride, "{name}: matrix is [{rows}, {stride}]");
    }
}

/// Rotary angles of each row's position: cosines and sines `[rows, head_dim / 2]`.
///
/// Element `i` of a head is paired with `i + head_dim / 2`, as in [`crate::ops::rotate`].
#[derive(Debug, Clone, Copy)]
pub struct Rotation<'a> {
    /// Cosines.
    pub cos: &'a [f32],
    /// Sines.
    pub sin: &'a [f32],
}

impl<'a> Rotation<'a> {
    fn row(&self, row: usize, head_dim: usize) -> (&'a [f32], &'a [f32]) {
        let pairs = head_dim / 2;
        (&self.cos[row * pairs..][..pairs], &self.sin[row * pairs..][..pairs])
    }

    fn check(&self, rows: usize, head_dim: usize) {
        assert!(
            head_dim.is_multiple_of(2),
            "rotation: head_dim, {head_dim}, is a number of pairs"
        );
        let len = rows * head_dim / 2;
        assert!(
            self.cos.len() == len && self.sin.len() == len,
            "rotation: cos and sin are [{rows}, {}]",
            head_dim / 2
        );
    }
}

#[cfg(test)]
mod tests;
