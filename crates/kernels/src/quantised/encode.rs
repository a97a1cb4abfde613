//! From weights to codes.

use super::layout::{BLOCK, Bits, GROUP, MIDDLE, SCALE_BYTES};
use crate::isa::for_each_isa;
use crate::lanes::{self, LANES};
use crate::quantised::layout::PANEL;

/// Writes one output's weights, padded with zeros to whole blocks, to column `column` of a zeroed panel.
pub(super) fn encode(bits: Bits, weights: &[f32], column: usize, panel: &mut [u8]) {
    let (head, blocks) = panel.split_at_mut(bits.head_bytes());
    let blocks = blocks.chunks_exact_mut(bits.block_bytes());
    let groups = weights.as_chunks::<GROUP>().0;
    match bits {
        Bits::Eight => {
            for (block, groups) in blocks.zip(groups.chunks_exact(BLOCK / GROUP)) {
                let (scales, codes) = block.split_at_mut(SCALE_BYTES);
                for (half, group) in groups.iter().enumerate() {
                    let (scale, group) = eight(group);
                    scales[2 * (half * PANEL + column)..][..2].copy_from_slice(&scale.to_le_bytes());
                    write(bits, &group, half, column, codes);
                }
            }
        }
        Bits::Four => {
            let step = four_step(groups);
            head[column * 4..][..4].copy_from_slice(&step.to_le_bytes());
            for (block, groups) in blocks.zip(groups.chunks_exact(BLOCK / GROUP)) {
                let (scales, codes) = block.split_at_mut(SCALE_BYTES);
                for (half, group) in groups.iter().enumerate() {
                    let mut best = Four::NOTHING;
                    four(group, step, &mut best);
                    scales[half * 2 * PANEL + column] = best.scale;
                    scales[half * 2 * PANEL + PANEL + column] = best.zero;
                    write(bits, &best.codes, half, column, codes);
                }
            }
        }
    }
}

/// Puts a group's codes where they belong in a block.
fn write(bits: Bits, group: &[u8; GROUP], half: usize, column: usize, codes: &mut [u8]) {
    for (k, code) in group.iter().enumerate() {
        let (byte, shift) = bits.code_at(column, half * GROUP + k);
        codes[byte] |= code << shift;
    }
}

/// The largest magnitude of a group; NaN or infinity if there is one.
fn largest(group: &[f32; GROUP]) -> f32 {
    let bits = group
        .iter()
        .map(|w| w.to_bits() & 0x7fff_ffff)
        .max()
        .unwrap_or_default();
    f32::from_bits(bits)
}

/// The bits of a bf16 scale, and codes around [`MIDDLE`].
fn eight(group: &[f32; GROUP]) -> (u16, [u8; GROUP]) {
    let largest = largest(group);
    let scale = half::bf16::from_f32(if largest.is_finite() { largest / 127.0 } else { f32::NAN });
    if scale.is_nan() || scale.to_f32() == 0.0 {
        return (scale.to_bits(), [MIDDLE; GROUP]);
    }
    let mut codes = [0; GROUP];
    eight_codes(group, scale.to_f32(), &mut codes);
    (scale.to_bits(), codes)
}

for_each_isa! {
    fn eight_codes(group: &[f32; GROUP], scale: f32, codes: &mut [u8; GROUP]) {
        for (code, w) in codes.iter_mut().zip(group) {
            // The scale was rounded, so that the largest weight may lie a little above 127 of it.
            let level = (w / scale).round_ties_even().clamp(-127.0, 127.0) as i32;
            *code = (level + i32::from(MIDDLE)) as u8;
        }
    }
}

/// What a scale of 1 stands for: the widest group has about 255. NaN if a weight is not finite.
fn four_step(groups: &[[f32; GROUP]]) -> f32 {
    let mut widest = 0.0f32;
    for group in groups {
        let (low, high) = ends(group);
        if !largest(group).is_finite() || !(high - low).is_finite() {
            return f32::NAN;
        }
        widest = widest.max(high - low);
    }
    let step = widest / (15.0 * 255.0);
    // In subnormal units weights would lose their precision: such an output is as good as 0.
    if step < f32::MIN_POSITIVE { 0.0 } else { step }
}

/// The ends of a group's range, which holds 0.
fn ends(group: &[f32; GROUP]) -> (f32, f32) {
    group
        .iter()
        .fold((0.0f32, 0.0f32), |(low, high), w| (low.min(*w), high.max(*w)))
}

/// A group in 4 bits.
struct Four {
    scale: u8,
    zero: u8,
    codes: [u8; GROUP],
    error: f32,
}

impl Four {
    const NOTHING: Self = Self {
        scale: 0,
        zero: 0,
        codes: [0; GROUP],
        error: f32::INFINITY,
    };
}

/// Scales to start from, as shares of the group's range over 15: the ends are worth clipping.
const STARTS: [f32; 8] = [0.72, 0.765, 0.81, 0.855, 0.9, 0.945, 0.99, 1.035];

/// Least-squares fits from each start.
const FITS: usize = 3;

for_each_isa! {
    /// Searches for the scale, zero point and codes of the least squared error: from several scales, codes are rounded
    /// and scale and zero point fitted to the codes in turn.
    fn four(group: &[f32; GROUP], step: f32, best: &mut Four) {
        let (low, high) = ends(group);
        // Also if the step is NaN.
        if low == high || step.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
            return;
        }
        let mut weights = [0.0; GROUP];
        for (scaled, w) in weights.iter_mut().zip(group) {
            *scaled = w / step;
        }
        let (low, high) = (low / step, high / step);
        let mean = sum(&weights) / GROUP as f32;
        for start in STARTS {
            let mut scale = ((high - low) / 15.0 * start).round_ties_even().clamp(1.0, 255.0);
            let mut zero = zero_point(7.5, (low + high) / 2.0, scale);
            for _ in 0..=FITS {
                let inverse = 1.0 / scale;
                let mut codes = [0.0; GROUP];
                let mut errors = [0.0; GROUP];
                for k in 0..GROUP {
                    let code = (weights[k] * inverse + zero / 16.0).round_ties_even();
                    codes[k] = code.clamp(0.0, 15.0);
                    let error = (codes[k] - zero / 16.0) * scale - weights[k];
                    errors[k] = error * error;
                }
                let error = sum(&errors);
                if error < best.error {
                    *best = Four { scale: scale as u8, zero: zero as u8, codes: codes.map(|c| c as u8), error };
                }
                let code_mean = sum(&codes) / GROUP as f32;
                let (mut squares, mut products) = ([0.0; GROUP], [0.0; GROUP]);
                for k in 0..GROUP {
                    let centred = codes[k] - code_mean;
                    squares[k] = centred * centred;
                    products[k] = centred * weights[k];
                }
                let squares = sum(&squares);
                if squares == 0.0 {
                    break;
                }
                scale = (sum(&products) / squares).round_ties_even().clamp(1.0, 255.0);
                zero = zero_point(code_mean, mean, scale);
            }
        }
    }
}

/// The zero point, in sixteenths of a code, with which `code` stands for `weight`.
#[inline(always)]
fn zero_point(code: f32, weight: f32, scale: f32) -> f32 {
    ((code - weight / scale) * 16.0).round_ties_even().clamp(0.0, 255.0)
}

#[inline(always)]
fn sum(values: &[f32; GROUP]) -> f32 {
    let mut half = [0.0; LANES];
    for j in 0..LANES {
        half[j] = values[j] + values[j + LANES];
    }
    lanes::sum(&half)
}
