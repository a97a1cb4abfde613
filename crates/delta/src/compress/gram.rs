//! The Gram matrix of a difference on its smaller side: its eigenvectors are singular vectors.

use faer::Mat;

use super::factor::Norm;
use super::linalg::{LinalgError, Matrix, cholesky_lower, product, symmetric_product};

/// Share of the mean diagonal that regularises `C` for whitened factors: calibration is finite.
const WHITENING_DAMPING: f64 = 0.01;

/// `A Aᵀ` or `Aᵀ A`, whichever is smaller, with `A = ΔW R`: R is the identity or a square root of the damped `C`.
#[derive(Debug)]
pub(crate) struct Gram {
    /// The matrix; its trace is the energy of `A`.
    pub matrix: Matrix<f64>,
    /// What was added to the diagonal of `C`.
    pub damping: f64,
    side: Side,
}

#[derive(Debug)]
enum Side {
    /// `A Aᵀ`, `[outputs, outputs]`: eigenvectors are rows of Uᵀ.
    Outputs,
    /// `Aᵀ A`, `[inputs, inputs]`, with R where that is not the identity.
    Inputs(Option<Mat<f64>>),
}

impl Gram {
    /// The Gram matrix of `delta`, `[outputs, inputs]`, in a norm; `c` is `[inputs, inputs]`.
    pub fn new(delta: &Matrix<f64>, c: &Matrix<f64>, norm: Norm) -> Result<Self, LinalgError> {
        let (outputs, inputs) = (delta.rows, delta.cols);
        let (a, transposed) = (delta.view(), delta.view().transpose());
        let damping = match norm {
            Norm::Weights => 0.0,
            Norm::Outputs => WHITENING_DAMPING * c.mean_diagonal(),
        };
        let damped = || {
            let mut c = c.clone();
            (0..inputs).for_each(|i| c.row_mut(i)[i] += damping);
            c
        };
        let (matrix, side) = match (norm, outputs <= inputs) {
            (Norm::Weights, true) => (symmetric_product(a, transposed), Side::Outputs),
            (Norm::Weights, false) => (symmetric_product(transposed, a), Side::Inputs(None)),
            (Norm::Outputs, true) => {
                let half = product(a, damped().view());
                (symmetric_product(half.view(), transposed), Side::Outputs)
            }
            (Norm::Outputs, false) => {
                let root = cholesky_lower(damped().view().to_owned())?;
                let half = product(symmetric_product(transposed, a).view(), root.as_ref());
                let matrix = symmetric_product(root.transpose(), half.view());
                (matrix, Side::Inputs(Some(root)))
            }
        };
        Ok(Self { matrix, damping, side })
    }

    /// Rows of Uᵀ from eigenvectors (rows) and their eigenvalues, which are above 0.
    pub fn left_vectors(&self, delta: &Matrix<f64>, values: &[f64], vectors: Matrix<f64>) -> Matrix<f64> {
        let right = match &self.side {
            Side::Outputs => return vectors,
            Side::Inputs(None) => vectors,
            Side::Inputs(Some(root)) => product(vectors.view(), root.transpose()),
        };
        // U S = ΔW R B.
        let mut u = product(right.view(), delta.view().transpose());
        for (i, value) in values.iter().enumerate() {
            let s = value.sqrt();
            u.row_mut(i).iter_mut().for_each(|x| *x /= s);
        }
        u
    }
}
