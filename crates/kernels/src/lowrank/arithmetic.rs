//! The instructions that the integer kernels run on, and the choice among them.

use super::activations::{CHUNK, InputRow, coarse};
use super::coefficients::{BLOCK, Coefficients};
use super::factor::Factor;
use super::portable;
use super::tile::{Ahead, Tile};
#[cfg(target_arch = "x86_64")]
use super::{avx2, vnni, vnni_two};
use crate::isa::{self, Isa};
use crate::lowbit::GROUP;
use std::ops::Range;

/// Instructions with a version of every integer kernel. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arithmetic {
    /// Plain Rust: what the others are compared with.
    Portable,
    /// AVX2: products of bytes or words, summed in pairs.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 VNNI: products of bytes, summed in fours.
    #[cfg(target_arch = "x86_64")]
    Vnni,
}

/// Calls the version of an unsafe function for the width of a factor's codes.
#[cfg(target_arch = "x86_64")]
macro_rules! by_bits {
    ($factor:expr, $module:ident::$name:ident($($arg:expr),*)) => {
        match $factor.bits() {
            // SAFETY: an `Arithmetic` other than `Portable` exists only where its instructions do; the callers of this
            // macro have checked the lengths.
            8 => unsafe { $module::$name::<8>($($arg),*) },
            // SAFETY: as above.
            4 => unsafe { $module::$name::<4>($($arg),*) },
            // SAFETY: as above.
            3 => unsafe { $module::$name::<3>($($arg),*) },
            // SAFETY: as above.
            2 => unsafe { $module::$name::<2>($($arg),*) },
            bits => panic!("{bits} bits are no codes"),
        }
    };
}

impl Arithmetic {
    /// The best that [`isa::isa`] allows.
    pub(super) fn best() -> Self {
        match isa::isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if isa::vnni() => Self::Vnni,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx2 => Self::Avx2,
            _ => Self::Portable,
        }
    }

    /// Everything that [`isa::isa`] allows.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Self> {
        match Self::best() {
            #[cfg(target_arch = "x86_64")]
            Self::Vnni => vec![Self::Portable, Self::Avx2, Self::Vnni],
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => vec![Self::Portable, Self::Avx2],
            Self::Portable => vec![Self::Portable],
        }
    }

    /// `out[i] = V[ranks.start + i] · x` for rows of codes.
    ///
    /// # Panics
    /// If the rows hold f16, a rank is not of `v`, or `x` or `out` has another length.
    pub(super) fn dots(self, v: &Factor<'_>, ranks: Range<usize>, x: InputRow<'_>, out: &mut [f32]) {
        assert!(ranks.end <= v.ranks() && out.len() == ranks.len() && x.values.len() == v.groups());
        match self {
            Self::Portable => portable::dots(v, ranks, x, out),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => by_bits!(v, avx2::dots(v, ranks, x, out)),
            #[cfg(target_arch = "x86_64")]
            Self::Vnni => by_bits!(v, vnni::dots(v, ranks, x, out)),
        }
    }

    /// Fills `tile` with these ranks and groups of `u`, for [`Self::mix`].
    ///
    /// # Panics
    /// If the rows hold f16, `u` lacks a rank or group, or they are more than a tile holds.
    pub(super) fn fill(self, tile: &mut Tile, u: &Factor<'_>, ranks: Range<usize>, groups: Range<usize>) {
        assert!(ranks.end <= u.ranks() && groups.end <= u.groups());
        assert!(ranks.len() <= BLOCK && groups.len() <= CHUNK);
        match self {
            // Reads the rows themselves.
            Self::Portable => {}
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => by_bits!(u, avx2::fill(tile, u, ranks, groups)),
            #[cfg(target_arch = "x86_64")]
            Self::Vnni => by_bits!(u, vnni::fill(tile, u, ranks, groups)),
        }
    }

    /// Whether [`Self::mix`] needs a tile for `rows` rows.
    pub(super) fn needs_tile(self, u: &Factor<'_>, rows: usize) -> bool {
        match self {
            Self::Portable => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 if !coarse(u.bits()) => true,
            // A multiple of 1 KB brings the rows of a block to the same few sets of the first-level cache.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::Vnni => rows > 1 || u.stride().is_multiple_of(1024) || !u.len().is_multiple_of(GROUP),
        }
    }

    /// [`Self::mix`] for the coefficients' group `lane` and the one after it, if there is a faster way for both together:
    /// for codes that are [`coarse`], one row, and groups that are whole.
    ///
    /// # Panics
    /// As [`Self::mix`].
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(unused_variables, reason = "there is no faster way")
    )]
    pub(super) fn mix_two(
        self,
        u: &Factor<'_>,
        coefficients: &Coefficients,
        lane: usize,
        ahead: Ahead,
        y: &mut [f32],
    ) -> bool {
        #[cfg(target_arch = "x86_64")]
        if let (Self::Vnni, Ok(y)) = (self, y.try_into()) {
            let end = coefficients.first_group() + lane + 2;
            assert!(coefficients.ranks().end <= u.ranks() && end * GROUP <= u.len() && lane + 2 <= CHUNK);
            match u.bits() {
                // SAFETY: the instructions exist, and the ranks and groups are `u`'s.
                2 => unsafe { vnni_two::mix::<2>(u, coefficients, lane, ahead, y) },
                // SAFETY: as above.
                3 => unsafe { vnni_two::mix::<3>(u, coefficients, lane, ahead, y) },
                _ => return false,
            }
            return true;
        }
        false
    }

    /// `y += Σ coefficient · weight` over the coefficients' ranks, for the outputs of their group `lane`. `tile`, if
    /// needed, was filled with those ranks and groups of `u`; `y` is as long as the group. Rows that will be needed
    /// next are brought near.
    ///
    /// # Panics
    /// If the rows hold f16, the coefficients are of other ranks or groups than `u` has, a needed tile is missing, or
    /// `y` has another length.
    pub(super) fn mix(
        self,
        u: &Factor<'_>,
        tile: Option<&Tile>,
        coefficients: &Coefficients,
        lane: usize,
        ahead: Ahead,
        y: &mut [f32],
    ) {
        let group = coefficients.first_group() + lane;
        assert!(coefficients.ranks().end <= u.ranks() && group < u.groups() && lane < CHUNK);
        assert!(y.len() == u.group_len(group));
        match self {
            Self::Portable => portable::mix(u, coefficients, lane, y),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => by_bits!(u, avx2::mix(u, tile, coefficients, lane, ahead, y)),
            #[cfg(target_arch = "x86_64")]
            Self::Vnni => by_bits!(u, vnni::mix(u, tile, coefficients, lane, ahead, y)),
        }
    }
}
