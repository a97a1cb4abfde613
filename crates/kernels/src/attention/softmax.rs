//! Online softmax: running maximum and sum of each query row over blocks, and the union of two segments.
//!
//! After Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).

use super::tile::{MAX_ROWS, Scores};
use crate::isa::for_each_isa;
use crate::lanes::{self, LANES, Lanes};
use crate::vector::for_each_vector;

/// What the softmax of a tile's rows has seen of a segment.
#[derive(Debug, Clone)]
pub(super) struct Running {
    /// Largest score of each row.
    pub(super) max: Lanes,
    /// Sums of each row's exponentials, relative to its maximum; lane `j` has the positions `j` modulo 16.
    pub(super) sums: [Lanes; MAX_ROWS],
}

impl Running {
    /// Nothing yet.
    pub(super) const EMPTY: Self = Self {
        max: [f32::NEG_INFINITY; LANES],
        sums: [[0.0; LANES]; MAX_ROWS],
    };
}

for_each_vector! {
    /// Turns the scores of a block into exponentials relative to the new running maximum, and returns the factor by
    /// which that changed what was summed before. Row `m` sees the first `visible[m]` positions: the others get 0, and
    /// what their scores were has no influence.
    pub(super) fn exponentials<vector V>(scores: &mut [Scores], visible: &[usize], running: &mut Running) -> Lanes {
        let mut max = running.max;
        for ((scores, visible), max) in scores.iter_mut().zip(visible).zip(&mut max) {
            if let Some(hidden) = scores.get_mut(*visible..) {
                hidden.fill(f32::NEG_INFINITY);
            }
            let (blocks, _) = scores.as_chunks::<LANES>();
            let (low, high) = (V::load(&blocks[0]).max(V::load(&blocks[1])), V::load(&blocks[2]).max(V::load(&blocks[3])));
            let mut best = [0.0; LANES];
            low.max(high).store(&mut best);
            let mut width = LANES / 2;
            while width > 0 {
                for j in 0..width {
                    best[j] = larger(best[j + width], best[j]);
                }
                width /= 2;
            }
            *max = larger(best[0], *max);
        }
        let mut scale = [1.0; LANES];
        for j in 0..LANES {
            let factor = lanes::exp(running.max[j] - max[j]);
            // Also where nothing has been seen yet and both are −∞.
            scale[j] = if running.max[j] == max[j] { 1.0 } else { factor };
        }
        running.max = max;
        for (m, (scores, visible)) in scores.iter_mut().zip(visible).enumerate() {
            for score in scores.iter_mut() {
                *score = lanes::exp(*score - max[m]);
            }
            if let Some(hidden) = scores.get_mut(*visible..) {
                hidden.fill(0.0);
            }
            let (p, _) = scores.as_chunks::<LANES>();
            let sums = &mut running.sums[m];
            for j in 0..LANES {
                sums[j] = scale[m].mul_add(sums[j], (p[0][j] + p[1][j]) + (p[2][j] + p[3][j]));
            }
        }
        scale
    }
}

/// `a` if it is the larger, else `b`.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Softmax of one query row over some positions: maximum and sum of the exponentials relative to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Total {
    pub(super) max: f32,
    pub(super) sum: f32,
}

impl Total {
    /// No positions.
    pub(super) const EMPTY: Self = Self {
        max: f32::NEG_INFINITY,
        sum: 0.0,
    };

    /// Adds the positions of the next segment; `mixed` and `next_mixed` are the mixtures of values of both.
    pub(super) fn add(&mut self, mixed: &mut [f32], next: Total, next_mixed: &[f32]) {
        let max = larger(next.max, self.max);
        let (a, b) = (lanes::exp(self.max - max), lanes::exp(next.max - max));
        self.max = max;
        self.sum = b.mul_add(next.sum, a * self.sum);
        add_scaled(a, mixed, b, next_mixed);
    }
}

for_each_isa! {
    /// `x = a · x + b · y`.
    fn add_scaled(a: f32, x: &mut [f32], b: f32, y: &[f32]) {
        for (x, y) in x.iter_mut().zip(y) {
            *x = b.mul_add(*y, a * *x);
        }
    }
}
