//! A packed matrix of either kind: factors or signs. Its first byte tells which.

use std::sync::Arc;

use deltamux_model::MatrixDelta;

use super::layout::{self, Owner, PackedLinear};
use super::signs::{self, PackedSigns, SIGNS, sign_bytes};

/// The packed difference of one matrix, ready to be written.
#[derive(Debug, Clone, PartialEq)]
pub enum Packed {
    /// Quantised factors.
    Factors(PackedLinear),
    /// Signs and scales.
    Signs(PackedSigns),
}

impl Packed {
    /// Whether there is nothing to store: factors without a rank.
    pub fn is_empty(&self) -> bool {
        self.ranks() == Some(0)
    }

    /// Number of stored ranks; signs have none.
    pub fn ranks(&self) -> Option<usize> {
        match self {
            Self::Factors(factors) => Some(factors.ranks()),
            Self::Signs(_) => None,
        }
    }

    /// `[outputs, inputs]`.
    pub fn shape(&self) -> [usize; 2] {
        match self {
            Self::Factors(factors) => [factors.outputs, factors.inputs],
            Self::Signs(signs) => [signs.outputs, signs.inputs],
        }
    }

    /// The packed bytes.
    ///
    /// # Panics
    /// If a band of factors has more than 65,535 ranks.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Factors(factors) => factors.encode(),
            Self::Signs(signs) => signs.encode(),
        }
    }

    /// The inverse of [`Self::encode`] for an `[outputs, inputs]` matrix, with all checks; an error says what is wrong.
    pub fn parse(bytes: &[u8], inputs: usize, outputs: usize) -> Result<Self, String> {
        if bytes.first() == Some(&SIGNS) {
            return PackedSigns::parse(bytes, inputs, outputs).map(Self::Signs);
        }
        PackedLinear::parse(bytes, inputs, outputs).map(Self::Factors)
    }
}

/// Bytes of a packed `[outputs, inputs]` matrix that begins like `bytes`; `None` if nothing does or the count overflows.
pub fn packed_len(bytes: &[u8], inputs: usize, outputs: usize) -> Option<usize> {
    match bytes {
        [SIGNS, 0, ..] => sign_bytes(inputs, outputs, 1),
        [SIGNS, 1, ..] if outputs != 1 => sign_bytes(inputs, outputs, outputs),
        [SIGNS, ..] => None,
        _ => {
            let (coding, widths) = layout::read_widths(bytes).ok()?;
            layout::packed_bytes(inputs, outputs, coding, &widths)
        }
    }
}

/// The packed bytes of an `[outputs, inputs]` matrix as the kernels read them, with all checks; an error says what is
/// wrong.
pub fn decode(bytes: Vec<u8>, inputs: usize, outputs: usize) -> Result<MatrixDelta, String> {
    let len = bytes.len();
    decode_window(&(Arc::new(bytes) as Owner), 0, len, inputs, outputs)
}

/// The same for the window `start .. start + len` of `owner`, from which codes are not copied.
pub(crate) fn decode_window(
    owner: &Owner,
    start: usize,
    len: usize,
    inputs: usize,
    outputs: usize,
) -> Result<MatrixDelta, String> {
    if len > 0 && (**owner).as_ref()[start] == SIGNS {
        return signs::decode(owner, start, len, inputs, outputs).map(MatrixDelta::Signs);
    }
    layout::decode(owner, start, len, inputs, outputs).map(MatrixDelta::LowRank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the fuzz target `packed` asserts, too.
    fn check(bytes: &[u8], inputs: usize, outputs: usize) -> Result<bool, TestCaseError> {
        let decoded = decode(bytes.to_vec(), inputs, outputs);
        let parsed = Packed::parse(bytes, inputs, outputs);
        prop_assert_eq!(decoded.as_ref().err(), parsed.as_ref().err());
        let (Ok(delta), Ok(parsed)) = (decoded, parsed) else {
            return Ok(false);
        };
        prop_assert_eq!(parsed.encode(), bytes);
        prop_assert_eq!(parsed.shape(), [outputs, inputs]);
        prop_assert_eq!(packed_len(bytes, inputs, outputs), Some(bytes.len()));
        let dense = delta.to_dense();
        prop_assert_eq!(dense.len(), inputs * outputs);
        // Products of finite factors may be too large for f32.
        prop_assert!(matches!(delta, MatrixDelta::LowRank(_)) || dense.iter().all(|x| x.is_finite()));
        Ok(true)
    }

    proptest! {
        /// Bytes of any content are refused alike by both readers, or are what writing them again gives.
        #[test]
        fn any_bytes(
            coding in 0..4u8,
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            (inputs, outputs) in (1..40usize, 1..40usize),
        ) {
            check(&bytes, inputs, outputs)?;
            check(&[&[coding], &bytes[..]].concat(), inputs, outputs)?;
        }

        /// The same for factors that may be good, with as many bytes as they ask for.
        #[test]
        fn factors_behind_a_head_that_fits(
            coding in 0..2u8,
            counts in prop::collection::vec(0..3u16, 5),
            other in prop::collection::vec(0..3u16, 5),
            fill: u8,
            same: bool,
            (inputs, outputs) in (1..40usize, 1..40usize),
        ) {
            let mut made = vec![coding];
            let second = if same { &counts } else { &other };
            made.extend(counts.iter().chain(second).flat_map(|count| count.to_le_bytes()));
            made.extend([0; 4]);
            if let Some(len) = packed_len(&made, inputs, outputs) {
                // Without a bit that a fill could set beyond the last zero point.
                for fill in [fill, 0] {
                    made.truncate(layout::FIXED_BYTES);
                    made.resize(len, fill);
                    let good = check(&made, inputs, outputs)?;
                    prop_assert!(good || fill != 0);
                }
            }
        }

        #[test]
        fn signs_round_trip(inputs in 1..80usize, outputs in 1..40usize, each: bool, salt: u64) {
            let made = Packed::Signs(PackedSigns {
                inputs,
                outputs,
                scales: vec![0.25; if each { outputs } else { 1 }],
                codes: deltamux_kernels::signs::pack(inputs, outputs, |o, i| salt.rotate_left((7 * o + i) as u32) & 1 == 1),
            });
            let bytes = made.encode();
            prop_assert!(check(&bytes, inputs, outputs)?);
            prop_assert_eq!(Packed::parse(&bytes, inputs, outputs), Ok(made));
            // Another length, another kind of scales or a scale that is no number is refused by both.
            prop_assert!(!check(&bytes[..bytes.len() - 1], inputs, outputs)?);
            let mut other = bytes.clone();
            other[1] = 2;
            prop_assert!(!check(&other, inputs, outputs)?);
            other = bytes;
            other[2..6].copy_from_slice(&f32::NAN.to_le_bytes());
            prop_assert!(!check(&other, inputs, outputs)?);
        }
    }
}
