//! The largest eigenpairs of a positive semidefinite matrix, without its full decomposition, and a proof that they are.
//!
//! A block of random vectors (always the same) goes through cycles: a Chebyshev polynomial of the matrix that is large
//! on the wanted eigenvalues and small below them (Zhou and Saad, "A Chebyshev-Davidson algorithm", 2007; cubic in what
//! plain power iteration needs), a QR decomposition, a Rayleigh-Ritz step. After each the lost share is bounded from
//! what is known, and when that is small enough the one assumption in the bound is verified by a Cholesky factorisation.
//!
//! # The bound
//!
//! Let Q be `m` orthonormal Ritz vectors of G with Ritz values θ₁ ≥ θ₂ ≥ …, E = Q⊥ᵀ G Q the part of G Q outside Q
//! (‖E‖_F is the norm of the residuals G q − θ q), and D = Q⊥ᵀ G Q⊥ with no eigenvalue above τ. By Sylvester's law
//! an eigenvalue μ of G above τ + h has at least as many eigenvalues of Θ + EᵀE / h at or above it as G has. So the sum
//! of the `k` largest eigenvalues of G, which is the most that `k` ranks can capture (Ky Fan), is at most
//!
//! ```text
//! Σ_{j ≤ k} θ_j  +  Σ_{j ≤ k} max(τ + h − θ_j, 0)  +  ‖E‖² / h
//! ```
//!
//! whatever the start was. That D ≤ τ is so when `τ I − (I − Q Qᵀ) G (I − Q Qᵀ)` has a Cholesky factor.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::{householder, qr};
use faer::{Conj, Mat, Par};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use rand_distr::{Distribution as _, StandardNormal};

use super::linalg::{LinalgError, Matrix, cholesky_lower, eigen, product};

/// The kept eigenvalues may sum to this share less than the largest ones do.
pub(crate) const LOST: f64 = 1e-6;

/// Below this many rows the full decomposition takes milliseconds.
const SMALLEST: usize = 256;

/// With more vectors than one in so many the full decomposition is as fast, at the latest with the slowest spectrum
/// (that of a random matrix): measured from 576 to 2,048 rows.
const SHARE: usize = 7;

/// Vectors beyond the wanted ones: this share of them, and [`MORE`].
const OVERSAMPLING: f64 = 0.25;
const MORE: usize = 8;

/// A start that differs between matrices has no use; one that differs between runs would be a harm.
const SEED: u64 = 0x5eed;

/// Largest degree of the polynomial in one cycle.
const LARGEST_DEGREE: usize = 12;

/// A polynomial raises the largest eigenvalue at most this much above the last wanted one: more, and rounding errors
/// along the first vectors would bury the last.
const LARGEST_SPREAD: f64 = 1e7;

/// Products with the matrix after which the full decomposition is the better way, as a share of `n / m`: it costs about
/// eight products of `[n, n]` matrices.
const PATIENCE: f64 = 4.0;

/// Eigenpairs in falling order.
#[derive(Debug)]
pub(crate) struct Largest {
    /// Ritz values; none is above the eigenvalue that it stands for.
    pub values: Vec<f64>,
    /// Orthonormal vectors, one a row.
    pub vectors: Matrix<f64>,
    /// No `values.len()` ranks capture more than `(1 + lost)` times the sum of `values`; at most [`LOST`].
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "the bound is met; tests hold it against the truth")
    )]
    pub lost: f64,
    /// No direction outside `vectors` has a larger quadratic form than this.
    pub rest: f64,
}

/// Whether looking for `wanted` eigenpairs alone is likely to be faster than the decomposition of an `[n, n]` matrix.
pub(crate) fn pays(n: usize, wanted: usize) -> bool {
    n >= SMALLEST && block(wanted) * SHARE <= n
}

/// Vectors that are iterated on for `wanted` of them.
fn block(wanted: usize) -> usize {
    wanted + (wanted as f64 * OVERSAMPLING) as usize + MORE
}

