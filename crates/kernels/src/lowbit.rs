//! Rows of low-bit codes: the layout that artifacts store and kernels read.
//!
//! A row of `len` weights is cut into groups of [`GROUP`]. Within a group of `n` weights (the last one of a row may be
//! shorter; `n` is then rounded up to a multiple of 8 with codes of 0) the codes lie in planes, so that one wide load,
//! shift and mask yields consecutive weights:
//!
//! * 8 bits: byte `j` is code `j`.
//! * 4 bits: byte `j` (of n/2) holds code `j` in its low nibble and code `j + n/2` in its high nibble.
//! * 2 bits: byte `j` (of n/4) holds codes `j`, `j + n/4`, `j + 2n/4`, `j + 3n/4`, lowest bits first.
//! * 3 bits: a 2-bit plane of the codes' low two bits as above, then a 1-bit plane: byte `j` (of n/8) holds the third
//!   bit of codes `j + i·n/8` in bit `i`.
//!
//! What a code stands for is up to its scale and zero point, one of each a group.
//!
//! A row of 16 bits holds the weights themselves as little-endian f16, padded with zeros to a multiple of 8 as above;
//! it has neither scales nor zero points.

/// Weights that share one scale and one zero point.
pub const GROUP: usize = 128;

/// The widths a rank may have; 0 (dropped) is not stored.
pub const WIDTHS: [u8; 4] = [8, 4, 3, 2];

/// Number of groups of a row of `len` weights.
pub const fn groups(len: usize) -> usize {
    len.div_ceil(GROUP)
}

/// Bytes of one row of `len` weights at `bits`, one of [`WIDTHS`] or 16.
pub const fn row_bytes(len: usize, bits: u8) -> usize {
    (len / GROUP * GROUP + (len % GROUP).next_multiple_of(8)) * bits as usize / 8
}

/// Bytes of `count` zero points of `bits` each, as an artifact stores them: bit-packed, lowest bits first.
pub const fn zero_bytes(count: usize, bits: u8) -> usize {
    (count * bits as usize).div_ceil(8)
}

/// Appends the codes of one row to `out`: [`row_bytes`] bytes in the layout of this module.
///
/// # Panics
/// If `bits` is not one of [`WIDTHS`] or a code does not fit in `bits`.
pub fn pack_row(codes: &[u8], bits: u8, out: &mut Vec<u8>) {
    assert!(WIDTHS.contains(&bits), "no layout for {bits}-bit codes");
    assert!(
        codes.iter().all(|&c| u32::from(c) < 1 << bits),
        "a code does not fit in {bits} bits"
    );
    let mut padded = [0u8; GROUP];
    for group in codes.chunks(GROUP) {
        let n = group.len().next_multiple_of(8);
        padded[..group.len()].copy_from_slice(group);
        padded[group.len()..n].fill(0);
        let codes = &padded[..n];
        match bits {
            8 => out.extend_from_slice(codes),
            4 => push_plane(codes, 0, 4, out),
            2 => push_plane(codes, 0, 2, out),
            _ => {
                push_plane(codes, 0, 2, out);
                push_plane(codes, 2, 1, out);
            }
        }
    }
}

/// One plane of a group: `width` bits of each code from bit `shift` on; byte `j` takes codes `j`, `j + bytes`, ….
fn push_plane(codes: &[u8], shift: u32, width: u32, out: &mut Vec<u8>) {
    let per_byte = 8 / width as usize;
    let bytes = codes.len() / per_byte;
    let mask = (1u8 << width) - 1;
    out.extend((0..bytes).map(|j| {
        (0..per_byte).fold(0u8, |byte, i| {
            byte | ((codes[j + i * bytes] >> shift) & mask) << (i as u32 * width)
        })
    }));
}

/// The inverse of [`pack_row`]: writes the codes of one row to `codes`, whose length is the row's.
///
/// # Panics
/// If `bits` is not one of [`WIDTHS`] or `bytes` is not [`row_bytes`] long.
pub fn unpack_row(bytes: &[u8], bits: u8, codes: &mut [u8]) {
    assert!(WIDTHS.contains(&bits), "no layout for {bits}-bit codes");
    assert_eq!(bytes.len(), row_bytes(codes.len(), bits), "bytes of a row of codes");
    let mut rest = bytes;
    let mut padded = [0u8; GROUP];
    for group in codes.chunks_mut(GROUP) {
        let n = group.len().next_multiple_of(8);
        let (packed, after) = rest.split_at(n * bits as usize / 8);
        rest = after;
        unpack_group(packed, bits, &mut padded[..n]);
        group.copy_from_slice(&padded[..group.len()]);
    }
}

