//! Moves single codes where that lowers the output error: cyclic coordinate descent after GPTQ.
//!
//! GPTQ decides each code once, with the later ones still free, and rounds V before U is known. Here every code is
//! looked at again with all others as they are: the error is a parabola in each weight, so the level nearest to its
//! lowest point is the best one. No move raises the error on the calibration texts. Scales and singular values stay.
//!
//! With `D = ΔW − U S V`, `A = S U Uᵀ S` over the ranks (U stored as rows) and `G = S V`:
//! a step ε of `V[i, j]` changes `tr(D C Dᵀ)` by `ε² A_ii C_jj − 2 ε M_ij`, `M = S U D C`;
//! a step ε of `U[i, o]` changes it by `ε² H_ii − 2 ε N_io`, `H = G C Gᵀ`, `N = G C Dᵀ`.

use deltamux_kernels::lowbit::GROUP;
use half::f16;

use super::gptq::Quantised;
use super::linalg::{Matrix, product};
use super::quantise::{InputMoments, scaled};

/// Times that one row of V is gone through before the next.
const ROW_SWEEPS: usize = 2;

/// Times that all of U is gone through.
const U_SWEEPS: usize = 2;

/// What does not change between rounds.
pub(crate) struct Polish<'a> {
    unit: f32,
    s: &'a [f16],
    delta: Matrix<f64>,
    c: &'a Matrix<f64>,
    /// `C` in f32.
    rounded: Matrix<f32>,
    /// `ΔW C`.
    delta_c: Matrix<f64>,
}

impl<'a> Polish<'a> {
    /// For factors of `delta` whose singular values are `s` in units of `unit`.
    pub fn new(delta: &Matrix<f32>, moments: &'a InputMoments, unit: f32, s: &'a [f16]) -> Self {
        let delta = delta.to_f64();
        let c = &moments.c;
        Self {
            unit,
            s,
            delta_c: product(delta.view(), c.view()),
            delta,
            c,
            rounded: c.to_f32(),
        }
    }

    /// Moves codes of V.
    pub fn v(&self, u: &Quantised, v: &mut Quantised) {
        let (ranks, inputs) = (v.values.rows, v.values.cols);
        let su = scaled(&u.values, self.unit, self.s).to_f64();
        let a = product(su.view(), su.view().transpose());
        let mut rest = product(su.view(), self.delta.view());
        let approximation = product(a.view(), v.values.to_f64().view());
        rest.data.iter_mut().zip(&approximation.data).for_each(|(r, x)| *r -= x);
        let mut m = product(rest.view(), self.c.view()).to_f32();
        let c = &self.rounded;
        // Σ ε C_j over the steps of one row.
        let mut steps = vec![0f32; inputs];
        for i in 0..ranks {
            let curvature = a.row(i)[i] as f32;
            steps.fill(0.0);
            for _ in 0..ROW_SWEEPS {
                let mut moved = false;
                for j in 0..inputs {
                    let parabola = curvature * c.row(j)[j];
                    if parabola <= 0.0 {
                        continue;
                    }
                    let now = v.values.row(i)[j];
                    let lowest = now + (m.row(i)[j] - curvature * steps[j]) / parabola;
                    let (code, value) = v.row_grids(i)[j / GROUP].nearest(lowest);
                    if value != now {
                        v.codes.row_mut(i)[j] = code;
                        v.values.row_mut(i)[j] = value;
                        add_scaled(value - now, c.row(j), &mut steps);
                        moved = true;
                    }
                }
                if !moved {
                    break;
                }
            }
            for k in i + 1..ranks {
                add_scaled(-a.row(k)[i] as f32, &steps, m.row_mut(k));
            }
        }
    }

