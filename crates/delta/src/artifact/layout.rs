//! The packed bytes of one linear: self-describing, as the kernels read them.
//!
//! ```text
//! u8        coding of scales and zero points: 0 affine, 1 symmetric
//! u16 × 5   ranks whose row of V has 16, 8, 4, 3 and 2 bits (little-endian)
//! u16 × 5   the same for Uᵀ; both add up to r
//! f32       unit of the singular values
//! f16 × r   singular value of each rank in units
//! then for each width of V that has ranks, widest first:
//!   codes    ranks × row_bytes(inputs)      as `deltamux_kernels::lowbit` lays them out
//!   scales   affine: f16 [ranks, groups(inputs)]; symmetric: 5 bits each, bit-packed   (not for 16 bits)
//!   zeros    affine: bit-packed [ranks, groups(inputs)], `bits` each; symmetric: none  (not for 16 bits)
//! then for each width of Uᵀ the same with outputs
//! ```
//!
//! Ranks stand in one order in V, in Uᵀ and among the singular values. A weight is `(code − zero) · scale`; the zero
//! point of the symmetric coding is `(2^bits − 1) / 2`, half-way between the middle codes, and its scales come from
//! [`symmetric_scale`]'s table.

use std::f32::consts::SQRT_2;
use std::sync::Arc;

use deltamux_kernels::lowbit::{groups, pack_zeros, row_bytes, unpack_zeros, zero_bytes};
use deltamux_kernels::lowrank::Band;
use deltamux_kernels::{Bytes, LowRankDelta};
use half::f16;

/// Widths in the order in which bands are stored.
pub(crate) const ALL_WIDTHS: [u8; 5] = [16, 8, 4, 3, 2];

/// Bytes of the coding and of the counts of ranks.
const COUNTS_END: usize = 1 + ALL_WIDTHS.len() * 2 * 2;

/// Bytes before the singular values.
pub(crate) const FIXED_BYTES: usize = COUNTS_END + 4;

/// Bits of a scale's place in the table of the symmetric coding.
pub(crate) const SCALE_BITS: u8 = 5;

/// How the scale and the zero point of a group are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Coding {
    /// An f16 scale and an integer zero point of as many bits as a code.
    #[default]
    Affine,
    /// A place in a table of scales; levels lie evenly around 0. For rows whose root mean square is about 1.
    Symmetric,
}

impl Coding {
    /// Bits that a group of codes of `bits` bits takes beside them.
    pub(crate) fn group_bits(self, bits: u8) -> u64 {
        match self {
            _ if bits == 16 => 0,
            Self::Affine => 16 + u64::from(bits),
            Self::Symmetric => u64::from(SCALE_BITS),
        }
    }
}

/// Scale number `place` (below 32) of the table for codes of `bits` bits.
///
/// Place 20 is the step with the least squared error for Gaussian weights of variance 1. A place more is a sixth of an
/// octave more up to place 26 and one and a half octaves from there on: the last ones reach what a row of variance 1
/// can hold at most, one weight that is all of it. Place 0 makes a group of zeros.
pub fn symmetric_scale(bits: u8, place: u8) -> f32 {
    const SIXTHS: [f32; 6] = [1.0, 1.122_462, 1.259_921, SQRT_2, 1.587_401, 1.781_797_4];
    if place == 0 {
        return 0.0;
    }
    let gaussian = match bits {
        2 => 0.996f32,
        3 => 0.586,
        4 => 0.335,
        _ => 0.031,
    };
    let fine = place.min(26);
    let sixths = i32::from(fine) - 20 + 9 * i32::from(place - fine);
    let octave = f32::from_bits(((127 + sixths.div_euclid(6)) as u32) << 23);
    gaussian * SIXTHS[sixths.rem_euclid(6) as usize] * octave
}

/// The quantised factors of one linear, ready to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedLinear {
    /// Length of an input row.
    pub inputs: usize,
    /// Length of an output row.
    pub outputs: usize,
    /// Unit of the singular values.
    pub unit: f32,
    /// Singular values in units.
    pub s: Vec<f16>,
    /// How scales and zero points are stored.
    pub coding: Coding,
    /// Rows of V, bands with at least one rank, widest first.
    pub v: Vec<PackedBand>,
    /// Rows of Uᵀ, for the same ranks in the same order.
    pub u: Vec<PackedBand>,
}

/// Rows of one factor at one width.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PackedBand {
    /// Bits a weight.
    pub bits: u8,
    /// Number of rows.
    pub ranks: usize,
    /// Codes, row after row.
    pub codes: Vec<u8>,
    /// Scales, `[ranks, groups]`: the bits of an f16, or a place in the table; empty for 16 bits.
    pub scales: Vec<u16>,
    /// Zero points, `[ranks, groups]`; empty for 16 bits and for the symmetric coding.
    pub zeros: Vec<u8>,
}

