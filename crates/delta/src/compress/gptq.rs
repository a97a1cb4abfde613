//! GPTQ: rounding with error feedback (Frantar et al., arXiv 2210.17323), for rows that share a Hessian.
//!
//! [`quantise_rows`] rounds the rows of V: columns in order, each column's error spread over the later ones, one scale
//! and zero point for each row and group of 128 columns. [`quantise_ranks`] rounds Uᵀ: ranks in order, each rank's
//! error spread over the later ranks, scales along the rank.

use deltamux_kernels::lowbit::{GROUP, groups};
use half::f16;

use super::linalg::{LinalgError, Matrix, inverse_factor, subtract_product};
use crate::artifact::{Coding, SCALE_BITS, symmetric_scale};

/// Columns that are rounded one by one before their errors reach the rest by one product; divides [`GROUP`].
const BLOCK: usize = 64;

/// Steps of the search for a group's range.
const SEARCH_STEPS: usize = 24;

/// A damped Hessian, factored.
#[derive(Debug)]
pub(crate) struct Hessian {
    /// Upper triangular `L` with `(H + damping I)⁻¹ = Lᵀ L`.
    factor: Matrix<f32>,
    /// What was added to the diagonal.
    pub damping: f64,
}

impl Hessian {
    /// Adds `relative` times the mean diagonal to the diagonal and factors.
    pub fn new(h: &Matrix<f64>, relative: f64) -> Result<Self, LinalgError> {
        let mean = h.mean_diagonal();
        // Inputs that are zero throughout carry no information: any damping will do.
        let damping = if mean > 0.0 { relative * mean } else { 1.0 };
        Ok(Self {
            factor: inverse_factor(h, damping)?,
            damping,
        })
    }
}

/// Quantised rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Quantised {
    /// Codes, `[rows, len]`.
    pub codes: Matrix<u8>,
    /// Grids, `[rows, groups]`.
    pub grids: Vec<Grid>,
    /// The weights that the codes stand for.
    pub values: Matrix<f32>,
    /// `δ (H + damping I) δᵀ` of each row, `δ` its rounding error; filled by [`quantise_rows`] only.
    pub losses: Vec<f64>,
}

impl Quantised {
    /// The grids of a row.
    pub fn row_grids(&self, row: usize) -> &[Grid] {
        let count = groups(self.codes.cols);
        &self.grids[row * count..(row + 1) * count]
    }

    pub fn empty(rows: usize, len: usize) -> Self {
        Self {
            codes: Matrix::zeros(rows, len),
            grids: vec![Grid::EMPTY; rows * groups(len)],
            values: Matrix::zeros(rows, len),
            losses: vec![0.0; rows],
        }
    }
}

/// The grid of one group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Grid {
    scale: f32,
    /// Zero point; between two codes in the symmetric coding.
    pub zero: f32,
    /// The largest code.
    top: f32,
    /// What is stored of the scale: the bits of an f16, or a place in the table.
    pub stored: u16,
}

impl Grid {
    const EMPTY: Self = Self {
        scale: 0.0,
        zero: 0.0,
        top: 0.0,
        stored: 0,
    };

    /// The best grid for `weights`, whose squared errors count by `importance`.
    fn search(coding: Coding, weights: &[f32], importance: &[f32], bits: u8) -> Self {
        match coding {
            Coding::Affine => Self::affine(weights, bits),
            Coding::Symmetric => Self::symmetric(weights, importance, bits),
        }
    }

    /// The scale out of the table with the least weighted squared error.
    fn symmetric(weights: &[f32], importance: &[f32], bits: u8) -> Self {
        let top = f32::from((1u16 << bits) - 1);
        let mut best = (f32::INFINITY, 0);
        for place in 0..1 << SCALE_BITS {
            let error = weighted_error(weights, importance, symmetric_scale(bits, place), top);
            if error < best.0 {
                best = (error, place);
            }
        }
        Self {
            scale: symmetric_scale(bits, best.1),
            zero: 0.5 * top,
            top,
            stored: u16::from(best.1),
        }
    }