    /// Moves codes of U.
    pub fn u(&self, v: &Quantised, u: &mut Quantised) {
        let (ranks, outputs) = (u.values.rows, u.values.cols);
        let g = scaled(&v.values, self.unit, self.s).to_f64();
        let h = product(product(g.view(), self.c.view()).view(), g.view().transpose());
        let mut n = product(g.view(), self.delta_c.view().transpose());
        let approximation = product(h.view(), u.values.to_f64().view());
        n.data.iter_mut().zip(&approximation.data).for_each(|(n, x)| *n -= x);
        let mut n = n.to_f32();
        let mut steps = vec![0f32; outputs];
        for _ in 0..U_SWEEPS {
            for i in 0..ranks {
                let parabola = h.row(i)[i] as f32;
                if parabola <= 0.0 {
                    continue;
                }
                let mut moved = false;
                for (o, step) in steps.iter_mut().enumerate() {
                    let now = u.values.row(i)[o];
                    let (code, value) = u.row_grids(i)[o / GROUP].nearest(now + n.row(i)[o] / parabola);
                    u.codes.row_mut(i)[o] = code;
                    u.values.row_mut(i)[o] = value;
                    *step = value - now;
                    moved |= value != now;
                }
                if moved {
                    (0..ranks).for_each(|k| add_scaled(-h.row(k)[i] as f32, &steps, n.row_mut(k)));
                }
            }
        }
    }
}

/// `to += a · x`.
fn add_scaled(a: f32, x: &[f32], to: &mut [f32]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += a * x);
}

#[cfg(test)]
mod tests {
    use super::super::gptq::{Hessian, quantise_ranks, quantise_rows};
    use super::super::linalg::quadratic;
    use super::super::quantise::store_singular_values;
    use super::*;
    use crate::artifact::Coding;

    fn wave(rows: usize, cols: usize, salt: f64) -> Matrix<f64> {
        let data = (0..rows * cols).map(|i| ((i as f64 + salt) * 12.9898).sin() * 1.4);
        Matrix::from_vec(rows, cols, data.collect())
    }

    #[test]
    fn every_round_lowers_the_output_error() {
        let (outputs, inputs, ranks) = (150, 200, 12);
        let x = wave(300, inputs, 0.3);
        let mut c = product(x.view().transpose(), x.view());
        c.data.iter_mut().for_each(|x| *x /= 300.0);
        let moments = InputMoments::new(c).unwrap();
        let (u, v) = (wave(ranks, outputs, 0.1).to_f32(), wave(ranks, inputs, 0.7).to_f32());
        let (unit, s) = store_singular_values((1..=ranks).map(|i| 1.0 / i as f64));
        let delta = product(u.view().transpose(), scaled(&v, unit, &s).view());
        let bits = vec![2; ranks];
        let mut v = quantise_rows(Coding::Symmetric, v, &bits, &moments.hessian);
        let mut identity = Matrix::zeros(ranks, ranks);
        (0..ranks).for_each(|i| identity.row_mut(i)[i] = 1.0);
        let mut u = quantise_ranks(Coding::Symmetric, u, &bits, &Hessian::new(&identity, 0.001).unwrap());
        let polish = Polish::new(&delta, &moments, unit, &s);
        let error = |u: &Quantised, v: &Quantised| {
            let mut rest = delta.clone();
            let dense = product(u.values.view().transpose(), scaled(&v.values, unit, &s).view());
            rest.data.iter_mut().zip(&dense.data).for_each(|(r, d)| *r -= d);
            quadratic(&rest, &polish.rounded)
        };
        let mut errors = vec![error(&u, &v)];
        for _ in 0..2 {
            polish.v(&u, &mut v);
            errors.push(error(&u, &v));
            polish.u(&v, &mut u);
            errors.push(error(&u, &v));
        }
        assert!(errors.windows(2).all(|e| e[1] <= e[0]), "{errors:?}");
        assert!(errors[4] < 0.9 * errors[0], "{errors:?}");
        for (i, row) in v.values.data.chunks(inputs).enumerate() {
            for (j, value) in row.iter().enumerate() {
                let grid = v.row_grids(i)[j / GROUP];
                assert_eq!(grid.nearest(*value), (v.codes.row(i)[j], *value));
            }
        }
    }
}
