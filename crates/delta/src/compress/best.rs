//! The best that was measured here: `docs/quality.md` has the figures of each part.
//!
//! 1. Factors that are optimal for the outputs (whitened), see [`super::factor`].
//! 2. V and U have widths of their own. A bit for U costs `outputs` bits and one for V `inputs`, and V's error is in
//!    part made up for by U, which is solved for afterwards: so U is the wider one unless the matrix has more outputs
//!    than inputs. A rank's widths come from a chain, so that one order of the ranks sorts both factors into bands.
//! 3. Groups store 5 bits of a scale and no zero point ([`Coding::Symmetric`]); levels lie evenly around 0, where four
//!    of them are much better used than with an integer zero point.
//! 4. A group's scale is searched with each column's weight in GPTQ's loss.
//! 5. After V and the corrected U are rounded, single codes of V and U in turn move where that lowers the output error
//!    ([`super::polish`]).

use super::account::rank_bits_apart;
use super::factor::Factors;
use super::gptq::{Hessian, quantise_ranks, quantise_rows};
use super::linalg::{LinalgError, Matrix, product};
use super::matrix::{Choices, RankItem, dropped};
use super::polish::Polish;
use super::prinmix::output_loss;
use super::quantise::{Approximation, InputMoments, U_DAMPING, corrected, pack, scaled, store_singular_values};
use crate::artifact::{Coding, Packed};

/// Times that the codes of V and of U are gone through after rounding. More gain less than 1 % of the error each.
const ROUNDS: usize = 3;

/// A matrix may take this many times the ranks that its own budget holds at the smallest widths.
const CANDIDATES: u64 = 3;

/// Share of V's rounding error that stays once U is solved against the rounded V.
const V_SHARE: f64 = 0.85;

/// U's rounding error at 2, 3, 4 and 8 bits after polishing, as a share of the rank's energy.
const fn u_share(bits: u8) -> f64 {
    match bits {
        2 => 0.1,
        3 => 0.031,
        4 => 0.0096,
        _ => 5e-5,
    }
}

/// The chain of widths of an `[outputs, inputs]` matrix: bits of V and of U.
fn widths(inputs: usize, outputs: usize) -> Choices {
    if inputs >= outputs {
        [(0, 0), (2, 2), (2, 3), (3, 3), (3, 4), (4, 4), (4, 8), (8, 8)]
    } else {
        [(0, 0), (2, 2), (3, 2), (3, 3), (4, 3), (4, 4), (8, 4), (8, 8)]
    }
}

/// Ranks of which a matrix with its own `budget` in bits may keep some.
pub(crate) fn candidate_ranks(inputs: usize, outputs: usize, budget: u64) -> usize {
    let smallest = rank_bits_apart(Coding::Symmetric, inputs, outputs, (2, 2));
    (CANDIDATES * budget / smallest) as usize + 8
}

/// The ranks of one matrix as items of the knapsack: error and cost at each of its [`widths`]. Errors are divided by
/// `scale`.
pub(crate) fn items(factors: &Factors, moments: &InputMoments, scale: f64) -> Vec<RankItem> {
    let (ranks, inputs, outputs) = (factors.s.len(), factors.v.cols, factors.u.cols);
    let chain = widths(inputs, outputs);
    let costs = chain.map(|widths| rank_bits_apart(Coding::Symmetric, inputs, outputs, widths));
    let mut items = dropped(factors, costs, scale);
    for bits in [2, 3, 4, 8] {
        let rounded = quantise_rows(
            Coding::Symmetric,
            factors.v.clone(),
            &vec![bits; ranks],
            &moments.hessian,
        );
        for (i, item) in items.iter_mut().enumerate() {
            let loss = output_loss(factors, &rounded, moments, i);
            let of_v = V_SHARE * factors.s[i].powi(2) * outputs as f64 * loss;
            for (error, &(v_bits, u_bits)) in item.errors.iter_mut().zip(&chain) {
                if v_bits == bits {
                    *error = (of_v + u_share(u_bits) * factors.energies[i]) / scale;
                }
            }
        }
    }
    items
}

