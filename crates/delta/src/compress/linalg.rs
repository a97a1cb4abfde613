//! Dense matrices in row-major order, with the few operations that compression needs.
//!
//! Everything here runs on the calling thread: the pipeline is parallel over tensors, so results never depend on the
//! number of threads.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::matmul::matmul;
use faer::linalg::matmul::triangular::{self, BlockStructure};
use faer::linalg::{cholesky, evd, triangular_inverse};
use faer::{Accum, Mat, MatMut, MatRef, Par};

/// A row-major matrix.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Matrix<T> {
    pub rows: usize,
    pub cols: usize,
    pub data: Vec<T>,
}

/// Why a decomposition failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinalgError {
    #[error("the second moments of its inputs are not positive definite, even damped")]
    NotPositiveDefinite,
    #[error("the eigenvalue iteration did not converge")]
    NoConvergence,
}

impl<T: Copy + Default> Matrix<T> {
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Self {
            rows,
            cols,
            data: vec![T::default(); rows * cols],
        }
    }

    pub fn from_vec(rows: usize, cols: usize, data: Vec<T>) -> Self {
        assert_eq!(data.len(), rows * cols, "elements of a [{rows}, {cols}] matrix");
        Self { rows, cols, data }
    }

    pub fn row(&self, i: usize) -> &[T] {
        &self.data[i * self.cols..(i + 1) * self.cols]
    }

    pub fn row_mut(&mut self, i: usize) -> &mut [T] {
        &mut self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// The rows of the given indices, in that order.
    pub fn select_rows(&self, indices: &[usize]) -> Self {
        let data = indices.iter().flat_map(|&i| self.row(i).iter().copied()).collect();
        Self::from_vec(indices.len(), self.cols, data)
    }

    /// Copies the lower triangle to the upper one, in squares that stay in the cache.
    pub fn mirror_lower(&mut self) {
        const SQUARE: usize = 64;
        let n = self.rows;
        for top in (0..n).step_by(SQUARE) {
            for left in (0..=top).step_by(SQUARE) {
                for row in top..(top + SQUARE).min(n) {
                    for col in left..(left + SQUARE).min(row) {
                        self.data[col * n + row] = self.data[row * n + col];
                    }
                }
            }
        }
    }

    pub fn view(&self) -> MatRef<'_, T> {
        MatRef::from_row_major_slice(&self.data, self.rows, self.cols)
    }

    pub fn view_mut(&mut self) -> MatMut<'_, T> {
        MatMut::from_row_major_slice_mut(&mut self.data, self.rows, self.cols)
    }
}

impl Matrix<f32> {
    pub fn to_f64(&self) -> Matrix<f64> {
        Matrix::from_vec(self.rows, self.cols, self.data.iter().map(|&x| f64::from(x)).collect())
    }
}

impl Matrix<f64> {
    pub fn to_f32(&self) -> Matrix<f32> {
        Matrix::from_vec(self.rows, self.cols, self.data.iter().map(|&x| x as f32).collect())
    }

    /// Sum of the diagonal.
    pub fn trace(&self) -> f64 {
        (0..self.rows).map(|i| self.row(i)[i]).sum()
    }

    /// Mean of the diagonal; 0 for an empty matrix.
    pub fn mean_diagonal(&self) -> f64 {
        let n = self.rows.max(1) as f64;
        (0..self.rows).map(|i| self.row(i)[i]).sum::<f64>() / n
    }
}

/// `a b`, row-major.
pub(crate) fn product<T>(a: MatRef<'_, T>, b: MatRef<'_, T>) -> Matrix<T>
where
    T: faer::traits::ComplexField + Copy + Default,
{
    let mut out = Matrix::zeros(a.nrows(), b.ncols());
    matmul(out.view_mut(), Accum::Replace, a, b, T::from_f64_impl(1.0), Par::Seq);
    out
}

/// `a b` where that is symmetric: only half of it is computed.
pub(crate) fn symmetric_product(a: MatRef<'_, f64>, b: MatRef<'_, f64>) -> Matrix<f64> {
    let mut out = Matrix::zeros(a.nrows(), b.ncols());
    triangular::matmul(
        out.view_mut(),
        BlockStructure::TriangularLower,
        Accum::Replace,
        a,
        BlockStructure::Rectangular,
        b,
        BlockStructure::Rectangular,
        1.0,
        Par::Seq,
    );
    out.mirror_lower();
    out
}

/// `dst -= a b`.
pub(crate) fn subtract_product(dst: MatMut<'_, f32>, a: MatRef<'_, f32>, b: MatRef<'_, f32>) {
    matmul(dst, Accum::Add, a, b, -1.0, Par::Seq);
}

/// `tr(D C Dᵀ)`, summed in f64.
pub(crate) fn quadratic(d: &Matrix<f32>, c: &Matrix<f32>) -> f64 {
    let dc = product(d.view(), c.view());
    d.data
        .chunks(d.cols.max(1))
        .zip(dc.data.chunks(d.cols.max(1)))
        .map(|(a, b)| dot(a, b))
        .sum()
}

/// Dot product of short f32 rows in f64.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
}

