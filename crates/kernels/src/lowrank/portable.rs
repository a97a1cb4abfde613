//! The integer kernels in plain Rust: the definition that the other versions are compared with.

use super::activations::{CHUNK, COARSE, InputRow, coarse, high, magnitude, round, scale};
use super::coefficients::{BLOCK, Coefficients, first};
use super::factor::Factor;
use crate::lowbit::{GROUP, unpack_group};
use std::ops::Range;

/// `out[i] = V[ranks.start + i] · x`.
pub(super) fn dots(v: &Factor<'_>, ranks: Range<usize>, x: InputRow<'_>, out: &mut [f32]) {
    for (rank, out) in ranks.zip(out) {
        let (scales, zeros) = (v.scales(rank, 0), v.zeros(rank, 0));
        let mut lanes = [0.0f32; CHUNK];
        for (g, values) in x.values.iter().enumerate() {
            let codes = codes(v, rank, g);
            let (chunk, lane) = (&x.chunks[g / CHUNK], g % CHUNK);
            let codes = codes.map(i32::from);
            let (products, x_sum, x_scale): (i32, i32, f32) = if coarse(v.bits()) {
                let products = (0..GROUP).map(|i| codes[i] * i32::from(values.high[i])).sum();
                (products, chunk.coarse_sums[lane], chunk.scales[lane] * COARSE)
            } else {
                let products = (0..GROUP).map(|i| codes[i] * values.value(i)).sum();
                (products, chunk.sums[lane], chunk.scales[lane])
            };
            // A sum of what is infinite or NaN may be any integer.
            let sum = (2 * products).wrapping_sub(i32::from(zeros[g]).wrapping_mul(x_sum));
            lanes[lane] = (sum as f32).mul_add(scales[g] * x_scale, lanes[lane]);
        }
        *out = sum_lanes(&lanes);
    }
}

/// Sum of the lanes of a dot product, as a fixed tree.
pub(super) fn sum_lanes(lanes: &[f32; CHUNK]) -> f32 {
    let halves: [f32; 4] = std::array::from_fn(|j| lanes[j] + lanes[j + 4]);
    (halves[0] + halves[2]) + (halves[1] + halves[3])
}

/// Coefficients of the ranks whose `s ⊙ (V x)` is `h`.
pub(super) fn quantise(to: &mut Coefficients, u: &Factor<'_>, h: &[f32]) {
    let mut values = [[0.0f32; CHUNK]; BLOCK];
    let mut largest = [0u32; CHUNK];
    for (i, h) in h.iter().enumerate() {
        // Lanes beyond the row may hold anything: no lane reads another.
        let scales = first(u.scales(to.first_rank + i, to.first_group));
        for lane in 0..CHUNK {
            values[i][lane] = scales[lane] * h;
            largest[lane] = largest[lane].max(magnitude(values[i][lane]));
        }
    }
    to.zeros = [0; CHUNK];
    for lane in 0..CHUNK {
        let (scale, inverse) = scale(f32::from_bits(largest[lane]));
        to.scales[lane] = if coarse(u.bits()) { scale * COARSE } else { scale };
        for (i, values) in values.iter().enumerate().take(h.len()) {
            let integer = round(values[lane] * inverse);
            let integer = if coarse(u.bits()) { high(integer) } else { integer };
            let zero = first(u.zeros(to.first_rank + i, to.first_group))[lane];
            to.integers.single[i][lane] = integer;
            to.zeros[lane] = to.zeros[lane].wrapping_add(integer.wrapping_mul(i32::from(zero)));
        }
    }
}

/// `y += Σ coefficient · weight` for the outputs of one group.
pub(super) fn mix(u: &Factor<'_>, coefficients: &Coefficients, lane: usize, y: &mut [f32]) {
    // Integers of what is infinite or NaN may be any.
    let mut sums = [coefficients.zero(lane).wrapping_neg(); GROUP];
    for (i, rank) in coefficients.ranks().enumerate() {
        let codes = codes(u, rank, coefficients.first_group() + lane);
        let coefficient = coefficients.integer(i, lane);
        for (sum, code) in sums.iter_mut().zip(codes) {
            *sum = sum.wrapping_add((2 * i32::from(code)).wrapping_mul(coefficient));
        }
    }
    for (y, sum) in y.iter_mut().zip(sums) {
        *y = (sum as f32).mul_add(coefficients.scale(lane), *y);
    }
}

/// Codes of one group of a row, completed with zeros.
fn codes(factor: &Factor<'_>, rank: usize, group: usize) -> [u8; GROUP] {
    let mut codes = [0; GROUP];
    let padded = factor.group_len(group).next_multiple_of(8);
    unpack_group(factor.group(rank, group), factor.bits(), &mut codes[..padded]);
    codes
}