    /// The asymmetric grid whose range, shrunk from the group's own, has the least squared error.
    fn affine(weights: &[f32], bits: u8) -> Self {
        let (mut low, mut high) = (0f32, 0f32);
        for &w in weights {
            low = low.min(w);
            high = high.max(w);
        }
        let top = f32::from((1u16 << bits) - 1);
        let mut best = (f32::INFINITY, f16::ZERO, 0f32);
        for step in 0..SEARCH_STEPS {
            let shrink = 1.0 - 0.7 * step as f32 / SEARCH_STEPS as f32;
            let scale = f16::from_f32((high - low) * shrink / top).min(f16::MAX);
            let s = scale.to_f32();
            if s == 0.0 {
                continue;
            }
            let zero = round(-low * shrink / s).clamp(0.0, top);
            let error = squared_error(weights, s, zero, top);
            if error < best.0 {
                best = (error, scale, zero);
            }
        }
        Self {
            scale: best.1.to_f32(),
            zero: best.2,
            top,
            stored: best.1.to_bits(),
        }
    }

    /// Code and value of the nearest level.
    pub fn nearest(&self, weight: f32) -> (u8, f32) {
        if self.scale == 0.0 {
            return (self.zero as u8, 0.0);
        }
        let code = round(weight / self.scale + self.zero).clamp(0.0, self.top);
        (code as u8, (code - self.zero) * self.scale)
    }
}

/// Weighted squared error of rounding to symmetric levels, summed in eight lanes in a fixed order.
fn weighted_error(weights: &[f32], importance: &[f32], scale: f32, top: f32) -> f32 {
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let zero = 0.5 * top;
    let error = |w: f32, importance: f32| {
        let code = round(w * inverse + zero).clamp(0.0, top);
        let e = (code - zero) * scale - w;
        e * e * importance
    };
    let mut lanes = [0f32; 8];
    let (chunks, rest) = weights.as_chunks::<8>();
    let (factors, rest_factors) = importance[..weights.len()].as_chunks::<8>();
    for (chunk, factors) in chunks.iter().zip(factors) {
        for i in 0..8 {
            lanes[i] += error(chunk[i], factors[i]);
        }
    }
    let tail: f32 = rest.iter().zip(rest_factors).map(|(&w, &i)| error(w, i)).sum();
    lanes.iter().sum::<f32>() + tail
}

/// Rounds to the nearest integer, halves to even, for magnitudes below 2²²; larger ones are cut to 2²¹ first, which is
/// beyond every code. Adding and subtracting 1.5·2²³ vectorises on every CPU, `f32::round_ties_even` does not.
fn round(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    let x = x.clamp(-2_097_152.0, 2_097_152.0);
    (x + SHIFT) - SHIFT
}

/// Squared error of rounding to a grid, summed in eight lanes in a fixed order.
fn squared_error(weights: &[f32], scale: f32, zero: f32, top: f32) -> f32 {
    let inverse = 1.0 / scale;
    let error = |w: f32| {
        let code = (round(w * inverse) + zero).clamp(0.0, top);
        let e = (code - zero) * scale - w;
        e * e
    };
    let mut lanes = [0f32; 8];
    let chunks = weights.chunks_exact(8);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &w) in lanes.iter_mut().zip(chunk) {
            *lane += error(w);
        }
    }
    lanes.iter().sum::<f32>() + rest.iter().map(|&w| error(w)).sum::<f32>()
}

