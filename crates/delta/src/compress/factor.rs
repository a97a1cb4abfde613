//! Factors of a difference: `ΔW ≈ Uᵀᵀ diag(s) V`, ranks in order of falling energy.
//!
//! The factorisation goes through the eigenvectors of the smaller Gram matrix in f64. Singular values below 10⁻⁶ of the
//! largest are lost to rounding that way; their share of the energy is below 10⁻¹² and no method would store them.
//!
//! Where few ranks are wanted they are looked for alone ([`super::subspace`]), with a proof that no others would capture
//! more; what is then outside of them is known all the same, as the trace of the Gram matrix is the energy of all.

use super::gram::Gram;
use super::linalg::{LinalgError, Matrix, eigen, product};
use super::subspace;

/// Ranks whose singular value is below this share of the largest are not computed.
const SMALLEST: f64 = 1e-6;

/// With less than this share of its energy outside its first ranks, a matrix is taken to have no others.
///
/// Rounding the factors to f16 loses 10⁻⁷ of the energy. A low-rank update merged in f32 leaves about 10⁻¹² outside:
/// each sum is rounded to 2⁻²⁴ of the *weight*, which is some ten to a thousand times the update. Merged in bf16 or f16
/// (2⁻⁸ and 2⁻¹¹ of the weight) it leaves 10⁻⁵ to 10⁻¹, spread over all ranks: such a difference is of full rank, and
/// what was rounded away is not to be had from it.
pub(crate) const NOISE: f64 = 1e-9;

/// Share of the wanted ranks that are computed beyond them when energy decides which are kept.
const MARGIN: f64 = 0.125;

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
    /// Share outside these ranks of `tr(ΔW C ΔWᵀ)`, or of `‖ΔW‖²` where the weights decide; absent when that is 0.
    pub residual_energy: Option<f64>,
    /// Whether what is outside these ranks is no more than rounding leaves ([`NOISE`]).
    pub exact: bool,
}