/// Quantises the ranks with a choice above 0 at those widths of the chain.
pub(crate) fn quantise(
    delta: &Matrix<f32>,
    moments: &InputMoments,
    factors: &Factors,
    choices: &[usize],
) -> Result<Approximation, LinalgError> {
    let (inputs, outputs) = (delta.cols, delta.rows);
    let chain = widths(inputs, outputs);
    let indices: Vec<usize> = (0..choices.len()).filter(|&i| choices[i] > 0).collect();
    let v_bits: Vec<u8> = indices.iter().map(|&i| chain[choices[i]].0).collect();
    let u_bits: Vec<u8> = indices.iter().map(|&i| chain[choices[i]].1).collect();

    let mut v = quantise_rows(
        Coding::Symmetric,
        factors.v.select_rows(&indices),
        &v_bits,
        &moments.hessian,
    );
    let (unit, stored) = store_singular_values(indices.iter().map(|&i| factors.s[i]));
    let g = scaled(&v.values, unit, &stored).to_f64();
    let gc = product(g.view(), moments.c.view());
    let mut h = product(gc.view(), g.view().transpose());
    // Inputs that are zero throughout leave nothing to correct for.
    let observed = h.mean_diagonal() > 0.0;
    let mut target = if observed {
        corrected(&h, product(gc.view(), delta.to_f64().view().transpose()))?
    } else {
        factors.u.select_rows(&indices).to_f64()
    };
    let (unit, s) = normalise(&mut target, &mut h, unit, &stored);
    let mut u = quantise_ranks(
        Coding::Symmetric,
        target.to_f32(),
        &u_bits,
        &Hessian::new(&h, U_DAMPING)?,
    );
    if observed {
        let polish = Polish::new(delta, moments, unit, &s);
        for _ in 0..ROUNDS {
            polish.v(&u, &mut v);
            polish.u(&v, &mut u);
        }
    }
    let dense = product(u.values.view().transpose(), scaled(&v.values, unit, &s).view());
    Ok(Approximation {
        packed: Packed::Factors(pack(Coding::Symmetric, unit, &s, [(&v, &v_bits), (&u, &u_bits)])),
        dense,
    })
}

/// Brings the rows of `target` to a root mean square of 1, where the table of scales is, and moves the factors into the
/// singular values; `h`, the Hessian over the ranks, follows.
fn normalise(target: &mut Matrix<f64>, h: &mut Matrix<f64>, unit: f32, stored: &[half::f16]) -> (f32, Vec<half::f16>) {
    let value = |unit: f32, s: half::f16| f64::from(s.to_f32() * unit);
    let wanted: Vec<f64> = stored
        .iter()
        .enumerate()
        .map(|(i, &s)| {
            let row = target.row(i);
            let rms = (row.iter().map(|x| x * x).sum::<f64>() / row.len().max(1) as f64).sqrt();
            value(unit, s) * if rms > 0.0 { rms } else { 1.0 }
        })
        .collect();
    let (new_unit, new) = store_singular_values(wanted.into_iter());
    // The stored value is rounded, so the factors come from it.
    let factors: Vec<f64> = new
        .iter()
        .zip(stored)
        .map(|(&new, &old)| value(new_unit, new) / value(unit, old))
        .collect();
    for (i, factor) in factors.iter().enumerate() {
        target.row_mut(i).iter_mut().for_each(|x| *x /= factor);
        let row = h.row_mut(i).iter_mut().zip(&factors);
        row.for_each(|(x, other)| *x *= factor * other);
    }
    (new_unit, new)
}

#[cfg(test)]
mod tests {
    use super::super::factor::{Norm, Order, factor};
    use super::super::linalg::quadratic;
    use super::super::matrix::CHOICES;
    use super::*;
    use crate::artifact::packed_bytes;
    use proptest::prelude::*;
    use rand::{Rng as _, SeedableRng as _};

