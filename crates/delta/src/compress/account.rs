//! Byte accounting: what one rank costs, what a linear costs beside its ranks, what a budget is.

use deltamux_kernels::lowbit::{groups, row_bytes};

use crate::artifact::{Coding, header_entry_bytes};

/// A rank is stored at one of these widths (0: dropped), in this order everywhere.
pub(crate) const CHOICES: [u8; 5] = [0, 2, 3, 4, 8];

/// Header digits are reserved for offsets below this many bytes.
pub(crate) const LARGEST_OFFSET: usize = 99_999_999_999;

/// Bits that one rank of an `[outputs, inputs]` matrix takes at `bits`: codes, one f16 scale and one zero point a
/// group for V and for U, and the f16 singular value.
pub(crate) fn rank_bits(inputs: usize, outputs: usize, bits: u8) -> u64 {
    rank_bits_apart(Coding::Affine, inputs, outputs, (bits, bits))
}

/// The same with rows of these bits of V and of U, in a coding; 0 bits store nothing.
pub(crate) fn rank_bits_apart(coding: Coding, inputs: usize, outputs: usize, (v_bits, u_bits): (u8, u8)) -> u64 {
    if v_bits == 0 {
        return 0;
    }
    let row = |len: usize, bits: u8| 8 * row_bytes(len, bits) as u64 + groups(len) as u64 * coding.group_bits(bits);
    16 + row(inputs, v_bits) + row(outputs, u_bits)
}

/// Bits that a linear takes beside its ranks, at most: its header entry, its fixed fields, and the fractions of bytes
/// lost where each band's zero points end.
pub(crate) fn overhead_bits(name: &str, budget_bytes: usize) -> u64 {
    let fixed = crate::artifact::FIXED_BYTES;
    let padding = 2 * (CHOICES.len() - 1);
    8 * (header_entry_bytes(name, budget_bytes, LARGEST_OFFSET) + fixed + padding) as u64
}

/// Bits that a matrix of this shape may take at `ratio` of its bf16 bytes.
pub(crate) fn budget_bits(inputs: usize, outputs: usize, ratio: f64) -> u64 {
    (inputs as f64 * outputs as f64 * 16.0 * ratio).floor() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::{Widths, packed_bytes};

    #[test]
    fn costs_bound_the_stored_bytes_within_a_few_bytes() {
        for (inputs, outputs) in [(256, 512), (576, 1536), (100, 37), (129, 1)] {
            let widths = [(8, 3), (4, 5), (3, 7), (2, 11)];
            let bits: u64 = widths
                .iter()
                .map(|&(b, n)| n as u64 * rank_bits(inputs, outputs, b))
                .sum();
            let stored = packed_bytes(inputs, outputs, Coding::Affine, &Widths::equal(&widths)).unwrap() as u64;
            let bound = (bits + overhead_bits("x", 1000)).div_ceil(8);
            assert!(stored < bound && bound - stored < 110, "{stored} {bound}");

            let apart = [(8, 8, 3), (4, 8, 2), (3, 4, 7), (2, 3, 5), (2, 2, 9)];
            let bits: u64 = apart
                .iter()
                .map(|&(v, u, n)| n * rank_bits_apart(Coding::Symmetric, inputs, outputs, (v, u)))
                .sum();
            let widths = Widths {
                v: vec![(8, 3), (4, 2), (3, 7), (2, 14)],
                u: vec![(8, 5), (4, 7), (3, 5), (2, 9)],
            };
            let stored = packed_bytes(inputs, outputs, Coding::Symmetric, &widths).unwrap() as u64;
            let bound = (bits + overhead_bits("x", 1000)).div_ceil(8);
            assert!(stored < bound && bound - stored < 110, "{stored} {bound}");
        }
    }

    #[test]
    fn a_dropped_rank_is_free() {
        assert_eq!(rank_bits(576, 576, 0), 0);
    }
}
