//! Factors of a difference: `ΔW ≈ Uᵀᵀ diag(s) V`, ranks in order of falling energy.
//!
//! The factorisation goes through the eigenvectors of the smaller Gram matrix in f64. Singular values below 10⁻⁶ of the
//! largest are lost to rounding that way; their share of the energy is below 10⁻¹² and no method would store them.

use faer::Mat;

use super::linalg::{LinalgError, Matrix, cholesky_lower, eigen, product};

/// Ranks whose singular value is below this share of the largest are not computed.
const SMALLEST: f64 = 1e-6;

/// Share of the mean diagonal that regularises `C` for whitened factors: calibration is finite.
const WHITENING_DAMPING: f64 = 0.01;

/// Factors of an `[outputs, inputs]` matrix.
///
/// Rows of `u` and `v` have a root mean square of about 1 (norm √length), whatever the shape, so that the f16 scales of
/// their codes stay far from f16's limits; `s` takes the factor up.
#[derive(Debug, Clone)]
pub(crate) struct Factors {
    /// Uᵀ, `[ranks, outputs]`.
    pub u: Matrix<f32>,
    /// V, `[ranks, inputs]`.
    pub v: Matrix<f32>,
    /// Singular values for these scales of `u` and `v`.
    pub s: Vec<f64>,
    /// `‖s_i u_i‖² · v_i C v_iᵀ`: output energy of each rank.
    pub energies: Vec<f64>,
}

impl Factors {
    /// No ranks.
    pub fn none(inputs: usize, outputs: usize) -> Self {
        Self {
            u: Matrix::zeros(0, outputs),
            v: Matrix::zeros(0, inputs),
            s: Vec::new(),
            energies: Vec::new(),
        }
    }
}

/// How the factors are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Norm {
    /// Singular value decomposition: optimal for the weights.
    Weights,
    /// Singular value decomposition of `ΔW C^½`: optimal truncation for the outputs.
    Outputs,
}

/// Which ranks are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// By falling singular value.
    SingularValue,
    /// By falling output energy (then in order of falling singular value).
    Energy,
}

/// Factors of `delta` with at most `keep` ranks.
pub(crate) fn factor(
    delta: &Matrix<f32>,
    c: &Matrix<f64>,
    norm: Norm,
    order: Order,
    keep: usize,
) -> Result<Factors, LinalgError> {
    let (outputs, inputs) = (delta.rows, delta.cols);
    let wide = delta.to_f64();
    let (mut u, s) = left_vectors(&wide, c, norm)?;
    if order == Order::SingularValue && s.len() > keep {
        u = u.select_rows(&(0..keep).collect::<Vec<_>>());
    }
    // V = S⁻¹ Uᵀ ΔW holds for both norms: with ΔW R = U S Bᵀ, V = Bᵀ R⁻¹ = S⁻¹ Uᵀ ΔW.
    let mut v = product(u.view(), wide.view());
    let ranks = u.rows;
    let mut scales = vec![0.0; ranks];
    let (root_in, root_out) = ((inputs as f64).sqrt(), (outputs as f64).sqrt());
    for (i, scale) in scales.iter_mut().enumerate() {
        let norm: f64 = v.row(i).iter().map(|x| x * x).sum::<f64>().sqrt();
        let inverse = if norm > 0.0 { root_in / norm } else { 0.0 };
        v.row_mut(i).iter_mut().for_each(|x| *x *= inverse);
        u.row_mut(i).iter_mut().for_each(|x| *x *= root_out);
        *scale = norm / (root_in * root_out);
    }
    let vc = product(v.view(), c.view());
    let energies: Vec<f64> = (0..ranks)
        .map(|i| {
            let along: f64 = vc.row(i).iter().zip(v.row(i)).map(|(a, b)| a * b).sum();
            scales[i].powi(2) * outputs as f64 * along.max(0.0)
        })
        .collect();
    let mut kept: Vec<usize> = (0..ranks).filter(|&i| scales[i] > 0.0).collect();
    if order == Order::Energy && kept.len() > keep {
        kept.sort_by(|&a, &b| energies[b].total_cmp(&energies[a]).then(a.cmp(&b)));
        kept.truncate(keep);
        kept.sort_unstable();
    }
    Ok(Factors {
        u: u.select_rows(&kept).to_f32(),
        v: v.select_rows(&kept).to_f32(),
        s: kept.iter().map(|&i| scales[i]).collect(),
        energies: kept.iter().map(|&i| energies[i]).collect(),
    })
}

