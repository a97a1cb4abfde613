//! The packed bytes of a difference of signs: self-describing, as the kernels read them.
//!
//! ```text
//! u8        2: signs (0 and 1 are the codings of factors)
//! u8        0: one scale for the matrix; 1: one for each output
//! f32 × n   scales (little-endian)
//! codes     as `deltamux_kernels::signs` lays them out, all beyond the matrix 0
//! ```

use std::sync::Arc;

use deltamux_kernels::signs::{code_bytes, padding_is_zero};
use deltamux_kernels::{Bytes, SignDelta};

use super::layout::Owner;

/// First byte of packed signs.
pub(crate) const SIGNS: u8 = 2;

/// Bytes before the scales.
const FIXED_BYTES: usize = 2;

/// The signs and scales of one matrix, ready to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedSigns {
    /// Length of an input row.
    pub inputs: usize,
    /// Length of an output row.
    pub outputs: usize,
    /// One scale for the matrix, or one for each output.
    pub scales: Vec<f32>,
    /// Signs in the kernels' layout.
    pub codes: Vec<u8>,
}

/// Bytes of packed signs with this number of scales; `None` when the count overflows.
pub fn sign_bytes(inputs: usize, outputs: usize, scales: usize) -> Option<usize> {
    code_bytes(inputs, outputs)?
        .checked_add(scales.checked_mul(4)?)?
        .checked_add(FIXED_BYTES)
}

impl PackedSigns {
    /// The packed bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![SIGNS, u8::from(self.scales.len() != 1)];
        out.extend(self.scales.iter().flat_map(|scale| scale.to_le_bytes()));
        out.extend_from_slice(&self.codes);
        out
    }

    /// The inverse of [`Self::encode`] for an `[outputs, inputs]` matrix, with all checks.
    pub fn parse(bytes: &[u8], inputs: usize, outputs: usize) -> Result<Self, String> {
        let (scales, codes) = split(bytes, inputs, outputs)?;
        Ok(Self {
            inputs,
            outputs,
            scales,
            codes: codes.to_vec(),
        })
    }

    /// The difference as the kernels read it.
    pub fn to_delta(&self) -> SignDelta {
        SignDelta {
            inputs: self.inputs,
            outputs: self.outputs,
            scales: self.scales.clone(),
            codes: Bytes::from(self.codes.clone()),
        }
    }
}

/// Refuses bytes that are not the signs of an `[outputs, inputs]` matrix.
pub(crate) fn check(bytes: &[u8], inputs: usize, outputs: usize) -> Result<(), String> {
    split(bytes, inputs, outputs).map(|_| ())
}

/// Scales and codes, checked.
fn split(bytes: &[u8], inputs: usize, outputs: usize) -> Result<(Vec<f32>, &[u8]), String> {
    let scales = match bytes {
        [SIGNS, 0, ..] => 1,
        // One output has one scale: there is one form of every matrix.
        [SIGNS, 1, ..] if outputs != 1 => outputs,
        [SIGNS, other, ..] => {
            return Err(format!(
                "signs with scales of kind {other}; expected 0 (one) or 1 (one for each of several outputs)"
            ));
        }
        [SIGNS] => return Err("1 byte, but packed signs have at least 6".to_string()),
        [other, ..] => return Err(format!("coding {other}; expected {SIGNS} (signs)")),
        [] => return Err("0 bytes, but packed signs have at least 6".to_string()),
    };
    let expected = sign_bytes(inputs, outputs, scales)
        .ok_or_else(|| format!("impossible shape [{outputs}, {inputs}] for signs"))?;
    if bytes.len() != expected {
        return Err(format!(
            "{} bytes, but signs of the shape [{outputs}, {inputs}] and their scales ({scales}) take {expected}",
            bytes.len()
        ));
    }
    let (head, codes) = bytes.split_at(FIXED_BYTES + 4 * scales);
    let scales: Vec<f32> = head[FIXED_BYTES..]
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    if !scales.iter().all(|scale| scale.is_finite()) {
        return Err("a scale is not finite".to_string());
    }
    if !padding_is_zero(codes, inputs, outputs) {
        return Err(format!("signs beyond the shape [{outputs}, {inputs}] are not zero"));
    }
    Ok((scales, codes))
}

/// Reads the window `start .. start + len` of `owner` as the packed signs of an `[outputs, inputs]` matrix.
pub(crate) fn decode(
    owner: &Owner,
    start: usize,
    len: usize,
    inputs: usize,
    outputs: usize,
) -> Result<SignDelta, String> {
    let (scales, codes) = split(&(**owner).as_ref()[start..start + len], inputs, outputs)?;
    let at = start + len - codes.len();
    Ok(SignDelta {
        inputs,
        outputs,
        codes: Bytes::window(Arc::clone(owner), at, codes.len()),
        scales,
    })
}
