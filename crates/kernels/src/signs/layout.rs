//! Where the sign of a weight lies: the layout that artifacts store and kernels read.
//!
//! Outputs are cut into panels of 16, inputs into groups of 32; what is missing at an end is filled up with codes of 0.
//! A panel holds its groups one after another, a group 16 words of 32 bits (little-endian), one an output. Bits
//! `4 n .. 4 n + 4` of a word are the code of inputs `4 n .. 4 n + 4` of the group:
//!
//! * bit 3: the first of the four weights is negative;
//! * bits 0, 1 and 2: the second, third and fourth weight differs in sign from the first.
//!
//! Codes that differ in bit 3 alone stand for opposite sums, so that a table of eight is enough where registers hold no
//! more.

use super::{GROUP, PANEL};

/// Weights of one code.
pub(super) const CODE: usize = 4;

/// Bytes of the words of one group in one panel.
pub(super) const GROUP_BYTES: usize = PANEL * GROUP / 8;

/// Bytes of the signs of an `[outputs, inputs]` matrix: an eighth a weight when they are multiples of 16 and 32; `None`
/// when the count overflows.
pub const fn code_bytes(inputs: usize, outputs: usize) -> Option<usize> {
    match inputs.div_ceil(GROUP).checked_mul(outputs.div_ceil(PANEL)) {
        Some(groups) => groups.checked_mul(GROUP_BYTES),
        None => None,
    }
}

/// The signs of an `[outputs, inputs]` matrix in the layout of this module; `negative` tells of an output and an input
/// whether their weight is.
///
/// # Panics
/// If the bytes are more than memory can have.
pub fn pack(inputs: usize, outputs: usize, negative: impl Fn(usize, usize) -> bool) -> Vec<u8> {
    let bytes = code_bytes(inputs, outputs).expect("the signs fit in memory");
    let mut packed = vec![0; bytes];
    let words = packed.as_chunks_mut::<4>().0.iter_mut().enumerate();
    for (i, word) in words {
        let (output, group) = place(i, inputs);
        if output < outputs {
            *word = pack_word(inputs, group, |input| negative(output, input)).to_le_bytes();
        }
    }
    packed
}

/// Output and group of word `i`.
fn place(i: usize, inputs: usize) -> (usize, usize) {
    let groups = inputs.div_ceil(GROUP);
    let (block, lane) = (i / PANEL, i % PANEL);
    (block / groups * PANEL + lane, block % groups)
}

fn pack_word(inputs: usize, group: usize, negative: impl Fn(usize) -> bool) -> u32 {
    let end = inputs.min((group + 1) * GROUP);
    let mut word = 0;
    for (n, first) in (group * GROUP..end).step_by(CODE).enumerate() {
        let sign = negative(first);
        let mut code = u32::from(sign) << 3;
        for input in first + 1..end.min(first + CODE) {
            code |= u32::from(negative(input) != sign) << (input - first - 1);
        }
        word |= code << (CODE * n);
    }
    word
}

/// The word of an output's group.
pub(super) fn word(codes: &[u8], inputs: usize, output: usize, group: usize) -> u32 {
    let block = output / PANEL * inputs.div_ceil(GROUP) + group;
    let at = block * GROUP_BYTES + output % PANEL * 4;
    u32::from_le_bytes([codes[at], codes[at + 1], codes[at + 2], codes[at + 3]])
}

/// Whether weight `i` of a word's group is negative.
pub(super) fn is_negative(word: u32, i: usize) -> bool {
    let code = word >> (i / CODE * CODE);
    let first = code >> 3 & 1;
    let differs = if i.is_multiple_of(CODE) {
        0
    } else {
        code >> (i % CODE - 1) & 1
    };
    first ^ differs == 1
}

/// Whether everything beyond the matrix is 0 in `codes`, as [`pack`] leaves it.
///
/// # Panics
/// If `codes` is not [`code_bytes`] long.
pub fn padding_is_zero(codes: &[u8], inputs: usize, outputs: usize) -> bool {
    assert_eq!(
        Some(codes.len()),
        code_bytes(inputs, outputs),
        "signs are 64 bytes for each 32 inputs of 16 outputs"
    );
    if inputs.is_multiple_of(GROUP) && outputs.is_multiple_of(PANEL) {
        return true;
    }
    codes.as_chunks::<4>().0.iter().enumerate().all(|(i, bytes)| {
        let (output, group) = place(i, inputs);
        let word = u32::from_le_bytes(*bytes);
        if output >= outputs {
            return word == 0;
        }
        // Packing the signs that count once more leaves no other bits.
        let partial = inputs < (group + 1) * GROUP;
        !partial || pack_word(inputs, group, |input| is_negative(word, input - group * GROUP)) == word
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_code_holds_the_first_sign_and_who_differs() {
        // Weights of output 1: − + − − in the second four inputs of the second group, + elsewhere.
        let negative = |output: usize, input: usize| output == 1 && [36, 38, 39].contains(&input);
        let packed = pack(64, 16, negative);
        let mut expected = vec![0; 2 * GROUP_BYTES];
        expected[GROUP_BYTES + 4] = 0b1001 << 4;
        assert_eq!(packed, expected);
    }

    #[test]
    fn shapes_that_are_whole_take_an_eighth_of_a_byte_a_weight() {
        assert_eq!(code_bytes(576, 1536), Some(576 * 1536 / 8));
        assert_eq!(code_bytes(1, 1), Some(64));
        assert_eq!(code_bytes(usize::MAX, usize::MAX), None);
    }

    proptest! {
        #[test]
        fn signs_of_any_shape_read_back(inputs in 1usize..140, outputs in 1usize..40, salt: u64) {
            let negative = |output: usize, input: usize| {
                (output * inputs + input) as u64 ^ salt.rotate_left((output + 3 * input) as u32 % 64)
            }.count_ones() % 2 == 1;
            let packed = pack(inputs, outputs, negative);
            prop_assert_eq!(Some(packed.len()), code_bytes(inputs, outputs));
            prop_assert!(padding_is_zero(&packed, inputs, outputs));
            for output in 0..outputs {
                for input in 0..inputs {
                    let word = word(&packed, inputs, output, input / GROUP);
                    prop_assert_eq!(is_negative(word, input % GROUP), negative(output, input));
                }
            }
        }

        #[test]
        fn a_bit_beyond_the_matrix_is_noticed(inputs in 1usize..80, outputs in 1usize..40, at: prop::sample::Index) {
            let mut packed = pack(inputs, outputs, |_, _| false);
            let bit = at.index(8 * packed.len());
            packed[bit / 8] |= 1 << (bit % 8);
            let (output, group) = place(bit / 32, inputs);
            let (n, position) = (bit % 32 / CODE, bit % CODE);
            let member = if position == 3 { 0 } else { position + 1 };
            let inside = output < outputs && group * GROUP + CODE * n + member < inputs;
            prop_assert_eq!(padding_is_zero(&packed, inputs, outputs), inside);
        }
    }
}