/// Rounds each row of `weights` at its own width, minimising `δ (H + damping I) δᵀ` greedily.
pub(crate) fn quantise_rows(coding: Coding, mut weights: Matrix<f32>, bits: &[u8], hessian: &Hessian) -> Quantised {
    let (rows, len) = (weights.rows, weights.cols);
    assert_eq!(bits.len(), rows);
    let factor = &hessian.factor;
    let mut out = Quantised::empty(rows, len);
    let mut grids = vec![Grid::EMPTY; rows];
    // A column's own rounding error enters the loss by the inverse square of its diagonal.
    let importance: Vec<f32> = (0..len).map(|j| factor.row(j)[j].powi(-2)).collect();
    for start in (0..len).step_by(BLOCK) {
        let end = (start + BLOCK).min(len);
        let width = end - start;
        let mut errors = Matrix::<f32>::zeros(rows, width);
        for (row, &bits) in bits.iter().enumerate() {
            if start % GROUP == 0 {
                let group = &weights.row(row)[start..(start + GROUP).min(len)];
                let grid = Grid::search(coding, group, &importance[start..start + group.len()], bits);
                out.grids[row * groups(len) + start / GROUP] = grid;
                grids[row] = grid;
            }
            let block = &mut weights.row_mut(row)[start..end];
            let errors = errors.row_mut(row);
            for j in 0..width {
                let (code, value) = grids[row].nearest(block[j]);
                out.codes.row_mut(row)[start + j] = code;
                out.values.row_mut(row)[start + j] = value;
                let spread = &factor.row(start + j)[start..end];
                let error = (block[j] - value) / spread[j];
                errors[j] = error;
                for (w, &l) in block[j + 1..].iter_mut().zip(&spread[j + 1..]) {
                    *w -= error * l;
                }
            }
            // δ = ε L with ε these errors, so δ (LᵀL)⁻¹ δᵀ = ‖ε‖².
            out.losses[row] += errors.iter().map(|&e| f64::from(e) * f64::from(e)).sum::<f64>();
        }
        if end < len {
            subtract_product(
                weights.view_mut().subcols_mut(end, len - end),
                errors.view(),
                factor.view().submatrix(start, end, width, len - end),
            );
        }
    }
    out
}

