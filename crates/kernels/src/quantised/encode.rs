//! From weights to codes, a panel at a time: the sixteen outputs are the lanes.

use half::bf16;

use super::layout::{BLOCK, Bits, GROUP, MIDDLE, SCALE_BYTES};
use crate::isa::for_each_isa;
use crate::lanes::{LANES, Lanes};
use crate::quantised::layout::PANEL;

/// A group of inputs, each for all outputs of a panel.
type Group = [Lanes; GROUP];

/// Codes of a group.
type Codes = [[u8; LANES]; GROUP];

/// Writes a panel, zeroed before. `weights` are its rows, `[PANEL, inputs]`, padded with zeros to whole blocks.
pub(super) fn encode(bits: Bits, weights: &[f32], panel: &mut [u8]) {
    let inputs = weights.len() / PANEL;
    let (head, blocks) = panel.split_at_mut(bits.head_bytes());
    let mut group = [[0.0; LANES]; GROUP];
    let mut codes = [[0; LANES]; GROUP];
    let mut steps = [0.0; LANES];
    if bits == Bits::Four {
        for first in (0..inputs).step_by(GROUP) {
            gather(weights, first, &mut group);
            widest(&group, &mut steps);
        }
        for (step, head) in steps.iter_mut().zip(head.as_chunks_mut::<4>().0) {
            *step /= 15.0 * LARGEST_SCALE;
            // In subnormal units weights would lose their precision: such an output is as good as 0.
            if *step < f32::MIN_POSITIVE {
                *step = 0.0;
            }
            *head = step.to_le_bytes();
        }
    }
    for (b, block) in blocks.chunks_exact_mut(bits.block_bytes()).enumerate() {
        let (scales, block_codes) = block.split_at_mut(SCALE_BYTES);
        for (half, scales) in scales.chunks_exact_mut(SCALE_BYTES / 2).enumerate() {
            gather(weights, b * BLOCK + half * GROUP, &mut group);
            match bits {
                Bits::Eight => {
                    let (scales, _) = scales.as_chunks_mut();
                    eight(&group, scales, &mut codes);
                }
                Bits::Four => {
                    let (scales, zeros) = scales.split_at_mut(LANES);
                    four(&group, &steps, scales, zeros, &mut codes);
                }
            }
            for (k, codes) in codes.iter().enumerate() {
                for (column, code) in codes.iter().enumerate() {
                    let (byte, shift) = bits.code_at(column, half * GROUP + k);
                    block_codes[byte] |= code << shift;
                }
            }
        }
    }
}

/// Inputs `first ..` of all outputs.
fn gather(weights: &[f32], first: usize, group: &mut Group) {
    for (column, row) in weights.chunks_exact(weights.len() / PANEL).enumerate() {
        for (lanes, w) in group.iter_mut().zip(&row[first..first + GROUP]) {
            lanes[column] = *w;
        }
    }
}

for_each_isa! {
    /// bf16 scales, and codes around [`MIDDLE`].
    fn eight(group: &Group, scales: &mut [[u8; 2]], codes: &mut Codes) {
        // As integers, so that NaN counts as the largest.
        let mut largest = [0; LANES];
        for weights in group {
            for j in 0..LANES {
                largest[j] = largest[j].max(weights[j].to_bits() & 0x7fff_ffff);
            }
        }
        let mut wide = [0.0; LANES];
        for j in 0..LANES {
            let scale = bf16::from_f32(f32::from_bits(largest[j]) / 127.0);
            // Infinite weights have no code.
            let scale = if scale.is_finite() { scale } else { bf16::NAN };
            scales[j] = scale.to_le_bytes();
            wide[j] = scale.to_f32();
        }
        for (codes, weights) in codes.iter_mut().zip(group) {
            for j in 0..LANES {
                // The scale was rounded, so that the largest weight may lie a little above 127 of it. 0 / 0 is code 0.
                let level = (weights[j] / wide[j]).round_ties_even().clamp(-127.0, 127.0);
                codes[j] = (level as i32 + i32::from(MIDDLE)) as u8;
            }
        }
    }
}

/// The largest scale of a group of 4 bits; an output's widest group has about this.
const LARGEST_SCALE: f32 = 255.0;

for_each_isa! {
    /// Raises `ranges` to the range of each output's weights with 0; NaN if one is not finite or the range is not.
    fn widest(group: &Group, ranges: &mut Lanes) {
        let (low, high) = ends(group);
        let mut sum = [0.0; LANES];
        for weights in group {
            for j in 0..LANES {
                sum[j] += weights[j] * 0.0;
            }
        }
        for j in 0..LANES {
            let range = high[j] - low[j];
            let range = if range.is_finite() { range + sum[j] } else { f32::NAN };
            // Once NaN, always NaN.
            ranges[j] = if range <= ranges[j] { ranges[j] } else { range + ranges[j] * 0.0 };
        }
    }
}

