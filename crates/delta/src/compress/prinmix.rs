//! PrinMix (arXiv 2506.11087): the width of every rank by a knapsack over what quantising it does to the outputs.
//!
//! With U exact, quantising row i of V at b bits costs `s_i² ‖u_i‖² · δ C δᵀ` in output energy, δ the rounding error
//! of GPTQ at that width. U's own rounding adds about as much again; its share is modelled as a constant times 4⁻ᵇ of
//! the rank's energy, because U is quantised only after the widths are known.

use super::account::{CHOICES, rank_bits};
use super::allocate::Item;
use super::factor::Factors;
use super::gptq::quantise_rows;
use super::linalg::{Matrix, dot};
use super::quantise::InputMoments;

/// U's rounding error at b bits, as a share of the rank's energy: this times 4⁻ᵇ.
const U_SHARE: f64 = 1.2;

/// The ranks of one matrix as items of the knapsack: error and cost at each of [`CHOICES`]. Errors are divided by
/// `scale`.
pub(crate) fn items(factors: &Factors, moments: &InputMoments, scale: f64) -> Vec<Item<5>> {
    let (ranks, inputs, outputs) = (factors.s.len(), factors.v.cols, factors.u.cols);
    let costs = CHOICES.map(|bits| rank_bits(inputs, outputs, bits));
    let mut items: Vec<Item<5>> = factors
        .energies
        .iter()
        .map(|&energy| Item {
            errors: [energy / scale; 5],
            costs,
        })
        .collect();
    for (choice, &bits) in CHOICES.iter().enumerate().skip(1) {
        let quantised = quantise_rows(factors.v.clone(), &vec![bits; ranks], &moments.hessian);
        for (i, item) in items.iter_mut().enumerate() {
            let rounding = squared_distance(&factors.v, &quantised.values, i);
            // GPTQ's loss is with the damped Hessian; the outputs see the plain one.
            let loss = (quantised.losses[i] - moments.hessian.damping * rounding).max(0.0);
            let error = factors.s[i].powi(2) * outputs as f64 * loss;
            let of_u = U_SHARE * 4f64.powi(-i32::from(bits)) * factors.energies[i];
            item.errors[choice] = (error + of_u) / scale;
        }
    }
    items
}

fn squared_distance(a: &Matrix<f32>, b: &Matrix<f32>, row: usize) -> f64 {
    let d: Vec<f32> = a.row(row).iter().zip(b.row(row)).map(|(a, b)| a - b).collect();
    dot(&d, &d)
}