/// Ranks by the width of their rows, of each factor, widest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Widths {
    /// Bits and ranks of V.
    pub v: Vec<(u8, usize)>,
    /// Bits and ranks of Uᵀ.
    pub u: Vec<(u8, usize)>,
}

impl Widths {
    /// The same widths for both factors.
    pub fn equal(widths: &[(u8, usize)]) -> Self {
        Self {
            v: widths.to_vec(),
            u: widths.to_vec(),
        }
    }

    /// Number of ranks of V.
    pub fn ranks(&self) -> usize {
        self.v.iter().map(|&(_, ranks)| ranks).fold(0, usize::saturating_add)
    }
}

/// Bytes of `ranks` rows of `len` weights with their scales and zero points.
fn rows_bytes(ranks: usize, len: usize, bits: u8, coding: Coding) -> Option<usize> {
    let codes = ranks.checked_mul(row_bytes(len, bits))?;
    if bits == 16 {
        return Some(codes);
    }
    let count = ranks.checked_mul(groups(len))?;
    match coding {
        Coding::Affine => codes
            .checked_add(count.checked_mul(2)?)?
            .checked_add(zero_bytes(count, bits)),
        Coding::Symmetric => codes.checked_add(zero_bytes(count, SCALE_BITS)),
    }
}

/// Bytes of a packed linear with these ranks by width; `None` when the count overflows.
pub fn packed_bytes(inputs: usize, outputs: usize, coding: Coding, widths: &Widths) -> Option<usize> {
    let factor = |total: usize, len: usize, widths: &[(u8, usize)]| {
        widths.iter().try_fold(total, |total, &(bits, ranks)| {
            total.checked_add(rows_bytes(ranks, len, bits, coding)?)
        })
    };
    let fixed = FIXED_BYTES.checked_add(widths.ranks().checked_mul(2)?)?;
    factor(factor(fixed, inputs, &widths.v)?, outputs, &widths.u)
}

/// Bytes of a tensor's entry in a safetensors header: the packed tensor `name` of `bytes` bytes at `offset`.
pub fn header_entry_bytes(name: &str, bytes: usize, offset: usize) -> usize {
    format!(
        "\"{name}\":{{\"dtype\":\"U8\",\"shape\":[{bytes}],\"data_offsets\":[{offset},{}]}},",
        offset + bytes
    )
    .len()
}

impl PackedLinear {
    /// The stored ranks by width, widest first.
    pub fn widths(&self) -> Widths {
        let widths = |bands: &[PackedBand]| bands.iter().map(|b| (b.bits, b.ranks)).collect();
        Widths {
            v: widths(&self.v),
            u: widths(&self.u),
        }
    }

    /// Number of stored ranks.
    pub fn ranks(&self) -> usize {
        self.s.len()
    }

    /// The packed bytes.
    ///
    /// # Panics
    /// If a band has more than 65,535 ranks.
    pub fn encode(&self) -> Vec<u8> {
        let bytes = packed_bytes(self.inputs, self.outputs, self.coding, &self.widths());
        let mut out = Vec::with_capacity(bytes.unwrap_or(0));
        out.push(match self.coding {
            Coding::Affine => 0,
            Coding::Symmetric => 1,
        });
        for bands in [&self.v, &self.u] {
            for width in ALL_WIDTHS {
                let ranks = bands.iter().find(|b| b.bits == width).map_or(0, |b| b.ranks);
                out.extend(u16::try_from(ranks).expect("at most 65,535 ranks a band").to_le_bytes());
            }
        }
        out.extend(self.unit.to_le_bytes());
        out.extend(self.s.iter().flat_map(|s| s.to_le_bytes()));
        for band in self.v.iter().chain(&self.u) {
            out.extend_from_slice(&band.codes);
            match self.coding {
                _ if band.bits == 16 => {}
                Coding::Affine => {
                    out.extend(band.scales.iter().flat_map(|s| s.to_le_bytes()));
                    pack_zeros(&band.zeros, band.bits, &mut out);
                }
                Coding::Symmetric => {
                    let places: Vec<u8> = band.scales.iter().map(|&place| place as u8).collect();
                    pack_zeros(&places, SCALE_BITS, &mut out);
                }
            }
        }
        out
    }

