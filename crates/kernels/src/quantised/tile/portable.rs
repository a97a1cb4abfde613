//! The scalar twin: what the formulas say.

use std::array::from_fn;

use super::super::layout::{BLOCK, Bits, GROUP, MIDDLE, SCALE_BYTES};
use super::super::rows::RowGroup;
use crate::lanes::Lanes;
use crate::quantised::layout::PANEL;

/// See [`Kernel::accumulate`](super::Kernel::accumulate).
pub(super) fn accumulate(bits: Bits, blocks: &[u8], x: RowGroup<'_>, acc: &mut [Lanes]) {
    for (b, block) in blocks.chunks_exact(bits.block_bytes()).enumerate() {
        let (scales, codes) = block.split_at(SCALE_BYTES);
        for half in 0..BLOCK / GROUP {
            let k = half * GROUP;
            let weights: [[i32; GROUP]; PANEL] = from_fn(|column| from_fn(|i| weight(bits, codes, column, k + i)));
            let weight_scales: Lanes = from_fn(|column| scale(bits, scales, column, half));
            let zeros: Lanes = from_fn(|column| zero(bits, scales, column, half));
            for (row, acc) in acc.iter_mut().enumerate() {
                let x_codes = &x.codes[(b * x.rows + row) * BLOCK + k..][..GROUP];
                let at = (b * 2 + half) * x.rows + row;
                for (column, acc) in acc.iter_mut().enumerate() {
                    let dot: i32 = weights[column]
                        .iter()
                        .zip(x_codes)
                        .map(|(w, x)| w * i32::from(*x))
                        .sum();
                    if bits == Bits::Four {
                        *acc = (-zeros[column] * weight_scales[column]).mul_add(x.sums[at], *acc);
                    }
                    *acc = (dot as f32).mul_add(weight_scales[column] * x.scales[at], *acc);
                }
            }
        }
    }
}

/// A weight's code, around 0 at 8 bits.
#[inline(always)]
pub(in super::super) fn weight(bits: Bits, codes: &[u8], column: usize, k: usize) -> i32 {
    let (byte, shift) = bits.code_at(column, k);
    let code = codes[byte] >> shift;
    match bits {
        Bits::Eight => i32::from(code) - i32::from(MIDDLE),
        Bits::Four => i32::from(code & 15),
    }
}

/// The zero point of a group: the code, or the fraction between two, that stands for 0.
#[inline(always)]
pub(in super::super) fn zero(bits: Bits, scales: &[u8], column: usize, half: usize) -> f32 {
    match bits {
        Bits::Eight => 0.0,
        Bits::Four => f32::from(scales[half * 2 * PANEL + PANEL + column]) / 16.0,
    }
}

/// The scale of a group.
#[inline(always)]
pub(in super::super) fn scale(bits: Bits, scales: &[u8], column: usize, half: usize) -> f32 {
    match bits {
        Bits::Eight => {
            let at = 2 * (half * PANEL + column);
            f32::from_bits(u32::from(u16::from_le_bytes([scales[at], scales[at + 1]])) << 16)
        }
        Bits::Four => f32::from(scales[half * 2 * PANEL + column]),
    }
}
