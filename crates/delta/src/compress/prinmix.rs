//! PrinMix (arXiv 2506.11087): the width of every rank by a knapsack over what quantising it does to the outputs.
//!
//! With U exact, quantising row i of V at b bits costs `s_i² ‖u_i‖² · δ C δᵀ` in output energy, δ the rounding error
//! of GPTQ at that width. U's own rounding adds about as much again; its share is modelled as a constant times 4⁻ᵇ of
//! the rank's energy, because U is quantised only after the widths are known.

use super::account::rank_bits_apart;
use super::factor::Factors;
use super::gptq::{Quantised, quantise_rows};
use super::linalg::dot;
use super::matrix::{Choices, RankItem, dropped};
use super::quantise::InputMoments;
use crate::artifact::Coding;

/// U's rounding error at b bits, as a share of the rank's energy: this times 4⁻ᵇ.
const U_SHARE: f64 = 1.2;

/// What a rank may become: bits of V and of U. The last entries repeat, so that all methods have as many.
pub(crate) const WIDTHS: Choices = [(0, 0), (2, 2), (3, 3), (4, 4), (8, 8), (8, 8), (8, 8), (8, 8)];

/// The ranks of one matrix as items of the knapsack: error and cost at each of [`WIDTHS`]. Errors are divided by
/// `scale`.
pub(crate) fn items(factors: &Factors, moments: &InputMoments, scale: f64) -> Vec<RankItem> {
    let (ranks, inputs, outputs) = (factors.s.len(), factors.v.cols, factors.u.cols);
    let costs = WIDTHS.map(|widths| rank_bits_apart(Coding::Affine, inputs, outputs, widths));
    let mut items = dropped(factors, costs, scale);
    for (choice, &(bits, _)) in WIDTHS.iter().enumerate().skip(1) {
        if bits == WIDTHS[choice - 1].0 {
            for item in &mut items {
                item.errors[choice] = item.errors[choice - 1];
            }
            continue;
        }
        let quantised = quantise_rows(Coding::Affine, factors.v.clone(), &vec![bits; ranks], &moments.hessian);
        for (i, item) in items.iter_mut().enumerate() {
            let loss = output_loss(factors, &quantised, moments, i);
            let error = factors.s[i].powi(2) * outputs as f64 * loss;
            let of_u = U_SHARE * 4f64.powi(-i32::from(bits)) * factors.energies[i];
            item.errors[choice] = (error + of_u) / scale;
        }
    }
    items
}

/// `δ C δᵀ` of the rounding error of row `row` of V.
pub(crate) fn output_loss(factors: &Factors, quantised: &Quantised, moments: &InputMoments, row: usize) -> f64 {
    let (v, rounded) = (factors.v.row(row), quantised.values.row(row));
    let d: Vec<f32> = v.iter().zip(rounded).map(|(a, b)| a - b).collect();
    // GPTQ's loss is with the damped Hessian; the outputs see the plain one.
    (quantised.losses[row] - moments.hessian.damping * dot(&d, &d)).max(0.0)
}