    /// The inverse of [`Self::encode`] for an `[outputs, inputs]` matrix, with all checks.
    pub fn parse(bytes: &[u8], inputs: usize, outputs: usize) -> Result<Self, String> {
        let (coding, widths) = check_length(bytes, inputs, outputs)?;
        let (unit, s) = read_singular_values(bytes, widths.ranks())?;
        let mut rest = &bytes[FIXED_BYTES + 2 * s.len()..];
        let mut take = |count: usize| {
            let (taken, after) = rest.split_at(count);
            rest = after;
            taken
        };
        let mut bands = |widths: &[(u8, usize)], len: usize| -> Result<Vec<PackedBand>, String> {
            let mut bands = Vec::new();
            for &(bits, ranks) in widths {
                let codes = take(ranks * row_bytes(len, bits)).to_vec();
                let count = ranks * groups(len);
                let mut band = PackedBand {
                    bits,
                    ranks,
                    codes,
                    ..PackedBand::default()
                };
                match coding {
                    _ if bits == 16 => check_halves(&band.codes)?,
                    Coding::Affine => {
                        let scales = take(2 * count).chunks_exact(2);
                        band.scales = scales.map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
                        if !band.scales.iter().all(|&scale| f16::from_bits(scale).is_finite()) {
                            return Err(SCALE_NOT_FINITE.to_string());
                        }
                        band.zeros = unpack_small(take(zero_bytes(count, bits)), bits, count)?;
                    }
                    Coding::Symmetric => {
                        let places = unpack_small(take(zero_bytes(count, SCALE_BITS)), SCALE_BITS, count)?;
                        band.scales = places.into_iter().map(u16::from).collect();
                    }
                }
                bands.push(band);
            }
            Ok(bands)
        };
        Ok(Self {
            inputs,
            outputs,
            unit,
            v: bands(&widths.v, inputs)?,
            u: bands(&widths.u, outputs)?,
            s,
            coding,
        })
    }

    /// The difference as the kernels read it.
    pub fn to_delta(&self) -> Result<LowRankDelta, String> {
        let bytes = self.encode();
        let len = bytes.len();
        decode(&(Arc::new(bytes) as Owner), 0, len, self.inputs, self.outputs)
    }
}

/// Shared bytes that windows are cut from.
pub(crate) type Owner = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The coding and the ranks by width that the packed bytes claim, widest first.
pub(crate) fn read_widths(bytes: &[u8]) -> Result<(Coding, Widths), String> {
    if bytes.len() < FIXED_BYTES {
        return Err(format!(
            "{} bytes, but packed factors have at least {FIXED_BYTES}",
            bytes.len()
        ));
    }
    let coding = match bytes[0] {
        0 => Coding::Affine,
        1 => Coding::Symmetric,
        other => return Err(format!("coding {other}; expected 0 (affine) or 1 (symmetric)")),
    };
    let widths = |counts: &[u8]| -> Vec<(u8, usize)> {
        ALL_WIDTHS
            .iter()
            .zip(counts.chunks_exact(2))
            .map(|(&bits, b)| (bits, usize::from(u16::from_le_bytes([b[0], b[1]]))))
            .filter(|&(_, ranks)| ranks > 0)
            .collect()
    };
    let (v, u) = bytes[1..COUNTS_END].split_at(ALL_WIDTHS.len() * 2);
    let widths = Widths {
        v: widths(v),
        u: widths(u),
    };
    let of_u: usize = widths.u.iter().map(|&(_, ranks)| ranks).sum();
    if widths.ranks() != of_u {
        return Err(format!("{} ranks of V, but {of_u} of U", widths.ranks()));
    }
    Ok((coding, widths))
}

/// The coding and the ranks by width of packed factors that are as long as these take.
fn check_length(bytes: &[u8], inputs: usize, outputs: usize) -> Result<(Coding, Widths), String> {
    let (coding, widths) = read_widths(bytes)?;
    let expected = packed_bytes(inputs, outputs, coding, &widths)
        .ok_or_else(|| format!("impossible ranks {widths:?} for the shape [{outputs}, {inputs}]"))?;
    if bytes.len() != expected {
        return Err(format!(
            "{} bytes, but ranks {widths:?} (bits, count) of the shape [{outputs}, {inputs}] take {expected}",
            bytes.len()
        ));
    }
    Ok((coding, widths))
}

/// The unit and the singular values in units, of packed factors whose length was checked.
fn read_singular_values(bytes: &[u8], ranks: usize) -> Result<(f32, Vec<f16>), String> {
    let unit = &bytes[COUNTS_END..FIXED_BYTES];
    let unit = f32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]);
    let s = bytes[FIXED_BYTES..FIXED_BYTES + 2 * ranks].chunks_exact(2);
    let s: Vec<f16> = s.map(|b| f16::from_le_bytes([b[0], b[1]])).collect();
    if !s.iter().all(|s| (s.to_f32() * unit).is_finite()) {
        return Err("a singular value is not finite".to_string());
    }
    Ok((unit, s))
}

const SCALE_NOT_FINITE: &str = "a scale is not finite";

fn check_halves(codes: &[u8]) -> Result<(), String> {
    if read_f16(codes).all(f32::is_finite) {
        return Ok(());
    }
    Err("a 16-bit factor is not finite".to_string())
}