/// The codes of one group (a multiple of 8, up to [`GROUP`]) from its planes.
#[inline(always)]
pub(crate) fn unpack_group(packed: &[u8], bits: u8, codes: &mut [u8]) {
    let n = codes.len();
    match bits {
        8 => codes.copy_from_slice(&packed[..n]),
        4 => read_plane::<4>(&packed[..n / 2], codes),
        2 => read_plane::<2>(&packed[..n / 4], codes),
        _ => {
            let (low, high) = packed[..n / 4 + n / 8].split_at(n / 4);
            read_plane::<2>(low, codes);
            for (i, part) in codes.chunks_exact_mut(n / 8).enumerate() {
                for (code, byte) in part.iter_mut().zip(high) {
                    *code |= (byte >> i & 1) << 2;
                }
            }
        }
    }
}

/// The codes of one plane of `WIDTH` bits each.
#[inline(always)]
fn read_plane<const WIDTH: usize>(plane: &[u8], codes: &mut [u8]) {
    for (i, part) in codes.chunks_exact_mut(plane.len()).enumerate() {
        for (code, byte) in part.iter_mut().zip(plane) {
            *code = byte >> (i * WIDTH) & ((1 << WIDTH) - 1);
        }
    }
}

/// Appends zero points, or other small numbers, to `out`, [`zero_bytes`] bytes: `bits` each, lowest bits first.
///
/// # Panics
/// If a zero point does not fit in `bits`.
pub fn pack_zeros(zeros: &[u8], bits: u8, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + zero_bytes(zeros.len(), bits), 0);
    let packed = &mut out[start..];
    for (i, &zero) in zeros.iter().enumerate() {
        assert!(
            u32::from(zero) < 1 << bits,
            "zero point {zero} does not fit in {bits} bits"
        );
        let at = i * bits as usize;
        let wide = u16::from(zero) << (at % 8);
        packed[at / 8] |= wide as u8;
        if wide > 0xff {
            packed[at / 8 + 1] |= (wide >> 8) as u8;
        }
    }
}

/// The inverse of [`pack_zeros`].
///
/// # Panics
/// If `bytes` is not [`zero_bytes`] long.
pub fn unpack_zeros(bytes: &[u8], bits: u8, count: usize) -> Vec<u8> {
    assert_eq!(bytes.len(), zero_bytes(count, bits), "bytes of zero points");
    let mask = ((1u16 << bits) - 1) as u8;
    (0..count)
        .map(|i| {
            let at = i * bits as usize;
            let high = bytes.get(at / 8 + 1).copied().unwrap_or(0);
            (u16::from_le_bytes([bytes[at / 8], high]) >> (at % 8)) as u8 & mask
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_bit_codes_lie_in_four_planes() {
        let codes: Vec<u8> = (0..GROUP).map(|i| (i / 32) as u8).collect();
        let mut packed = Vec::new();
        pack_row(&codes, 2, &mut packed);
        assert_eq!(packed, vec![0b11_10_01_00; 32]);
    }

    #[test]
    fn three_bit_codes_put_their_third_bit_in_a_plane_of_its_own() {
        let mut codes = [0u8; 16];
        codes[3] = 0b101; // group of 16: byte 3 of the low plane (n/4 = 4), bit 1 of high-plane byte 1 (n/8 = 2)
        let mut packed = Vec::new();
        pack_row(&codes, 3, &mut packed);
        assert_eq!(packed, [0, 0, 0, 1, 0, 0b10]);
    }

    proptest! {
        #[test]
        fn rows_of_any_length_and_width_round_trip(
            (bits, codes) in proptest::sample::select(WIDTHS.to_vec())
                .prop_flat_map(|b| (Just(b), proptest::collection::vec(0..=((1u16 << b) - 1) as u8, 1..400))),
        ) {
            let mut packed = Vec::new();
            pack_row(&codes, bits, &mut packed);
            prop_assert_eq!(packed.len(), row_bytes(codes.len(), bits));
            let mut back = vec![0xff; codes.len()];
            unpack_row(&packed, bits, &mut back);
            prop_assert_eq!(back, codes);
        }

        #[test]
        fn zero_points_round_trip(
            (bits, zeros) in proptest::sample::select(WIDTHS.to_vec())
                .prop_flat_map(|b| (Just(b), proptest::collection::vec(0..=((1u16 << b) - 1) as u8, 0..60))),
        ) {
            let mut packed = vec![7];
            pack_zeros(&zeros, bits, &mut packed);
            prop_assert_eq!(packed.len(), 1 + zero_bytes(zeros.len(), bits));
            prop_assert_eq!(unpack_zeros(&packed[1..], bits, zeros.len()), zeros);
        }
    }
}
