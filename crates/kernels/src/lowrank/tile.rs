//! A tile of U: a block of ranks by a chunk of groups, with the packed bytes of neighbouring ranks side by side.
//!
//! The bytes of one output's ranks must meet in one lane. Bringing them there while they are packed costs a quarter or
//! less of doing it to codes, once for all rows; and a tile is read from one place, whereas the rows of Uᵀ lie a stride
//! apart that may be a power of two and fall on the same few sets of a cache.

use super::activations::CHUNK;
use super::coefficients::BLOCK;
use crate::lowbit::GROUP;
use std::ops::Range;

/// Bytes of the widest group in a block of ranks.
const GROUP_BYTES: usize = BLOCK * GROUP;

/// Packed bytes of a block of ranks for a chunk of groups.
#[repr(align(64))]
pub(super) struct Tile {
    bytes: [u8; CHUNK * GROUP_BYTES],
}

impl Tile {
    pub(super) const ZERO: Self = Self {
        bytes: [0; CHUNK * GROUP_BYTES],
    };

    /// Where the bytes of a group of codes of `BITS` bits begin.
    #[inline(always)]
    pub(super) fn group<const BITS: usize>(&self, lane: usize) -> *const u8 {
        self.bytes[lane * (GROUP_BYTES / 8 * BITS)..].as_ptr()
    }

    /// The same, to be written.
    #[inline(always)]
    pub(super) fn group_mut<const BITS: usize>(&mut self, lane: usize) -> *mut u8 {
        self.bytes[lane * (GROUP_BYTES / 8 * BITS)..].as_mut_ptr()
    }
}

/// Rows that will be read soon, wherever they may be: a group of outputs in a rank and in those after it.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    codes: *const u8,
    scales: *const f32,
    zeros: *const u16,
    stride: usize,
    groups: usize,
}

impl Ahead {
    /// `codes`, `scales` and `zeros` are those of a group in the first row; from a row to the next it is `stride` bytes
    /// of codes and `groups` scales and zero points.
    pub(super) fn new(codes: *const u8, scales: *const f32, zeros: *const u16, stride: usize, groups: usize) -> Self {
        Self {
            codes,
            scales,
            zeros,
            stride,
            groups,
        }
    }

    /// The same rows, their codes this many bytes further on.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn after(self, bytes: usize) -> Self {
        Self {
            codes: self.codes.wrapping_add(bytes),
            ..self
        }
    }

    /// Has the codes brought near in these of the rows.
    #[inline(always)]
    pub(super) fn codes(self, rows: Range<usize>) {
        for row in rows {
            prefetch(self.codes.wrapping_add(row * self.stride));
        }
    }

    /// Has the scales and zero points brought near in one of the rows.
    #[inline(always)]
    pub(super) fn scales(self, row: usize) {
        prefetch(self.scales.wrapping_add(row * self.groups).cast());
        prefetch(self.zeros.wrapping_add(row * self.groups).cast());
    }
}

/// Has one cache line brought near: to the second-level cache, as a block is more than the first can spare.
#[inline(always)]
pub(super) fn prefetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: it reads nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
