//! The arithmetic: some blocks of one panel times the rows of one group.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;
#[cfg(target_arch = "x86_64")]
mod vnni;

pub(super) use portable::{scale, weight, zero};

use super::layout::{BLOCK, Bits, GROUP};
use super::rows::{ROW_GROUP, RowGroup};
use crate::isa::{Isa, isa, vnni};
use crate::lanes::Lanes;

/// Implementations of [`Kernel::accumulate`]; all give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    /// The scalar twin of the others.
    Portable,
    /// Products of bytes or 16-bit integers in pairs.
    Avx2,
    /// Dot products of four bytes.
    Vnni,
}

impl Kernel {
    /// The fastest of this machine.
    #[inline]
    pub(super) fn best() -> Self {
        match isa() {
            _ if vnni() => Self::Vnni,
            Isa::Avx2 | Isa::Avx512 => Self::Avx2,
            Isa::Portable => Self::Portable,
        }
    }

    /// Rows that it computes together.
    pub(super) fn rows(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::TILE,
            _ => ROW_GROUP,
        }
    }

    /// Whether it reads the wide copy of 8-bit activations.
    pub(super) fn reads_wide(self) -> bool {
        self == Self::Avx2
    }

    /// Adds to each row's accumulators, one for each column of the panel, the groups of `blocks`, in order: at 4 bits
    /// first `−weight scale · zero · sum of activations`, then, always, the exact integer dot product of the codes times
    /// `weight scale · activation scale`, each by one fused multiply-add.
    ///
    /// Brings the bytes of `ahead` to the cache meanwhile.
    ///
    /// # Panics
    /// If `blocks` is not a number of whole blocks or `x` has fewer.
    pub(super) fn accumulate(self, bits: Bits, blocks: &[u8], x: RowGroup<'_>, acc: &mut [Lanes], ahead: &[u8]) {
        let count = blocks.len() / bits.block_bytes();
        assert!(blocks.len() == count * bits.block_bytes());
        assert!(acc.len() == x.rows && (1..=ROW_GROUP).contains(&x.rows));
        assert!(x.codes.len() >= count * BLOCK * x.rows);
        assert!(x.scales.len() >= count * (BLOCK / GROUP) * x.rows);
        assert!(x.sums.len() >= count * (BLOCK / GROUP) * x.rows);
        assert!(x.biases.len() >= count * (BLOCK / GROUP) * x.rows);
        match self {
            Self::Portable => portable::accumulate(bits, blocks, x, acc),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                assert!(matches!(isa(), Isa::Avx2 | Isa::Avx512) && x.wide.len() >= count * BLOCK * x.rows);
                // SAFETY: the machine has AVX2 and FMA, and the lengths are those that the function asks for.
                unsafe { avx2::accumulate(bits, blocks, x, acc, ahead) }
            }
            #[cfg(target_arch = "x86_64")]
            Self::Vnni => {
                assert!(vnni());
                // SAFETY: the machine has the instructions, and the lengths are those that the function asks for.
                unsafe { vnni::accumulate(bits, blocks, x, acc, ahead) }
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Vnni => unreachable!("kernels of x86-64"),
        }
    }
}

/// Bytes to bring to the cache, so many lines with each block.
#[cfg(target_arch = "x86_64")]
struct Ahead {
    next: *const u8,
    lines: usize,
}

#[cfg(target_arch = "x86_64")]
impl Ahead {
    #[inline(always)]
    fn new(bytes: &[u8], blocks: usize) -> Self {
        Self {
            next: bytes.as_ptr(),
            lines: bytes.len().div_ceil(64 * blocks.max(1)),
        }
    }

    #[inline(always)]
    fn fetch(&mut self) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for _ in 0..self.lines {
            // SAFETY: a hint, which reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.next.cast()) };
            self.next = self.next.wrapping_add(64);
        }
    }
}