/// Zero points or places of scales; what is stored has one form only, so the bits after the last one are 0.
fn unpack_small(bytes: &[u8], bits: u8, count: usize) -> Result<Vec<u8>, String> {
    let used = count * usize::from(bits) % 8;
    if used > 0 && bytes.last().is_some_and(|last| last >> used != 0) {
        return Err("the bits after a band's last zero point or scale are not zero".to_string());
    }
    Ok(unpack_zeros(bytes, bits, count))
}

/// Reads the window `start .. start + len` of `owner` as the packed factors of an `[outputs, inputs]` matrix.
pub(crate) fn decode(
    owner: &Owner,
    start: usize,
    len: usize,
    inputs: usize,
    outputs: usize,
) -> Result<LowRankDelta, String> {
    let bytes = &(**owner).as_ref()[start..start + len];
    let (coding, widths) = check_length(bytes, inputs, outputs)?;
    let ranks = widths.ranks();
    let (unit, s) = read_singular_values(bytes, ranks)?;
    let s = s.iter().map(|s| s.to_f32() * unit).collect();
    let mut cursor = Cursor {
        owner,
        bytes,
        start,
        at: FIXED_BYTES + 2 * ranks,
        coding,
    };
    Ok(LowRankDelta {
        inputs,
        outputs,
        s,
        v: cursor.bands(&widths.v, inputs)?,
        u: cursor.bands(&widths.u, outputs)?,
    })
}

/// A place in packed bytes whose length was checked.
struct Cursor<'a> {
    owner: &'a Owner,
    bytes: &'a [u8],
    /// Where `bytes` begin in what `owner` owns.
    start: usize,
    at: usize,
    coding: Coding,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        taken
    }

    /// The bands of a factor with rows of `len` weights. Scales and zero points are expanded to what the kernels read,
    /// steps of half the size; codes stay where they are.
    fn bands(&mut self, widths: &[(u8, usize)], len: usize) -> Result<Vec<Band>, String> {
        let mut bands = Vec::new();
        for &(bits, ranks) in widths {
            let at = self.start + self.at;
            let codes = Bytes::window(self.owner.clone(), at, self.take(ranks * row_bytes(len, bits)).len());
            let count = ranks * groups(len);
            let (scales, zeros) = match self.coding {
                _ if bits == 16 => {
                    check_halves(&codes)?;
                    (Vec::new(), Vec::new())
                }
                Coding::Affine => {
                    let scales: Vec<f32> = read_f16(self.take(2 * count)).map(|scale| 0.5 * scale).collect();
                    if !scales.iter().all(|s| s.is_finite()) {
                        return Err(SCALE_NOT_FINITE.to_string());
                    }
                    let zeros = unpack_small(self.take(zero_bytes(count, bits)), bits, count)?;
                    (scales, zeros.into_iter().map(|zero| 2 * u16::from(zero)).collect())
                }
                Coding::Symmetric => {
                    let places = unpack_small(self.take(zero_bytes(count, SCALE_BITS)), SCALE_BITS, count)?;
                    let scales = places.iter().map(|&place| 0.5 * symmetric_scale(bits, place));
                    (scales.collect(), vec![(1 << bits) - 1; count])
                }
            };
            bands.push(Band {
                bits,
                ranks,
                codes,
                scales,
                zeros,
            });
        }
        Ok(bands)
    }
}

fn read_f16(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Packed bytes of any content are read or refused: never a panic.
        #[test]
        fn any_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            coding in 0..3u8,
            counts in prop::collection::vec(0..4u16, 10),
            (inputs, outputs) in (1..40usize, 1..40usize),
            exact: bool,
        ) {
            let owner = |bytes: &[u8]| Arc::new(bytes.to_vec()) as Owner;
            let _ = decode(&owner(&bytes), 0, bytes.len(), inputs, outputs);
            // The same behind a header that may fit, with as many bytes as it asks for.
            let mut made = vec![coding];
            made.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
            made.extend(bytes);
            if exact
                && let Ok((coding, widths)) = read_widths(&made)
                && let Some(length) = packed_bytes(inputs, outputs, coding, &widths)
            {
                made.resize(length, 0x21);
            }
            if let Ok(delta) = decode(&owner(&made), 0, made.len(), inputs, outputs) {
                prop_assert!(delta.to_dense().iter().all(|x| !x.is_nan()));
            }
        }
    }

    #[test]
    fn the_table_of_scales_rises_by_sixths_of_an_octave() {
        for bits in [2, 3, 4, 8] {
            assert_eq!(symmetric_scale(bits, 0), 0.0);
            for place in 1..26 {
                let ratio = symmetric_scale(bits, place + 1) / symmetric_scale(bits, place);
                assert!((ratio - 2f32.powf(1.0 / 6.0)).abs() < 1e-5, "{bits} {place} {ratio}");
            }
        }
    }
}
