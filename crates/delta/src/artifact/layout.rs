//! The packed bytes of one linear: self-describing, as the kernels read them.
//!
//! ```text
//! u16 × 5   ranks of 16, 8, 4, 3 and 2 bits (little-endian)
//! f32       unit of the singular values
//! f16 × r   singular value of each rank in units, bands one after another
//! then for each band that has ranks, widest first:
//!   V codes    ranks × row_bytes(inputs)      as `deltamux_kernels::lowbit` lays them out
//!   V scales   f16 [ranks, groups(inputs)]    (not for 16 bits)
//!   V zeros    bit-packed [ranks, groups(inputs)], `bits` each (not for 16 bits)
//!   Uᵀ codes, scales, zeros: the same with outputs
//! ```

use std::sync::Arc;

use deltamux_kernels::lowbit::{groups, row_bytes, unpack_zeros, zero_bytes};
use deltamux_kernels::lowrank::Band;
use deltamux_kernels::{Bytes, LowRankDelta};
use half::f16;

/// Widths in the order in which bands are stored.
pub(crate) const ALL_WIDTHS: [u8; 5] = [16, 8, 4, 3, 2];

/// Bytes before the singular values.
pub(crate) const FIXED_BYTES: usize = ALL_WIDTHS.len() * 2 + 4;

/// The quantised factors of one linear, ready to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedLinear {
    /// Length of an input row.
    pub inputs: usize,
    /// Length of an output row.
    pub outputs: usize,
    /// Unit of the singular values.
    pub unit: f32,
    /// Singular values in units, bands one after another.
    pub s: Vec<f16>,
    /// Bands with at least one rank, widest first.
    pub bands: Vec<PackedBand>,
}

/// The ranks of one width.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedBand {
    /// Bits a weight.
    pub bits: u8,
    /// Number of ranks.
    pub ranks: usize,
    /// Rows of V.
    pub v: PackedRows,
    /// Rows of Uᵀ.
    pub u: PackedRows,
}

/// Quantised rows of equal length and width.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PackedRows {
    /// Codes, row after row.
    pub codes: Vec<u8>,
    /// Scales, `[rows, groups]`; empty for 16 bits.
    pub scales: Vec<f16>,
    /// Zero points, `[rows, groups]`; empty for 16 bits.
    pub zeros: Vec<u8>,
}

/// Bytes of `ranks` rows of `len` weights with their scales and zero points.
fn rows_bytes(ranks: usize, len: usize, bits: u8) -> Option<usize> {
    let codes = ranks.checked_mul(row_bytes(len, bits))?;
    if bits == 16 {
        return Some(codes);
    }
    let count = ranks.checked_mul(groups(len))?;
    codes
        .checked_add(count.checked_mul(2)?)?
        .checked_add(zero_bytes(count, bits))
}

/// Bytes of a packed linear with these ranks by width; `None` when the count overflows.
pub fn packed_bytes(inputs: usize, outputs: usize, widths: &[(u8, usize)]) -> Option<usize> {
    widths.iter().try_fold(FIXED_BYTES, |total, &(bits, ranks)| {
        total
            .checked_add(ranks.checked_mul(2)?)?
            .checked_add(rows_bytes(ranks, inputs, bits)?)?
            .checked_add(rows_bytes(ranks, outputs, bits)?)
    })
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
    pub fn widths(&self) -> Vec<(u8, usize)> {
        self.bands.iter().map(|b| (b.bits, b.ranks)).collect()
    }

    /// Number of stored ranks.
    pub fn ranks(&self) -> usize {
        self.bands.iter().map(|b| b.ranks).sum()
    }

    /// The packed bytes.
    ///
    /// # Panics
    /// If a band has more than 65,535 ranks.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(packed_bytes(self.inputs, self.outputs, &self.widths()).unwrap_or(0));
        for width in ALL_WIDTHS {
            let ranks = self.bands.iter().find(|b| b.bits == width).map_or(0, |b| b.ranks);
            out.extend(u16::try_from(ranks).expect("at most 65,535 ranks a band").to_le_bytes());
        }
        out.extend(self.unit.to_le_bytes());
        out.extend(self.s.iter().flat_map(|s| s.to_le_bytes()));
        for band in &self.bands {
            for rows in [&band.v, &band.u] {
                out.extend_from_slice(&rows.codes);
                out.extend(rows.scales.iter().flat_map(|s| s.to_le_bytes()));
                if band.bits != 16 {
                    deltamux_kernels::lowbit::pack_zeros(&rows.zeros, band.bits, &mut out);
                }
            }
        }
        out
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

/// The ranks by width that the packed bytes claim, widest first.
pub(crate) fn read_widths(bytes: &[u8]) -> Result<Vec<(u8, usize)>, String> {
    if bytes.len() < FIXED_BYTES {
        return Err(format!(
            "{} bytes, but packed factors have at least {FIXED_BYTES}",
            bytes.len()
        ));
    }
    Ok(ALL_WIDTHS
        .iter()
        .zip(bytes.chunks_exact(2))
        .map(|(&bits, b)| (bits, usize::from(u16::from_le_bytes([b[0], b[1]]))))
        .filter(|&(_, ranks)| ranks > 0)
        .collect())
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
    let widths = read_widths(bytes)?;
    let expected = packed_bytes(inputs, outputs, &widths)
        .ok_or_else(|| format!("impossible ranks {widths:?} for the shape [{outputs}, {inputs}]"))?;
    if len != expected {
        return Err(format!(
            "{len} bytes, but ranks {widths:?} (bits, count) of the shape [{outputs}, {inputs}] take {expected}"
        ));
    }
    let counts = ALL_WIDTHS.len() * 2;
    let unit = f32::from_le_bytes([bytes[counts], bytes[counts + 1], bytes[counts + 2], bytes[counts + 3]]);
    let ranks: usize = widths.iter().map(|&(_, r)| r).sum();
    let mut at = FIXED_BYTES;
    let s: Vec<f32> = read_f16(&bytes[at..at + 2 * ranks]).map(|s| s * unit).collect();
    at += 2 * ranks;
    if !s.iter().all(|s| s.is_finite()) {
        return Err("a singular value is not finite".to_string());
    }
    let mut bands = Vec::new();
    for (bits, ranks) in widths {
        let mut take = |row: usize| -> Result<(Bytes, Vec<f32>, Vec<u8>), String> {
            let codes = ranks * row_bytes(row, bits);
            let window = Bytes::window(owner.clone(), start + at, codes);
            at += codes;
            if bits == 16 {
                if !read_f16(&window).all(f32::is_finite) {
                    return Err("a 16-bit factor is not finite".to_string());
                }
                return Ok((window, Vec::new(), Vec::new()));
            }
            let count = ranks * groups(row);
            let scales: Vec<f32> = read_f16(&bytes[at..at + 2 * count]).collect();
            at += 2 * count;
            if !scales.iter().all(|s| s.is_finite()) {
                return Err("a scale is not finite".to_string());
            }
            let zeros = unpack_zeros(&bytes[at..at + zero_bytes(count, bits)], bits, count);
            at += zero_bytes(count, bits);
            Ok((window, scales, zeros))
        };
        let (v_codes, v_scales, v_zeros) = take(inputs)?;
        let (u_codes, u_scales, u_zeros) = take(outputs)?;
        bands.push(Band {
            bits,
            ranks,
            v_codes,
            v_scales,
            v_zeros,
            u_codes,
            u_scales,
            u_zeros,
        });
    }
    Ok(LowRankDelta {
        inputs,
        outputs,
        s,
        bands,
    })
}

fn read_f16(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())
}
