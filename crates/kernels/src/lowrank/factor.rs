//! One band of a factor: rows of packed codes with their scales and zero points.

use super::Band;
use super::tile::Ahead;
use crate::isa::for_each_isa;
use crate::lowbit::{GROUP, WIDTHS, groups, row_bytes, unpack_group};

/// A band of V or Uᵀ. The lengths of its parts fit each other: kernels read the codes without looking again.
#[derive(Clone, Copy)]
pub(super) struct Factor<'a> {
    bits: u8,
    ranks: usize,
    len: usize,
    codes: &'a [u8],
    scales: &'a [f32],
    zeros: &'a [u16],
}

impl<'a> Factor<'a> {
    /// `band` with rows of `len` weights.
    ///
    /// # Panics
    /// If there is no layout for the band's width or a part has another length.
    pub(super) fn new(band: &'a Band, len: usize) -> Self {
        let (bits, ranks) = (band.bits, band.ranks);
        let (codes, scales, zeros) = (&*band.codes, &*band.scales, &*band.zeros);
        assert!(bits == 16 || WIDTHS.contains(&bits), "no layout for {bits}-bit codes");
        assert_eq!(
            codes.len(),
            ranks * row_bytes(len, bits),
            "codes are [ranks, row_bytes]"
        );
        let count = if bits == 16 { 0 } else { ranks * groups(len) };
        assert_eq!(scales.len(), count, "scales are [ranks, groups]");
        assert_eq!(zeros.len(), count, "zero points are [ranks, groups]");
        Self {
            bits,
            ranks,
            len,
            codes,
            scales,
            zeros,
        }
    }

    /// Bits a weight.
    #[inline(always)]
    pub(super) fn bits(&self) -> u8 {
        self.bits
    }

    /// Number of rows.
    #[inline(always)]
    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    /// Weights of a row.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Groups of a row, the last of which may be shorter.
    #[inline(always)]
    pub(super) fn groups(&self) -> usize {
        groups(self.len)
    }

    /// Bytes from one row to the next.
    #[inline(always)]
    pub(super) fn stride(&self) -> usize {
        row_bytes(self.len, self.bits)
    }

    /// Weights of a group.
    #[inline(always)]
    pub(super) fn group_len(&self, group: usize) -> usize {
        (self.len - group * GROUP).min(GROUP)
    }

    /// All codes from a group of a row on.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn codes_from(&self, rank: usize, group: usize) -> &'a [u8] {
        &self.codes[rank * self.stride() + group * (GROUP * self.bits as usize / 8)..]
    }

    /// The rows from `rank` on at a group, which may lie outside of the factor.
    #[inline(always)]
    pub(super) fn ahead(&self, rank: usize, group: usize) -> Ahead {
        let (offset, index) = (
            rank * self.stride() + group * (GROUP * self.bits as usize / 8),
            rank * self.groups() + group,
        );
        Ahead::new(
            self.codes.as_ptr().wrapping_add(offset),
            self.scales.as_ptr().wrapping_add(index),
            self.zeros.as_ptr().wrapping_add(index),
            self.stride(),
            self.groups(),
        )
    }

    /// Codes of one group of a row.
    #[inline(always)]
    pub(super) fn group(&self, rank: usize, group: usize) -> &'a [u8] {
        let bits = self.bits as usize;
        let bytes = self.group_len(group).next_multiple_of(8) * bits / 8;
        &self.codes[rank * self.stride() + group * (GROUP * bits / 8)..][..bytes]
    }

    /// Scales of a row from a group on, up to the end of the factor.
    #[inline(always)]
    pub(super) fn scales(&self, rank: usize, group: usize) -> &'a [f32] {
        &self.scales[rank * self.groups() + group..]
    }

    /// Zero points of a row from a group on, in half steps, up to the end of the factor.
    #[inline(always)]
    pub(super) fn zeros(&self, rank: usize, group: usize) -> &'a [u16] {
        &self.zeros[rank * self.groups() + group..]
    }

    /// The weights of one row as f32.
    pub(super) fn row(&self, rank: usize, out: &mut [f32]) {
        for (group, out) in out.chunks_mut(GROUP).enumerate() {
            self.weights(rank, group, out);
        }
    }

    /// The weights of one group of a row as f32.
    pub(super) fn weights(&self, rank: usize, group: usize, out: &mut [f32]) {
        let (packed, out) = (self.group(rank, group), &mut out[..self.group_len(group)]);
        if self.bits == 16 {
            halves(packed, out);
        } else {
            dequantise(
                packed,
                self.bits,
                self.scales(rank, group)[0],
                self.zeros(rank, group)[0],
                out,
            );
        }
    }
}

for_each_isa! {
    /// `(2 · code − zero) · scale` for one group.
    fn dequantise(packed: &[u8], bits: u8, scale: f32, zero: u16, out: &mut [f32]) {
        let mut codes = [0u8; GROUP];
        if out.len() == GROUP {
            unpack_group(packed, bits, &mut codes);
        } else {
            unpack_group(packed, bits, &mut codes[..out.len().next_multiple_of(8)]);
        }
        for (out, code) in out.iter_mut().zip(&codes) {
            *out = (2 * i32::from(*code) - i32::from(zero)) as f32 * scale;
        }
    }
}

for_each_isa! {
    /// Little-endian f16 to f32, exactly.
    fn halves(bytes: &[u8], out: &mut [f32]) {
        for (out, pair) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
            let half = u32::from(u16::from_le_bytes(*pair));
            // The exponent's bias differs by 112; a product also normalises what is subnormal in f16.
            let finite = f32::from_bits((half & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
            let special = if half & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
            *out = f32::from_bits(finite.to_bits() | special | (half & 0x8000) << 16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_f16_becomes_its_f32() {
        for bits in 0..=u16::MAX {
            let mut out = [0.0];
            halves(&bits.to_le_bytes(), &mut out);
            let exact = f16::from_bits(bits).to_f32();
            assert!(
                out[0].to_bits() == exact.to_bits() || (out[0].is_nan() && exact.is_nan()),
                "{bits:#x}"
            );
        }
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let band = |bits: u8, codes: usize, scales: usize, zeros: usize| {
            std::panic::catch_unwind(|| {
                let band = Band {
                    bits,
                    ranks: 3,
                    codes: vec![0; codes].into(),
                    scales: vec![0.0; scales],
                    zeros: vec![0; zeros],
                };
                Factor::new(&band, 130);
            })
        };
        let bytes = 3 * row_bytes(130, 2);
        assert!(band(2, bytes, 6, 6).is_ok());
        assert!(band(2, bytes - 1, 6, 6).is_err());
        assert!(band(2, bytes, 5, 6).is_err());
        assert!(band(2, bytes, 6, 7).is_err());
        assert!(band(5, bytes, 6, 6).is_err());
        assert!(band(16, 3 * row_bytes(130, 16), 0, 0).is_ok());
        assert!(band(16, 3 * row_bytes(130, 16), 6, 6).is_err());
    }
}