/// The ends of each output's range, which holds 0.
#[inline(always)]
fn ends(group: &Group) -> (Lanes, Lanes) {
    let (mut low, mut high) = ([0.0; LANES], [0.0; LANES]);
    for weights in group {
        for j in 0..LANES {
            low[j] = if weights[j] < low[j] { weights[j] } else { low[j] };
            high[j] = if weights[j] > high[j] { weights[j] } else { high[j] };
        }
    }
    (low, high)
}

/// Scales to start from, as shares of the group's range over 15: the ends are worth clipping.
const STARTS: [f32; 8] = [0.72, 0.765, 0.81, 0.855, 0.9, 0.945, 0.99, 1.035];

/// Least-squares fits from each start.
const FITS: usize = 3;

for_each_isa! {
    /// Searches for the scale and zero point of the least squared error: from several scales, codes are rounded and scale
    /// and zero point fitted to the codes in turn.
    fn four(group: &Group, steps: &Lanes, scales: &mut [u8], zeros: &mut [u8], codes: &mut Codes) {
        let mut weights = [[0.0; LANES]; GROUP];
        let mut mean = [0.0; LANES];
        for (scaled, weights) in weights.iter_mut().zip(group) {
            for j in 0..LANES {
                scaled[j] = if steps[j] > 0.0 { weights[j] / steps[j] } else { 0.0 };
                mean[j] += scaled[j];
            }
        }
        let (low, high) = ends(&weights);
        let (mut best_scale, mut best_zero, mut least) = ([0.0; LANES], [0.0; LANES], [f32::INFINITY; LANES]);
        for start in STARTS {
            let (mut scale, mut zero) = ([0.0; LANES], [0.0; LANES]);
            for j in 0..LANES {
                scale[j] = whole((high[j] - low[j]) * (start / 15.0), 1.0);
                zero[j] = whole((7.5 - (low[j] + high[j]) * 0.5 / scale[j]) * 16.0, 0.0);
            }
            for _ in 0..=FITS {
                let (mut inverse, mut centre) = ([0.0; LANES], [0.0; LANES]);
                for j in 0..LANES {
                    inverse[j] = 1.0 / scale[j];
                    centre[j] = zero[j] * (1.0 / 16.0);
                }
                let (mut error, mut sum) = ([0.0; LANES], [0.0; LANES]);
                let (mut squares, mut products) = ([0.0; LANES], [0.0; LANES]);
                for weights in &weights {
                    for j in 0..LANES {
                        let code = code(weights[j], inverse[j], centre[j]);
                        let off = (code - centre[j]) * scale[j] - weights[j];
                        error[j] += off * off;
                        sum[j] += code;
                        squares[j] += code * code;
                        products[j] += code * weights[j];
                    }
                }
                for j in 0..LANES {
                    let better = error[j] < least[j];
                    least[j] = if better { error[j] } else { least[j] };
                    best_scale[j] = if better { scale[j] } else { best_scale[j] };
                    best_zero[j] = if better { zero[j] } else { best_zero[j] };
                    // Σ (code − mean code) (weight − mean weight) / Σ (code − mean code)²
                    let code_mean = sum[j] * (1.0 / GROUP as f32);
                    let variance = squares[j] - sum[j] * code_mean;
                    let fitted = (products[j] - mean[j] * code_mean) / variance;
                    scale[j] = if variance > 0.0 { whole(fitted, 1.0) } else { scale[j] };
                    let weight_mean = mean[j] * (1.0 / GROUP as f32);
                    zero[j] = whole((code_mean - weight_mean / scale[j]) * 16.0, 0.0);
                }
            }
        }
        for j in 0..LANES {
            let empty = low[j] == high[j];
            scales[j] = if empty { 0 } else { best_scale[j] as u8 };
            zeros[j] = if empty { 0 } else { best_zero[j] as u8 };
            least[j] = if empty { 0.0 } else { 1.0 / best_scale[j] };
        }
        for (codes, weights) in codes.iter_mut().zip(&weights) {
            for j in 0..LANES {
                codes[j] = code(weights[j], least[j], f32::from(zeros[j]) * (1.0 / 16.0)) as u8;
            }
        }
    }
}

/// The code of a weight: of 0 to 15 the nearest to `weight · inverse + centre`.
#[inline(always)]
fn code(weight: f32, inverse: f32, centre: f32) -> f32 {
    bounded((weight * inverse + centre).round_ties_even(), 0.0, 15.0)
}

/// A scale or zero point: a whole number from `least` to [`LARGEST_SCALE`].
#[inline(always)]
fn whole(value: f32, least: f32) -> f32 {
    bounded(value.round_ties_even(), least, LARGEST_SCALE)
}

/// One comparison and one choice each, which vectors have; `clamp` also has a check of its own.
#[inline(always)]
fn bounded(value: f32, least: f32, largest: f32) -> f32 {
    let value = if value > least { value } else { least };
    if value < largest { value } else { largest }
}
