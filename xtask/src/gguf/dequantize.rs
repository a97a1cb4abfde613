//! The tensor types and their exact values.

use half::f16;

/// Weights that share one scale in the quantised types.
pub const BLOCK: usize = 32;

/// How a tensor's elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorType {
    /// Little-endian `f32`.
    F32,
    /// Blocks of 32: an f16 scale `d`, an f16 minimum `m`, 16 bytes of 4-bit codes. Weight `j` is `d·code + m`; byte
    /// `i` holds the code of weight `i` in its low nibble and of weight `i + 16` in its high nibble.
    Q4_1,
    /// Blocks of 32: an f16 scale, 32 signed bytes. A weight is their product.
    Q8_0,
}

impl TensorType {
    /// The type that a number in the file stands for; `None` for those that this reader does not know.
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::F32),
            3 => Some(Self::Q4_1),
            8 => Some(Self::Q8_0),
            _ => None,
        }
    }

    /// Elements and bytes of one block.
    pub fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::Q4_1 => (BLOCK, 2 + 2 + BLOCK / 2),
            Self::Q8_0 => (BLOCK, 2 + BLOCK),
        }
    }

    /// The values of whole blocks; bytes after the last whole block are ignored.
    pub fn dequantize(self, bytes: &[u8]) -> Vec<f32> {
        let (elements, size) = self.block();
        let mut out = Vec::with_capacity(bytes.len() / size * elements);
        for block in bytes.chunks_exact(size) {
            match self {
                Self::F32 => out.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
                Self::Q4_1 => {
                    let (scale, min) = (half_at(block, 0), half_at(block, 2));
                    // Product and sum are rounded separately, as the reference does: no fused multiply-add.
                    out.extend(block[4..].iter().map(|code| scale * f32::from(code & 0xf) + min));
                    out.extend(block[4..].iter().map(|code| scale * f32::from(code >> 4) + min));
                }
                Self::Q8_0 => {
                    let scale = half_at(block, 0);
                    out.extend(block[2..].iter().map(|&code| scale * f32::from(code as i8)));
                }
            }
        }
        out
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q4_1_low_nibbles_come_before_high_nibbles() {
        let mut block = Vec::new();
        block.extend(f16::from_f32(0.5).to_le_bytes());
        block.extend(f16::from_f32(-2.0).to_le_bytes());
        block.extend((0..16u8).map(|i| i | (15 - i) << 4));
        let values = TensorType::Q4_1.dequantize(&block);
        let expected: Vec<f32> = (0..16)
            .chain((0..16).rev())
            .map(|code| 0.5 * code as f32 - 2.0)
            .collect();
        assert_eq!(values, expected);
    }

    #[test]
    fn q8_0_codes_are_signed() {
        let mut block = f16::from_f32(0.25).to_le_bytes().to_vec();
        block.extend((0..32).map(|i| (i as i8 - 16) as u8));
        let values = TensorType::Q8_0.dequantize(&block);
        assert_eq!(values[0], -4.0);
        assert_eq!(values[31], 3.75);
    }

    #[test]
    fn a_partial_block_is_ignored() {
        assert_eq!(TensorType::Q8_0.dequantize(&[0; 33]), Vec::<f32>::new());
        assert_eq!(TensorType::F32.dequantize(&[0, 0, 128, 63, 1]), [1.0]);
    }
}