/// Rounds Uᵀ (`[ranks, outputs]`), rank by rank in order, each at its own width; `hessian` is over the ranks.
pub(crate) fn quantise_ranks(coding: Coding, mut target: Matrix<f32>, bits: &[u8], hessian: &Hessian) -> Quantised {
    let (ranks, len) = (target.rows, target.cols);
    let ones = [1.0; GROUP];
    assert_eq!(bits.len(), ranks);
    let factor = &hessian.factor;
    let mut out = Quantised::empty(ranks, len);
    for start in (0..ranks).step_by(BLOCK) {
        let end = (start + BLOCK).min(ranks);
        let mut errors = Matrix::<f32>::zeros(end - start, len);
        for rank in start..end {
            let spread = factor.row(rank);
            let (row, errors) = (target.row(rank), errors.row_mut(rank - start));
            for (g, group) in row.chunks(GROUP).enumerate() {
                let grid = Grid::search(coding, group, &ones[..group.len()], bits[rank]);
                out.grids[rank * groups(len) + g] = grid;
                for (i, &w) in group.iter().enumerate() {
                    let (code, value) = grid.nearest(w);
                    let at = g * GROUP + i;
                    out.codes.row_mut(rank)[at] = code;
                    out.values.row_mut(rank)[at] = value;
                    errors[at] = (w - value) / spread[rank];
                }
            }
            for (later, &l) in (rank + 1..end).zip(&spread[rank + 1..end]) {
                for (t, &e) in target.row_mut(later).iter_mut().zip(&*errors) {
                    *t -= l * e;
                }
            }
        }
        if end < ranks {
            subtract_product(
                target.view_mut().subrows_mut(end, ranks - end),
                factor
                    .view()
                    .submatrix(start, end, end - start, ranks - end)
                    .transpose(),
                errors.view(),
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_half_to_even_and_survives_large_values() {
        assert_eq!(
            [0.5, 1.5, 2.5, -0.5, -1.5, 7.4].map(round),
            [0.0, 2.0, 2.0, 0.0, -2.0, 7.0]
        );
        assert_eq!(round(1e30), 2_097_152.0);
    }

    #[test]
    fn a_group_of_zeros_stays_zero() {
        let grid = Grid::affine(&[0.0; 10], 3);
        assert_eq!(grid.nearest(0.0), (0, 0.0));
    }

    #[test]
    fn symmetric_levels_lie_around_zero_and_zeros_stay() {
        let weights: Vec<f32> = (0..16).map(|i| (i % 4) as f32 - 1.5).collect();
        let grid = Grid::symmetric(&weights, &[1.0; 16], 2);
        for w in weights {
            let (code, value) = grid.nearest(w);
            assert_eq!(f32::from(code) - 1.5, w);
            assert!((value - w).abs() < 0.01 * w.abs(), "{value} {w}");
        }
        assert_eq!(Grid::symmetric(&[0.0; 9], &[1.0; 9], 3).nearest(0.0).1, 0.0);
    }

    #[test]
    fn what_matters_more_is_rounded_better() {
        let weights = [0.2, -0.2, 0.2, 3.0];
        let error = |importance: &[f32; 4]| {
            let grid = Grid::symmetric(&weights, importance, 2);
            (grid.nearest(0.2).1 - 0.2).abs()
        };
        assert!(error(&[1.0, 1.0, 1.0, 1e-4]) < 0.2 * error(&[1e-4, 1e-4, 1e-4, 1.0]));
    }

    #[test]
    fn weights_on_a_grid_are_exact() {
        let weights: Vec<f32> = (0..16).map(|i| (i as f32 - 5.0) * 0.5).collect();
        let grid = Grid::affine(&weights, 4);
        for w in weights {
            assert_eq!(grid.nearest(w).1, w);
        }
    }

    #[test]
    fn the_reported_loss_is_the_quadratic_form_of_the_error() {
        let n = 200;
        let h = Matrix::from_vec(
            n,
            n,
            (0..n * n)
                .map(|i| {
                    let (r, c) = (i / n, i % n);
                    0.9f64.powi(r.abs_diff(c) as i32)
                })
                .collect(),
        );
        let hessian = Hessian::new(&h, 0.01).unwrap();
        let weights = Matrix::from_vec(
            2,
            n,
            (0..2 * n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect(),
        );
        let q = quantise_rows(Coding::Affine, weights.clone(), &[2, 4], &hessian);
        for row in 0..2 {
            let delta: Vec<f64> = weights
                .row(row)
                .iter()
                .zip(q.values.row(row))
                .map(|(a, b)| f64::from(a - b))
                .collect();
            let mut expected = 0.0;
            for i in 0..n {
                for j in 0..n {
                    let damping = if i == j { hessian.damping } else { 0.0 };
                    expected += delta[i] * (h.row(i)[j] + damping) * delta[j];
                }
            }
            assert!(
                (q.losses[row] / expected - 1.0).abs() < 1e-3,
                "{} {expected}",
                q.losses[row]
            );
        }
        assert!(q.losses[1] < q.losses[0]);
    }

    #[test]
    fn a_rank_at_its_own_width_leaves_its_error_to_later_ranks() {
        // With a strongly coupled pair of ranks the second one must absorb part of the first one's rounding error.
        let h = Matrix::from_vec(2, 2, vec![1.0, 0.95, 0.95, 1.0]);
        let hessian = Hessian::new(&h, 0.001).unwrap();
        let target = Matrix::from_vec(2, 8, (0..16).map(|i| (i as f32 * 0.7).sin()).collect());
        let q = quantise_ranks(Coding::Affine, target.clone(), &[2, 8], &hessian);
        let first: f32 = target
            .row(0)
            .iter()
            .zip(q.values.row(0))
            .map(|(a, b)| (a - b).powi(2))
            .sum();
        let both: f32 = (0..8)
            .map(|i| {
                let e = |r: usize| target.row(r)[i] - q.values.row(r)[i];
                (e(0) + e(1)).powi(2)
            })
            .sum();
        assert!(both < first / 5.0, "{both} against {first}");
    }
}