impl Factors {
    /// No ranks.
    pub fn none(inputs: usize, outputs: usize) -> Self {
        Self {
            u: Matrix::zeros(0, outputs),
            v: Matrix::zeros(0, inputs),
            s: Vec::new(),
            energies: Vec::new(),
            residual_energy: None,
            exact: false,
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
    let wide = delta.to_f64();
    let gram = Gram::new(&wide, c, norm)?;
    let selection = Selection { norm, order, keep };
    if let Some(spectrum) = selection.few(&gram)
        && let Some(factors) = assemble(&wide, c, &gram, spectrum, selection)
    {
        return Ok(factors);
    }
    let all = Spectrum::all(&gram)?;
    Ok(assemble(&wide, c, &gram, all, selection).unwrap_or_else(|| unreachable!("of all ranks none is missing")))
}

/// Which ranks are wanted.
#[derive(Debug, Clone, Copy)]
struct Selection {
    norm: Norm,
    order: Order,
    keep: usize,
}

impl Selection {
    /// The first ranks alone, where that pays.
    fn few(self, gram: &Gram) -> Option<Spectrum> {
        let wanted = match (self.order, self.norm) {
            (Order::SingularValue, _) => self.keep,
            (Order::Energy, Norm::Outputs) => self.keep + (self.keep as f64 * MARGIN) as usize + 1,
            // A rank of any singular value may have the largest output energy: all have to be looked at.
            (Order::Energy, Norm::Weights) => return None,
        };
        if !subspace::pays(gram.matrix.rows, wanted) {
            return None;
        }
        let found = subspace::largest(&gram.matrix, wanted)?;
        Some(Spectrum {
            values: found.values,
            vectors: found.vectors,
            outside: found.rest,
        })
    }

    /// The ranks that are kept, in falling order of singular values; `None` when one that was not computed may have to
    /// be among them.
    fn kept(self, energies: &[f64], outside: f64) -> Option<Vec<usize>> {
        let mut kept: Vec<usize> = (0..energies.len()).collect();
        if self.order == Order::Energy && kept.len() > self.keep {
            kept.sort_by(|&a, &b| energies[b].total_cmp(&energies[a]).then(a.cmp(&b)));
            // The output energy of a direction is at most its energy in the damped norm.
            if kept
                .get(self.keep.saturating_sub(1))
                .is_some_and(|&i| energies[i] < outside)
            {
                return None;
            }
        }
        kept.truncate(self.keep);
        kept.sort_unstable();
        Some(kept)
    }
}

/// Eigenpairs of a Gram matrix in falling order.
struct Spectrum {
    values: Vec<f64>,
    vectors: Matrix<f64>,
    /// No direction outside the vectors has more energy than this.
    outside: f64,
}

impl Spectrum {
    fn all(gram: &Gram) -> Result<Self, LinalgError> {
        let (values, vectors) = eigen(gram.matrix.view())?;
        Ok(Self {
            values,
            vectors,
            outside: 0.0,
        })
    }

    /// Cuts it where nothing but rounding follows; returns whether it was found to end there.
    fn cut(&mut self, total: f64) -> bool {
        let largest = self.values.first().copied().unwrap_or(0.0);
        let mut captured = 0.0;
        let mut count = 0;
        let mut exact = total <= 0.0;
        for &value in &self.values {
            if value <= 0.0 || value <= largest * SMALLEST * SMALLEST || exact {
                break;
            }
            captured += value;
            count += 1;
            exact = total - captured <= NOISE * total;
        }
        self.values.truncate(count);
        self.vectors = self.vectors.select_rows(&(0..count).collect::<Vec<_>>());
        exact
    }
}

/// Factors from the eigenpairs of the Gram matrix; `None` when they are too few to choose the ranks from.
fn assemble(
    delta: &Matrix<f64>,
    c: &Matrix<f64>,
    gram: &Gram,
    mut spectrum: Spectrum,
    selection: Selection,
) -> Option<Factors> {
    let (outputs, inputs) = (delta.rows, delta.cols);
    let total = gram.matrix.trace();
    let mut exact = spectrum.cut(total);
    if selection.order == Order::SingularValue && spectrum.values.len() > selection.keep {
        exact = false;
        spectrum.values.truncate(selection.keep);
        spectrum.vectors = spectrum.vectors.select_rows(&(0..selection.keep).collect::<Vec<_>>());
    }
    let Spectrum {
        values,
        vectors,
        outside,
    } = spectrum;
    let mut u = gram.left_vectors(delta, &values, vectors);
    // V = S⁻¹ Uᵀ ΔW holds for both norms: with ΔW R = U S Bᵀ, V = Bᵀ R⁻¹ = S⁻¹ Uᵀ ΔW.
    let mut v = product(u.view(), delta.view());
    let square = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>();
    let squares: Vec<f64> = (0..values.len()).map(|i| square(v.row(i))).collect();
    let energies: Vec<f64> = match selection.norm {
        // The eigenvalue is u ΔW (C + λ I) ΔWᵀ uᵀ, and u ΔW has the norm just computed.
        Norm::Outputs => {
            let pairs = values.iter().zip(&squares);
            pairs
                .map(|(value, square)| (value - gram.damping * square).max(0.0))
                .collect()
        }
        Norm::Weights => {
            let vc = product(v.view(), c.view());
            let along = |i: usize| vc.row(i).iter().zip(v.row(i)).map(|(a, b)| a * b).sum::<f64>();
            (0..values.len()).map(|i| along(i).max(0.0)).collect()
        }
    };
    let (root_in, root_out) = ((inputs as f64).sqrt(), (outputs as f64).sqrt());
    let mut scales = vec![0.0; values.len()];
    for (i, scale) in scales.iter_mut().enumerate() {
        let norm = squares[i].sqrt();
        let inverse = if norm > 0.0 { root_in / norm } else { 0.0 };
        v.row_mut(i).iter_mut().for_each(|x| *x *= inverse);
        u.row_mut(i).iter_mut().for_each(|x| *x *= root_out);
        *scale = norm / (root_in * root_out);
    }
    let mut kept = selection.kept(&energies, if exact { 0.0 } else { outside })?;
    exact &= kept.len() == values.len();
    kept.retain(|&i| scales[i] > 0.0);
    let (captured, total) = match selection.norm {
        Norm::Outputs => {
            let captured: f64 = kept.iter().map(|&i| energies[i]).sum();
            (captured, total - gram.damping * square(&delta.data))
        }
        Norm::Weights => (kept.iter().map(|&i| values[i]).sum(), total),
    };
    Some(Factors {
        u: u.select_rows(&kept).to_f32(),
        v: v.select_rows(&kept).to_f32(),
        s: kept.iter().map(|&i| scales[i]).collect(),
        energies: kept.iter().map(|&i| energies[i]).collect(),
        residual_energy: (total > 0.0).then(|| (1.0 - captured / total).max(0.0)),
        exact,
    })
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

    /// `[rows, cols]`, of `rank` ranks that fall as `0.9^i`, and noise of that root mean square.
    fn low_rank(rows: usize, cols: usize, rank: usize, noise: f32) -> Matrix<f32> {
        let (mut a, b) = (random(rows, rank, 2), random(rank, cols, 3));
        for i in 0..rows {
            a.row_mut(i)
                .iter_mut()
                .enumerate()
                .for_each(|(j, x)| *x *= 0.9f32.powi(j as i32));
        }
        let mut delta = product(a.view(), b.view());
        let rest = random(rows, cols, 5);
        delta.data.iter_mut().zip(&rest.data).for_each(|(x, n)| *x += noise * n);
        delta
    }

    #[test]
    fn few_ranks_alone_are_those_of_the_full_decomposition() {
        for (rows, cols) in [(260, 300), (300, 260)] {
            let delta = low_rank(rows, cols, 60, 0.3);
            let c = moments(cols);
            let wide = delta.to_f64();
            for (norm, order) in [
                (Norm::Weights, Order::SingularValue),
                (Norm::Outputs, Order::SingularValue),
                (Norm::Outputs, Order::Energy),
            ] {
                let gram = Gram::new(&wide, &c, norm).unwrap();
                let selection = Selection { norm, order, keep: 20 };
                let few = selection.few(&gram).expect("pays and converges");
                let few = assemble(&wide, &c, &gram, few, selection).expect("enough ranks");
                let all = assemble(&wide, &c, &gram, Spectrum::all(&gram).unwrap(), selection).unwrap();
                assert_eq!(few.s.len(), 20);
                assert!(!few.exact && !all.exact);
                let sum = |f: &Factors| f.energies.iter().sum::<f64>();
                assert!((sum(&few) / sum(&all) - 1.0).abs() < 1e-4, "{norm:?} {order:?}");
                let (few, all) = (few.residual_energy.unwrap(), all.residual_energy.unwrap());
                assert!((few - all).abs() < 1e-6, "{norm:?} {order:?}: {few} {all}");
                assert!(all > 0.01 && all < 0.9);
            }
        }
    }

    #[test]
    fn energies_and_what_is_outside_are_those_of_the_rebuilt_matrix() {
        for (rows, cols) in [(30, 50), (50, 30)] {
            let (delta, c) = (random(rows, cols, 8), moments(cols));
            for norm in [Norm::Weights, Norm::Outputs] {
                let f = factor(&delta, &c, norm, Order::SingularValue, 9).unwrap();
                let mut rest = delta.clone();
                rest.data.iter_mut().zip(rebuild(&f).data).for_each(|(a, b)| *a -= b);
                let (inside, outside) = match norm {
                    Norm::Weights => (&delta, &Matrix::zeros(0, 0)),
                    Norm::Outputs => (&delta, &c.to_f32()),
                };
                let energy = |d: &Matrix<f32>| match norm {
                    Norm::Weights => super::super::linalg::dot(&d.data, &d.data),
                    Norm::Outputs => super::super::linalg::quadratic(d, outside),
                };
                let found = f.residual_energy.unwrap();
                assert!(
                    (found - energy(&rest) / energy(inside)).abs() < 1e-5,
                    "{norm:?} {found}"
                );
                let along: f64 = f.energies.iter().sum();
                let total = super::super::linalg::quadratic(&delta, &c.to_f32());
                let left = super::super::linalg::quadratic(&rest, &c.to_f32());
                if norm == Norm::Outputs {
                    assert!((along / (total - left) - 1.0).abs() < 1e-4);
                }
            }
        }
    }

    #[test]
    fn a_rank_that_nothing_follows_ends_the_factors() {
        for norm in [Norm::Weights, Norm::Outputs] {
            for (rows, cols) in [(20, 40), (40, 20), (280, 300), (300, 280)] {
                let f = factor(&low_rank(rows, cols, 4, 1e-7), &moments(cols), norm, Order::Energy, 15).unwrap();
                assert!(f.exact && f.s.len() == 4, "{rows}x{cols} {norm:?} {}", f.s.len());
                assert!(f.residual_energy.unwrap() < 1e-8);
                let f = factor(&low_rank(rows, cols, 4, 1e-3), &moments(cols), norm, Order::Energy, 15).unwrap();
                assert!(!f.exact && f.s.len() == 15);
                let f = factor(&low_rank(rows, cols, 4, 1e-7), &moments(cols), norm, Order::Energy, 3).unwrap();
                assert!(!f.exact && f.s.len() == 3);
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
        assert_eq!(f.residual_energy, None);
    }
}
