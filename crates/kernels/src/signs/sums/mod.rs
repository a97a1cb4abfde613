//! The sums of looked-up values, and the choice of the instructions that find them.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use super::PANEL;
use super::layout::GROUP_BYTES;
use super::tables::{TABLES, Table};
use crate::isa::{self, Isa};

/// Rows whose look-ups share the codes that were read.
pub(super) const ROWS: usize = 4;

/// Panels whose look-ups share the tables that were read.
pub(super) const PANELS: usize = 4;

/// Sums of one panel's outputs for one row.
pub(super) type Sums = [f32; PANEL];

/// Instructions with a version of the look-up. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LookUp {
    /// Plain Rust: what the others are compared with.
    Portable,
    /// AVX2: tables of eight, and the sum's sign by itself.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512: tables of sixteen, one a register.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl LookUp {
    /// The best that [`isa::isa`] allows.
    pub(super) fn best() -> Self {
        match isa::isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Self::Avx512,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Self::Avx2,
            _ => Self::Portable,
        }
    }

    /// Everything that [`isa::isa`] allows.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Self> {
        match Self::best() {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => vec![Self::Portable, Self::Avx2, Self::Avx512],
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => vec![Self::Portable, Self::Avx2],
            Self::Portable => vec![Self::Portable],
        }
    }

    /// Adds to the sums of `rows` rows what the codes of some panels find. `codes` are the panels' from the first group
    /// on, `stride` bytes from one panel to the next; `tables` are `[groups, TABLES, rows]`, `sums` `[panels, rows]`.
    ///
    /// # Panics
    /// If there are more than [`ROWS`] rows or none, or a slice is too short or no multiple of what it holds.
    pub(super) fn add(self, codes: &[u8], stride: usize, tables: &[Table], rows: usize, sums: &mut [Sums]) {
        match rows {
            1 => self.add_rows::<1>(codes, stride, tables, sums),
            2 => self.add_rows::<2>(codes, stride, tables, sums),
            3 => self.add_rows::<3>(codes, stride, tables, sums),
            4 => self.add_rows::<4>(codes, stride, tables, sums),
            rows => panic!("{rows} rows; look-ups are for 1 to {ROWS}"),
        }
    }

    fn add_rows<const R: usize>(self, codes: &[u8], stride: usize, tables: &[Table], sums: &mut [Sums]) {
        let (tables, rest) = tables.as_chunks::<R>();
        assert!(
            rest.is_empty() && tables.len().is_multiple_of(TABLES),
            "tables are [groups, TABLES, rows]"
        );
        let (sums, rest) = sums.as_chunks_mut::<R>();
        assert!(rest.is_empty(), "sums are [panels, rows]");
        let groups = tables.len() / TABLES;
        let (quads, single) = sums.as_chunks_mut::<PANELS>();
        let mut at = 0;
        let mut next = |panels: usize| {
            let from = &codes[at..];
            at += panels * stride;
            assert!(
                from.len() >= (panels - 1) * stride + groups * GROUP_BYTES,
                "every panel has a word for each group and output"
            );
            from
        };
        for sums in quads {
            let codes = next(PANELS);
            self.add_panels(codes, stride, tables, sums);
        }
        for sums in single {
            let codes = next(1);
            self.add_panels(codes, stride, tables, std::array::from_mut(sums));
        }
    }

    /// The same for a number of panels that is known: `codes` are long enough.
    fn add_panels<const P: usize, const R: usize>(
        self,
        codes: &[u8],
        stride: usize,
        tables: &[[Table; R]],
        sums: &mut [[Sums; R]; P],
    ) {
        match self {
            Self::Portable => portable::add(codes, stride, tables, sums),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this variant exists only where its instructions do; the caller has checked the lengths.
            Self::Avx2 => unsafe { avx2::add(codes, stride, tables, sums) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx512 => unsafe { avx512::add(codes, stride, tables, sums) },
        }
    }
}