/// The `wanted` largest eigenpairs of the symmetric positive semidefinite `g`; `None` when they could not be shown to
/// be the largest within a fair number of steps.
pub(crate) fn largest(g: &Matrix<f64>, wanted: usize) -> Option<Largest> {
    let n = g.rows;
    let m = block(wanted);
    let total = g.trace();
    if wanted == 0 || m >= n || !(total.is_finite() && total > f64::MIN_POSITIVE) {
        return None;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let start = (0..m * n).map(|_| StandardNormal.sample(&mut rng)).collect();
    let mut block = product(Matrix::from_vec(m, n, start).view(), g.view());
    let mut products = (PATIENCE * n as f64 / m as f64) as isize;
    loop {
        let ritz = Ritz::new(g, &block).ok()?;
        products -= 1;
        if let Some(found) = ritz.verified(g, wanted) {
            return Some(found);
        }
        if products <= 0 {
            return None;
        }
        let (filtered, used) = ritz.filtered(g, wanted);
        block = filtered;
        products -= used as isize;
    }
}

/// Orthonormal vectors that diagonalise the matrix within their span.
struct Ritz {
    values: Vec<f64>,
    /// Q, one vector a row.
    vectors: Matrix<f64>,
    /// G Q, one vector a row.
    images: Matrix<f64>,
    /// ‖G q − θ q‖² of each.
    residuals: Vec<f64>,
}

impl Ritz {
    fn new(g: &Matrix<f64>, block: &Matrix<f64>) -> Result<Self, LinalgError> {
        let basis = orthonormal_rows(block);
        let images = product(basis.view(), g.view());
        let (values, turn) = eigen(product(images.view(), basis.view().transpose()).view())?;
        let vectors = product(turn.view(), basis.view());
        let images = product(turn.view(), images.view());
        let residual = |i: usize| -> f64 {
            let pairs = images.row(i).iter().zip(vectors.row(i));
            pairs.map(|(image, q)| (image - values[i] * q).powi(2)).sum()
        };
        Ok(Self {
            residuals: (0..values.len()).map(residual).collect(),
            values,
            vectors,
            images,
        })
    }

    /// The `wanted` first pairs, if the module's bound holds and says that they lose no more than [`LOST`].
    fn verified(&self, g: &Matrix<f64>, wanted: usize) -> Option<Largest> {
        let captured: f64 = self.values[..wanted].iter().sum();
        let last = self.values[wanted - 1];
        let floor = LOST * captured / (8 * wanted) as f64;
        // The more vectors count as Q, the further τ is below the last wanted value, but the later they converge.
        let mut residual: f64 = self.residuals[..wanted - 1].iter().sum();
        let mut best: Option<(f64, usize, f64)> = None;
        for count in wanted..self.values.len() {
            residual += self.residuals[count - 1];
            let next = self.values[count].max(0.0);
            let h = f64::max(0.5 * (last - next), floor);
            let limit = next + h;
            let above: f64 = self.values[..wanted].iter().map(|x| (limit + h - x).max(0.0)).sum();
            let lost = above + residual / h;
            if best.is_none_or(|(least, ..)| lost < least) {
                best = Some((lost, count, limit));
            }
        }
        let (lost, count, limit) = best.filter(|&(lost, ..)| captured > 0.0 && lost <= LOST * captured)?;
        if !self.outside_is_below(g, count, limit) {
            return None;
        }
        // The vectors after the wanted ones are outside, too; with the rest they form a block matrix.
        let mixed: f64 = self.residuals[wanted..count].iter().sum();
        let indices: Vec<usize> = (0..wanted).collect();
        Some(Largest {
            values: self.values[..wanted].to_vec(),
            vectors: self.vectors.select_rows(&indices),
            lost: lost / captured,
            rest: self.values[wanted].max(limit) + mixed.sqrt(),
        })
    }

    /// Whether no direction orthogonal to the first `count` vectors has a larger quadratic form than `limit`.
    fn outside_is_below(&self, g: &Matrix<f64>, count: usize, limit: f64) -> bool {
        let n = g.rows;
        let indices: Vec<usize> = (0..count).collect();
        let q = self.vectors.select_rows(&indices);
        // (I − QQᵀ) G (I − QQᵀ) = G − Q Wᵀ − W Qᵀ with W = G Q − ½ Q Θ.
        let mut w = self.images.select_rows(&indices);
        for i in 0..count {
            let half = 0.5 * self.values[i];
            w.row_mut(i).iter_mut().zip(q.row(i)).for_each(|(w, q)| *w -= half * q);
        }
        let cross = product(q.view().transpose(), w.view());
        let rest = Mat::from_fn(n, n, |i, j| {
            let diagonal = if i == j { limit } else { 0.0 };
            diagonal - g.row(i)[j] + cross.row(i)[j] + cross.row(j)[i]
        });
        cholesky_lower(rest).is_ok()
    }

    /// The vectors after a Chebyshev polynomial of the matrix that is at most 1 (scaled) below the block's last value,
    /// and the products that it took.
    fn filtered(&self, g: &Matrix<f64>, wanted: usize) -> (Matrix<f64>, usize) {
        let (first, last, edge) = (
            self.values[0],
            self.values[wanted - 1],
            self.values[self.values.len() - 1],
        );
        // Below this, all is rounding noise, which no polynomial improves.
        let edge = edge.max(1e-15 * first);
        let growth = |x: f64| (2.0 * x / edge - 1.0).max(1.0).acosh();
        let spread = growth(first) - growth(last);
        let degree = (LARGEST_SPREAD.ln() / spread.max(1e-9)).clamp(1.0, LARGEST_DEGREE as f64) as usize;
        let (centre, half_width) = (0.5 * edge, 0.5 * edge);
        // The polynomial is divided by its value at the first eigenvalue, step by step, so that nothing overflows.
        let sigma_first = half_width / (first - centre);
        let mut sigma = sigma_first;
        let mut before = self.vectors.clone();
        let mut now = self.images.clone();
        let scale = sigma_first / half_width;
        now.data
            .iter_mut()
            .zip(&before.data)
            .for_each(|(x, q)| *x = scale * (*x - centre * q));
        for _ in 1..degree {
            let next_sigma = 1.0 / (2.0 / sigma_first - sigma);
            let mut next = product(now.view(), g.view());
            let (a, b) = (2.0 * next_sigma / half_width, sigma * next_sigma);
            let others = now.data.iter().zip(&before.data);
            next.data
                .iter_mut()
                .zip(others)
                .for_each(|(x, (y, z))| *x = a * (*x - centre * y) - b * z);
            sigma = next_sigma;
            before = std::mem::replace(&mut now, next);
        }
        (now, degree - 1)
    }
}

/// An orthonormal basis (rows) of the rows of `block`, and of more where they are dependent: Householder QR.
fn orthonormal_rows(block: &Matrix<f64>) -> Matrix<f64> {
    let (m, n) = (block.rows, block.cols);
    let mut factors = block.view().transpose().to_owned();
    let blocks = qr::no_pivoting::factor::recommended_block_size::<f64>(n, m);
    let mut coefficients = Mat::<f64>::zeros(blocks, m);
    let scratch = qr::no_pivoting::factor::qr_in_place_scratch::<f64>(n, m, blocks, Par::Seq, Default::default());
    let mut buffer = MemBuffer::new(scratch);
    qr::no_pivoting::factor::qr_in_place(
        factors.as_mut(),
        coefficients.as_mut(),
        Par::Seq,
        MemStack::new(&mut buffer),
        Default::default(),
    );
    let mut q = Mat::<f64>::identity(n, m);
    let scratch = householder::apply_block_householder_sequence_on_the_left_in_place_scratch::<f64>(n, blocks, m);
    let mut buffer = MemBuffer::new(scratch);
    householder::apply_block_householder_sequence_on_the_left_in_place_with_conj(
        factors.as_ref(),
        coefficients.as_ref(),
        Conj::No,
        q.as_mut(),
        Par::Seq,
        MemStack::new(&mut buffer),
    );
    let mut rows = Matrix::zeros(m, n);
    rows.view_mut().copy_from(q.transpose());
    rows
}

#[cfg(test)]
mod tests {
    use super::super::linalg::symmetric_product;
    use super::*;
    use proptest::prelude::*;

    fn gaussian(rows: usize, cols: usize, seed: u64) -> Matrix<f64> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let data = (0..rows * cols).map(|_| StandardNormal.sample(&mut rng)).collect();
        Matrix::from_vec(rows, cols, data)
    }

    /// `X D² Xᵀ / cols` with Gaussian X, `[n, cols]`.
    fn gram(n: usize, cols: usize, d: impl Fn(usize) -> f64) -> Matrix<f64> {
        let mut x = gaussian(n, cols, 3);
        for i in 0..n {
            x.row_mut(i)
                .iter_mut()
                .enumerate()
                .for_each(|(j, x)| *x *= d(j) / (cols as f64).sqrt());
        }
        symmetric_product(x.view(), x.view().transpose())
    }

    /// Holds the pairs against the full decomposition.
    fn check(g: &Matrix<f64>, wanted: usize) {
        let found = largest(g, wanted).expect("converges");
        let (values, vectors) = eigen(g.view()).unwrap();
        let best: f64 = values[..wanted].iter().sum();
        let captured: f64 = found.values.iter().sum();
        assert!(
            captured <= best * (1.0 + 1e-12) && captured >= best * (1.0 - LOST),
            "{captured} {best}"
        );
        // What it says of itself holds.
        assert!(best <= captured * (1.0 + found.lost) * (1.0 + 1e-12) && found.lost <= LOST);
        assert!(values[wanted] <= found.rest * (1.0 + 1e-12));
        // Orthonormal, and those whose value is well above the first one left out lie in the span of the true ones.
        let overlap = product(found.vectors.view(), found.vectors.view().transpose());
        for i in 0..wanted {
            for j in 0..wanted {
                let expected = if i == j { 1.0 } else { 0.0 };
                assert!((overlap.row(i)[j] - expected).abs() < 1e-12);
            }
        }
        let first = vectors.select_rows(&(0..wanted).collect::<Vec<_>>());
        let along = product(found.vectors.view(), first.view().transpose());
        for i in (0..wanted).filter(|&i| values[i] > 1.2 * values[wanted]) {
            let inside: f64 = along.row(i).iter().map(|x| x * x).sum();
            assert!(inside > 1.0 - 1e-4, "vector {i} of {wanted}: {inside}");
        }
    }

    #[test]
    fn the_largest_are_those_of_the_full_decomposition() {
        check(&gram(300, 600, |_| 1.0), 30);
        check(&gram(300, 300, |j| 1.0 / (j as f64 + 1.0).sqrt()), 20);
        check(&gram(300, 400, |j| 1.0 / (j as f64 + 1.0)), 40);
        check(&gram(300, 400, |j| 0.7f64.powi(j as i32)), 25);
    }

    #[test]
    fn a_low_rank_is_captured_whole() {
        let g = gram(300, 7, |_| 1.0);
        let found = largest(&g, 20).expect("converges");
        let captured: f64 = found.values.iter().sum();
        assert!((captured / g.trace() - 1.0).abs() < 1e-12);
        assert!(found.values[7] < 1e-12 * found.values[0]);
    }

    #[test]
    fn equal_eigenvalues_are_no_obstacle() {
        let mut g = Matrix::zeros(256, 256);
        (0..256).for_each(|i| g.row_mut(i)[i] = 3.0);
        let found = largest(&g, 10).expect("converges");
        assert!(found.values.iter().all(|x| (x - 3.0).abs() < 1e-12));
    }

    #[test]
    fn nothing_is_claimed_where_there_is_nothing_or_too_much_is_wanted() {
        assert!(largest(&Matrix::zeros(256, 256), 10).is_none());
        assert!(largest(&gram(40, 80, |_| 1.0), 30).is_none());
        assert!(largest(&gram(40, 80, |_| 1.0), 0).is_none());
    }

    /// A block that converged beside the largest eigenvector, as one that started orthogonal to it would.
    #[test]
    fn a_direction_that_was_missed_is_noticed() {
        let mut g = Matrix::zeros(256, 256);
        (0..256).for_each(|i| g.row_mut(i)[i] = 1.0 / (1.0 + i as f64));
        let mut block = Matrix::zeros(20, 256);
        (0..20).for_each(|i| block.row_mut(i)[i + 1] = 1.0);
        let ritz = Ritz::new(&g, &block).unwrap();
        assert!(ritz.residuals.iter().all(|&r| r < 1e-20));
        assert!(ritz.verified(&g, 10).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn whatever_the_spectrum_what_is_found_is_within_its_bound(
            n in 60..160usize,
            wanted in 1..12usize,
            decay in 0.0..3.0f64,
            scale in -30..30i32,
        ) {
            let g = gram(n, n + 20, |j| 2f64.powi(scale) * (j as f64 + 1.0).powf(-decay));
            if let Some(found) = largest(&g, wanted) {
                let (values, _) = eigen(g.view()).unwrap();
                let best: f64 = values[..wanted].iter().sum();
                let captured: f64 = found.values.iter().sum();
                prop_assert!(best <= captured * (1.0 + LOST));
                prop_assert!(values[wanted] <= found.rest * (1.0 + 1e-12));
            }
        }
    }
}