/// Left singular vectors (rows) and singular values of `ΔW R`, `R` the identity or a square root of `C`.
fn left_vectors(delta: &Matrix<f64>, c: &Matrix<f64>, norm: Norm) -> Result<(Matrix<f64>, Vec<f64>), LinalgError> {
    let (outputs, inputs) = (delta.rows, delta.cols);
    let damped = |i: usize, j: usize| {
        c.row(i)[j]
            + if i == j {
                WHITENING_DAMPING * c.mean_diagonal()
            } else {
                0.0
            }
    };
    let on_outputs = outputs <= inputs;
    let gram = match (norm, on_outputs) {
        (Norm::Weights, true) => product(delta.view(), delta.view().transpose()),
        (Norm::Weights, false) => product(delta.view().transpose(), delta.view()),
        (Norm::Outputs, true) => {
            let mut c = c.clone();
            let damping = WHITENING_DAMPING * c.mean_diagonal();
            for i in 0..inputs {
                c.row_mut(i)[i] += damping;
            }
            product(product(delta.view(), c.view()).view(), delta.view().transpose())
        }
        (Norm::Outputs, false) => {
            let root = root(inputs, damped)?;
            let half = product(delta.view(), root.as_ref());
            product(half.view().transpose(), half.view())
        }
    };
    let (values, vectors) = eigen(gram.view())?;
    let largest = values.first().copied().unwrap_or(0.0).max(0.0);
    let count = values
        .iter()
        .take_while(|&&x| x > 0.0 && x > largest * SMALLEST * SMALLEST)
        .count();
    let s: Vec<f64> = values[..count].iter().map(|x| x.sqrt()).collect();
    let vectors = vectors.select_rows(&(0..count).collect::<Vec<_>>());
    if on_outputs {
        return Ok((vectors, s));
    }
    // U S = ΔW R B, normalised.
    let right = match norm {
        Norm::Weights => vectors,
        Norm::Outputs => product(vectors.view(), root(inputs, damped)?.transpose()),
    };
    let mut u = product(right.view(), delta.view().transpose());
    for (i, s) in s.iter().enumerate() {
        u.row_mut(i).iter_mut().for_each(|x| *x /= s);
    }
    Ok((u, s))
}

fn root(n: usize, element: impl Fn(usize, usize) -> f64) -> Result<Mat<f64>, LinalgError> {
    cholesky_lower(Mat::from_fn(n, n, element))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng as _, SeedableRng as _};

    fn random(rows: usize, cols: usize, seed: u64) -> Matrix<f32> {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        Matrix::from_vec(
            rows,
            cols,
            (0..rows * cols).map(|_| rng.random_range(-1.0..1.0)).collect(),
        )
    }

    fn moments(n: usize) -> Matrix<f64> {
        let x = random(3 * n, n, 9).to_f64();
        product(x.view().transpose(), x.view())
    }

    fn rebuild(f: &Factors) -> Matrix<f32> {
        let mut scaled = f.v.clone();
        for (i, &s) in f.s.iter().enumerate() {
            scaled.row_mut(i).iter_mut().for_each(|x| *x *= s as f32);
        }
        product(f.u.view().transpose(), scaled.view())
    }

    #[test]
    fn all_ranks_rebuild_the_matrix_in_both_norms_and_orientations() {
        for (rows, cols) in [(12, 30), (30, 12), (16, 16)] {
            let delta = random(rows, cols, 1);
            for norm in [Norm::Weights, Norm::Outputs] {
                let f = factor(&delta, &moments(cols), norm, Order::Energy, 100).unwrap();
                assert_eq!(f.s.len(), rows.min(cols));
                for (a, b) in rebuild(&f).data.iter().zip(&delta.data) {
                    assert!((a - b).abs() < 1e-4, "{rows}x{cols} {norm:?}");
                }
            }
        }
    }

    #[test]
    fn exact_low_rank_is_found_as_such() {
        let (a, b) = (random(20, 3, 2), random(3, 40, 3));
        let delta = product(a.to_f64().view(), b.to_f64().view()).to_f32();
        let f = factor(&delta, &moments(40), Norm::Weights, Order::SingularValue, 20).unwrap();
        let tail: f64 = f.energies.iter().skip(3).sum();
        assert!(tail < 1e-9 * f.energies.iter().sum::<f64>());
    }

    #[test]
    fn whitened_truncation_is_better_for_the_outputs() {
        let delta = random(24, 32, 4);
        let mut c = moments(32);
        for i in 0..32 {
            for j in 0..32 {
                c.row_mut(i)[j] *= 0.8f64.powi(i as i32 + j as i32); // outputs care about the first inputs
            }
        }
        let error = |norm| {
            let f = factor(&delta, &c, norm, Order::SingularValue, 6).unwrap();
            let mut d = delta.clone();
            d.data.iter_mut().zip(rebuild(&f).data).for_each(|(a, b)| *a -= b);
            super::super::linalg::quadratic(&d, &c.to_f32())
        };
        assert!(error(Norm::Outputs) < 0.8 * error(Norm::Weights));
    }

    #[test]
    fn a_zero_matrix_has_no_ranks() {
        let f = factor(&Matrix::zeros(4, 6), &moments(6), Norm::Weights, Order::Energy, 9).unwrap();
        assert_eq!(f.s.len(), 0);
    }
}
