//! Where the parts of a packed panel lie.

use crate::lanes::LANES;

/// Consecutive inputs that share a scale.
pub const GROUP: usize = 32;

/// Output columns of a panel.
pub(crate) const PANEL: usize = LANES;

/// Inputs of a block: two groups.
pub(super) const BLOCK: usize = 2 * GROUP;

/// Bytes of a block's scales, before its codes.
pub(super) const SCALE_BYTES: usize = 64;

/// Bytes of a chunk of codes.
pub(super) const CHUNK: usize = 64;

/// Consecutive inputs whose codes lie side by side.
pub(super) const QUAD: usize = 4;

/// Code of weight 0 at 8 bits.
pub(super) const MIDDLE: u8 = 128;

/// Width of a weight's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    /// 8 bits, and 16 for the scale of a group.
    Eight,
    /// 4 bits, and 16 for the scale and zero point of a group.
    Four,
}

impl Bits {
    /// Bytes of a panel before its first block.
    pub(super) const fn head_bytes(self) -> usize {
        match self {
            Self::Eight => 0,
            Self::Four => PANEL * size_of::<f32>(),
        }
    }

    /// Bytes of one block of a panel.
    pub(super) const fn block_bytes(self) -> usize {
        SCALE_BYTES
            + match self {
                Self::Eight => BLOCK * PANEL,
                Self::Four => BLOCK * PANEL / 2,
            }
    }

    /// Bytes of a panel.
    pub(super) const fn panel_bytes(self, inputs: usize) -> usize {
        self.head_bytes() + inputs.div_ceil(BLOCK) * self.block_bytes()
    }

    /// Bytes of a packed matrix; `None` if that is more than an address can hold.
    pub(crate) fn packed_bytes(self, outputs: usize, inputs: usize) -> Option<usize> {
        inputs
            .div_ceil(BLOCK)
            .checked_mul(self.block_bytes())?
            .checked_add(self.head_bytes())?
            .checked_mul(outputs.div_ceil(PANEL))
    }

    /// Where in a block's codes the code of input `k` (of the block) and output `column` (of the panel) lies: the byte,
    /// and how far to shift it right.
    #[inline(always)]
    pub(super) const fn code_at(self, column: usize, k: usize) -> (usize, u32) {
        let (quad, byte) = (k / QUAD, column * QUAD + k % QUAD);
        match self {
            Self::Eight => (quad * CHUNK + byte, 0),
            Self::Four => (quad / 2 * CHUNK + byte, 4 * (quad % 2) as u32),
        }
    }
}