    fn make(outputs: usize, inputs: usize, seed: u64) -> (Matrix<f32>, InputMoments, Factors) {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let mut random = |rows: usize, cols: usize| {
            let data = (0..rows * cols).map(|_| rng.random_range(-1.0f32..1.0)).collect();
            Matrix::from_vec(rows, cols, data)
        };
        let delta = random(outputs, inputs);
        let x = random(2 * inputs, inputs).to_f64();
        let moments = InputMoments::new(product(x.view().transpose(), x.view())).unwrap();
        let factors = factor(&delta, &moments.c, Norm::Outputs, Order::Energy, 64).unwrap();
        (delta, moments, factors)
    }

    fn relative_error(delta: &Matrix<f32>, approximation: &Matrix<f32>, moments: &InputMoments) -> f64 {
        let mut rest = delta.clone();
        rest.data.iter_mut().zip(&approximation.data).for_each(|(d, a)| *d -= a);
        let c = moments.c.to_f32();
        quadratic(&rest, &c) / quadratic(delta, &c)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Whatever the shape and the widths, what the kernels read is what was quantised.
        #[test]
        fn packed_factors_read_back_as_the_approximation(
            outputs in 1..300usize,
            inputs in 1..300usize,
            choices in proptest::collection::vec(0..CHOICES, 1..12),
            seed: u64,
        ) {
            let (delta, moments, factors) = make(outputs, inputs, seed);
            let choices = &choices[..choices.len().min(factors.s.len())];
            let made = quantise(&delta, &moments, &factors, choices).unwrap();
            let bytes = made.packed.encode();
            prop_assert_eq!(
                Some(bytes.len()),
                packed_bytes(inputs, outputs, made.factors().coding, &made.factors().widths())
            );
            let found = made.factors().to_delta().unwrap().to_dense();
            let largest = made.dense.data.iter().fold(0f32, |m, x| m.max(x.abs()));
            for (a, b) in found.iter().zip(&made.dense.data) {
                prop_assert!((a - b).abs() <= 1e-5 * largest.max(1e-3), "{} {}", a, b);
            }
        }
    }

    #[test]
    fn wider_choices_leave_less_error() {
        for (outputs, inputs) in [(48, 48), (40, 140), (140, 40)] {
            let (delta, moments, factors) = make(outputs, inputs, 7);
            let errors: Vec<f64> = (1..CHOICES)
                .map(|choice| {
                    let choices = vec![choice; factors.s.len()];
                    let made = quantise(&delta, &moments, &factors, &choices).unwrap();
                    relative_error(&delta, &made.dense, &moments)
                })
                .collect();
            assert!(errors.is_sorted_by(|a, b| a > b), "{errors:?}");
            // All ranks at eight bits leave next to nothing.
            assert!(errors[CHOICES - 2] < 1e-4, "{errors:?}");
        }
    }

    #[test]
    fn inputs_that_are_always_zero_are_no_obstacle() {
        let (delta, _, factors) = make(24, 40, 5);
        let moments = InputMoments::new(Matrix::zeros(40, 40)).unwrap();
        let made = quantise(&delta, &moments, &factors, &[3, 1]).unwrap();
        assert!(made.dense.data.iter().all(|x| x.is_finite()));
    }

    #[test]
    fn outputs_that_do_not_change_stay_exact() {
        let (mut delta, moments, _) = make(300, 40, 6);
        (128..256).for_each(|row| delta.row_mut(row).fill(0.0));
        let factors = factor(&delta, &moments.c, Norm::Outputs, Order::Energy, 16).unwrap();
        let made = quantise(&delta, &moments, &factors, &[4; 16]).unwrap();
        assert!((128..256).all(|row| made.dense.row(row).iter().all(|x| x.abs() < 1e-6)));
    }
}