/// The lower Cholesky factor of a symmetric positive definite matrix; the upper triangle is 0.
pub(crate) fn cholesky_lower(mut a: Mat<f64>) -> Result<Mat<f64>, LinalgError> {
    let n = a.nrows();
    let scratch = cholesky::llt::factor::cholesky_in_place_scratch::<f64>(n, Par::Seq, Default::default());
    let mut buffer = MemBuffer::new(scratch);
    cholesky::llt::factor::cholesky_in_place(
        a.as_mut(),
        Default::default(),
        Par::Seq,
        MemStack::new(&mut buffer),
        Default::default(),
    )
    .map_err(|_| LinalgError::NotPositiveDefinite)?;
    for j in 1..n {
        for i in 0..j {
            a[(i, j)] = 0.0;
        }
    }
    Ok(a)
}

/// The upper triangular `L` with `(H + damping I)⁻¹ = Lᵀ L`, row-major; what GPTQ spreads errors by.
///
/// With `J` the reversal, `J H J = R Rᵀ` (Cholesky) gives `L = J R⁻¹ J`: no inverse of `H` is formed.
pub(crate) fn inverse_factor(h: &Matrix<f64>, damping: f64) -> Result<Matrix<f32>, LinalgError> {
    let n = h.rows;
    let damped = |i: usize, j: usize| h.row(n - 1 - i)[n - 1 - j] + if i == j { damping } else { 0.0 };
    let lower = cholesky_lower(Mat::from_fn(n, n, damped))?;
    let mut inverse = Mat::<f64>::zeros(n, n);
    triangular_inverse::invert_lower_triangular(inverse.as_mut(), lower.as_ref(), Par::Seq);
    drop(lower);
    let mut out = Matrix::zeros(n, n);
    for i in 0..n {
        for j in i..n {
            out.row_mut(i)[j] = inverse[(n - 1 - i, n - 1 - j)] as f32;
        }
    }
    if out.data.iter().all(|x| x.is_finite()) {
        Ok(out)
    } else {
        Err(LinalgError::NotPositiveDefinite)
    }
}

/// Solves `H X = B` for a symmetric positive definite `H`; `b` is `[n, m]`.
pub(crate) fn solve(h: &Matrix<f64>, b: &mut Matrix<f64>) -> Result<(), LinalgError> {
    let lower = cholesky_lower(h.view().to_owned())?;
    faer::linalg::triangular_solve::solve_lower_triangular_in_place(lower.as_ref(), b.view_mut(), Par::Seq);
    faer::linalg::triangular_solve::solve_upper_triangular_in_place(lower.transpose(), b.view_mut(), Par::Seq);
    Ok(())
}

/// Eigenvalues in falling order and eigenvectors (rows) of a symmetric matrix.
pub(crate) fn eigen(a: MatRef<'_, f64>) -> Result<(Vec<f64>, Matrix<f64>), LinalgError> {
    let n = a.nrows();
    let mut vectors = Mat::<f64>::zeros(n, n);
    let mut values = faer::Col::<f64>::zeros(n);
    let scratch = evd::self_adjoint_evd_scratch::<f64>(n, evd::ComputeEigenvectors::Yes, Par::Seq, Default::default());
    let mut buffer = MemBuffer::new(scratch);
    evd::self_adjoint_evd(
        a,
        values.as_diagonal_mut(),
        Some(vectors.as_mut()),
        Par::Seq,
        MemStack::new(&mut buffer),
        Default::default(),
    )
    .map_err(|_| LinalgError::NoConvergence)?;
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| values[j].total_cmp(&values[i]));
    let mut rows = Matrix::zeros(n, n);
    for (to, &from) in order.iter().enumerate() {
        for (k, x) in rows.row_mut(to).iter_mut().enumerate() {
            *x = vectors[(k, from)];
        }
    }
    Ok((order.iter().map(|&i| values[i]).collect(), rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spd() -> Matrix<f64> {
        Matrix::from_vec(3, 3, vec![4.0, 1.0, 0.5, 1.0, 3.0, 0.25, 0.5, 0.25, 2.0])
    }

    #[test]
    fn the_inverse_factor_multiplies_to_the_inverse() {
        let l = inverse_factor(&spd(), 0.0).unwrap().to_f64();
        let inverse = product(l.view().transpose(), l.view());
        let identity = product(inverse.view(), spd().view());
        for i in 0..3 {
            for j in 0..3 {
                let expected = if i == j { 1.0 } else { 0.0 };
                assert!((identity.row(i)[j] - expected).abs() < 1e-6);
            }
        }
        assert_eq!(l.row(2)[0], 0.0);
    }

    #[test]
    fn solve_inverts_a_product() {
        let x = Matrix::from_vec(3, 2, vec![1.0, -2.0, 0.5, 3.0, 2.0, 1.0]);
        let mut b = product(spd().view(), x.view());
        solve(&spd(), &mut b).unwrap();
        for (found, expected) in b.data.iter().zip(&x.data) {
            assert!((found - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn eigenvalues_fall_and_vectors_reproduce_the_matrix() {
        let (values, rows) = eigen(spd().view()).unwrap();
        assert!(values.windows(2).all(|w| w[0] >= w[1]));
        for i in 0..3 {
            for j in 0..3 {
                let x: f64 = (0..3).map(|k| values[k] * rows.row(k)[i] * rows.row(k)[j]).sum();
                assert!((x - spd().row(i)[j]).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn an_indefinite_matrix_is_refused() {
        let a = Matrix::from_vec(2, 2, vec![1.0, 2.0, 2.0, 1.0]);
        assert_eq!(inverse_factor(&a, 0.0), Err(LinalgError::NotPositiveDefinite));
    }
}
