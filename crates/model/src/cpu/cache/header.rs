//! The head of a cache file: what it was made of, and where each matrix lies.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | [`MAGIC`] |
//! | 4 | [`VERSION`] |
//! | 4 | length of the header, n |
//! | 16 | digest (XXH3, 128 bits) of the 16 bytes before and of the header |
//! | n | the header, JSON, filled up with spaces to a multiple of [`ALIGNMENT`] |
//! | the rest | the matrices, one after another |
//!
//! Numbers are little-endian. Every byte of the file is covered by a digest.

use std::collections::BTreeSet;

use deltamux_kernels::packed;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

/// The first bytes of every cache file.
pub const MAGIC: [u8; 8] = *b"dmxpack\0";
/// Version of the format.
pub const VERSION: u32 = 1;
/// The data begins at a multiple of this: a page.
pub const ALIGNMENT: usize = 4096;
/// Bytes before the header.
pub const PREAMBLE: usize = 32;
/// Longest header that is read.
const MAX_HEADER: usize = 16 << 20;
/// Bytes of the preamble that its digest covers.
const CHECKED: usize = 16;

/// How a stored matrix is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Packing {
    /// bf16; for activations in f32 or bf16 alike.
    Bf16,
    /// f32.
    F32,
    /// 8 bits.
    Q8,
    /// 4 bits.
    Q4,
}

impl From<Packing> for packed::Precision {
    fn from(packing: Packing) -> Self {
        match packing {
            Packing::Bf16 => Self::Bf16,
            Packing::F32 => Self::F32,
            Packing::Q8 => Self::Q8,
            Packing::Q4 => Self::Q4,
        }
    }
}

/// A matrix `[outputs, inputs]` that a file holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// Its name in the model.
    pub name: String,
    /// Rows.
    pub outputs: usize,
    /// Columns.
    pub inputs: usize,
    /// How it is packed.
    pub packing: Packing,
}

/// Where a matrix lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The matrix.
    pub matrix: Matrix,
    /// Offset of its bytes in the data; matrices follow one another without gaps.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// Digest of its bytes: XXH3, 128 bits, in pieces.
    pub digest: String,
}

/// What the header says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Digest of what the matrices were packed from.
    pub key: String,
    /// [`packed::LAYOUT`] when they were packed.
    pub layout: u32,
    /// Digest of the checkpoint ([`crate::Checkpoint::digest`]).
    pub checkpoint: String,
    /// The matrices, in the order of their bytes.
    pub matrices: Vec<Entry>,
}

/// Offset of the data, from the preamble; an error says what is wrong.
pub fn data_offset(preamble: &[u8]) -> Result<usize, String> {
    let preamble: &[u8; PREAMBLE] = preamble
        .first_chunk()
        .ok_or_else(|| format!("truncated: {} bytes", preamble.len()))?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| preamble[at + i]));
    if preamble[..8] != MAGIC {
        return Err("not a weight cache: it begins with other bytes".to_owned());
    }
    if word(8) != VERSION {
        return Err(format!("version {} of the format, expected {VERSION}", word(8)));
    }
    let length = usize::try_from(word(12)).unwrap_or(usize::MAX);
    if length > MAX_HEADER {
        return Err(format!(
            "damaged: a header of {length} bytes, expected at most {MAX_HEADER}"
        ));
    }
    let end = PREAMBLE + length;
    if !end.is_multiple_of(ALIGNMENT) {
        return Err(format!(
            "damaged: the data begins at {end}, expected a multiple of {ALIGNMENT}"
        ));
    }
    Ok(end)
}

/// Offset of the data and the header of a file of `file_len` bytes that begins with `start`, which reaches the data at
/// least; an error says what is wrong. Matrices of an accepted header have the bytes that their shapes take, follow one
/// another without gaps and end where the file ends.
pub fn parse(start: &[u8], file_len: u64) -> Result<(usize, Header), String> {
    let data = data_offset(start)?;
    let header = start
        .get(PREAMBLE..data)
        .ok_or_else(|| format!("truncated: the header ends at {data}, the file at {}", start.len()))?;
    if digest(&start[..CHECKED], header) != start[CHECKED..PREAMBLE] {
        return Err("damaged: the digest of the header is another".to_owned());
    }
    let header: Header = serde_json::from_slice(header).map_err(|e| format!("damaged: header: {e}"))?;
    header.check(file_len.checked_sub(data as u64))?;
    Ok((data, header))
}

impl Header {
    /// Refuses matrices that do not lie one after another in `data` bytes (`None`: the data would begin after the end).
    fn check(&self, data: Option<u64>) -> Result<(), String> {
        let mut names = BTreeSet::new();
        let mut end = 0u64;
        for entry in &self.matrices {
            let Matrix {
                name,
                outputs,
                inputs,
                packing,
            } = &entry.matrix;
            let damaged = |what: String| format!("damaged: matrix {name}: {what}");
            if !names.insert(name) {
                return Err(damaged("it occurs twice".to_owned()));
            }
            let length = packed::Precision::from(*packing).checked_packed_bytes(*outputs, *inputs);
            if length.map(|n| n as u64) != Some(entry.length) {
                return Err(damaged(format!(
                    "{} bytes do not make [{outputs}, {inputs}] in {packing:?}",
                    entry.length
                )));
            }
            if entry.offset != end {
                return Err(damaged(format!("offset {}, expected {end}", entry.offset)));
            }
            end = end
                .checked_add(entry.length)
                .ok_or_else(|| damaged("it goes beyond every file".to_owned()))?;
        }
        match data {
            Some(data) if data == end => Ok(()),
            Some(data) => Err(format!("{data} bytes of data, expected {end}: truncated or damaged")),
            None => Err("truncated: the file ends inside the header".to_owned()),
        }
    }

    /// The bytes before the data. Their number depends on the lengths of the texts and the digits of the numbers only.
    pub fn encode(&self) -> std::io::Result<Vec<u8>> {
        let header = serde_json::to_vec(self)?;
        if header.len() > MAX_HEADER - ALIGNMENT {
            let what = format!("a header of {} bytes is too long", header.len());
            return Err(std::io::Error::other(what));
        }
        Ok(seal(&header))
    }
}

/// The bytes before the data for a header's text, whatever it says.
pub fn seal(text: &[u8]) -> Vec<u8> {
    let mut header = text.to_vec();
    header.resize((PREAMBLE + header.len()).next_multiple_of(ALIGNMENT) - PREAMBLE, b' ');
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((header.len() as u32).to_le_bytes());
    bytes.extend(digest(&bytes, &header));
    bytes.extend(header);
    bytes
}

fn digest(preamble: &[u8], header: &[u8]) -> [u8; 16] {
    XxHash3_128::oneshot(&[preamble, header].concat()).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Matrices one after another.
    fn header(shapes: &[(usize, usize, Packing)]) -> (Header, u64) {
        let mut offset = 0;
        let matrices = shapes.iter().enumerate().map(|(i, &(outputs, inputs, packing))| {
            let length = packed::Precision::from(packing).packed_bytes(outputs, inputs) as u64;
            offset += length;
            Entry {
                matrix: Matrix {
                    name: format!("m{i}"),
                    outputs,
                    inputs,
                    packing,
                },
                offset: offset - length,
                length,
                digest: "0".repeat(32),
            }
        });
        let header = Header {
            key: "k".to_owned(),
            layout: 1,
            checkpoint: "c".to_owned(),
            matrices: matrices.collect(),
        };
        (header, offset)
    }

    fn shapes() -> impl Strategy<Value = Vec<(usize, usize, Packing)>> {
        let packing = prop::sample::select(vec![Packing::Bf16, Packing::F32, Packing::Q8, Packing::Q4]);
        prop::collection::vec((0usize..100, 0usize..100, packing), 0..5)
    }

    fn two() -> (Header, u64) {
        header(&[(32, 64, Packing::Q8), (16, 16, Packing::Bf16)])
    }

    /// Why a header is refused although its digest is right.
    fn refused(change: impl FnOnce(&mut Header)) -> String {
        let (mut header, data) = two();
        change(&mut header);
        let start = header.encode().unwrap();
        parse(&start, start.len() as u64 + data).expect_err("a refusal")
    }

    #[test]
    fn matrices_that_overlap_leave_gaps_or_occur_twice_are_refused() {
        let first = two().0.matrices[0].length;
        for offset in [0, 1, first - 64, first + 64, u64::MAX] {
            let why = refused(|h| h.matrices[1].offset = offset);
            assert!(why.contains("m1: offset"), "{why}");
        }
        let why = refused(|h| h.matrices[1].matrix.name = "m0".to_owned());
        assert!(why.contains("m0: it occurs twice"), "{why}");
    }

    #[test]
    fn lengths_that_are_not_those_of_the_shape_are_refused() {
        for length in [0, 64, u64::MAX] {
            let why = refused(|h| h.matrices[0].length = length);
            assert!(why.contains("do not make [32, 64] in Q8"), "{why}");
        }
        for outputs in [0, 31 + 2, usize::MAX] {
            let why = refused(|h| h.matrices[0].matrix.outputs = outputs);
            assert!(why.contains("do not make"), "{why}");
        }
        // Lengths that are right one by one, but not together.
        let why = refused(|h| {
            for (i, entry) in h.matrices.iter_mut().enumerate() {
                entry.matrix.packing = Packing::Bf16;
                (entry.matrix.outputs, entry.matrix.inputs) = (1 << 30, 1 << 32);
                entry.length = 1 << 63;
                entry.offset = i as u64 * (1 << 63);
            }
        });
        assert!(why.contains("beyond every file"), "{why}");
    }

    #[test]
    fn a_file_that_ends_elsewhere_is_refused() {
        let (header, data) = two();
        let start = header.encode().unwrap();
        let whole = start.len() as u64 + data;
        assert!(parse(&start, whole).is_ok());
        for len in [0, start.len() as u64 - 1, whole - 1, whole + 1, u64::MAX] {
            let why = parse(&start, len).expect_err("another length");
            assert!(why.contains("truncated"), "{why}");
        }
        for cut in 0..start.len() {
            assert!(parse(&start[..cut], whole).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn numbers_that_are_none_are_refused() {
        let (header, data) = two();
        for number in ["NaN", "-1", "1.5", "1e400", "null", "\"64\"", "18446744073709551616"] {
            let text =
                serde_json::to_string(&header)
                    .unwrap()
                    .replacen("\"offset\":0", &format!("\"offset\":{number}"), 1);
            let start = seal(text.as_bytes());
            let why = parse(&start, start.len() as u64 + data).expect_err(number);
            assert!(why.contains("damaged: header"), "{number}: {why}");
        }
    }

    #[test]
    fn other_files_and_other_versions_are_named() {
        let (header, data) = two();
        let start = header.encode().unwrap();
        let whole = start.len() as u64 + data;
        let mut other = start.clone();
        other[8] = 2;
        assert!(parse(&other, whole).expect_err("a version").contains("version 2"));
        other[0] = b'D';
        assert!(parse(&other, whole).expect_err("a file").contains("not a weight cache"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(shapes in shapes()) {
            let (header, data) = header(&shapes);
            let start = header.encode().expect("bytes");
            prop_assert_eq!(start.len() % ALIGNMENT, 0);
            let found = parse(&start, start.len() as u64 + data);
            prop_assert_eq!(found, Ok((start.len(), header)));
        }

        #[test]
        fn any_changed_byte_is_found(shapes in shapes(), at in any::<prop::sample::Index>(), flip in 1u8..) {
            let (header, data) = header(&shapes);
            let mut start = header.encode().expect("bytes");
            let at = at.index(start.len());
            start[at] ^= flip;
            prop_assert!(parse(&start, start.len() as u64 + data).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), len in any::<u64>()) {
            prop_assert!(parse(&bytes, len).is_err());
            let mut start = [&MAGIC[..], &VERSION.to_le_bytes(), &4064u32.to_le_bytes()].concat();
            let mut header = bytes;
            header.resize(4064, b' ');
            start.extend(digest(&start, &header));
            start.extend(header);
            prop_assert!(parse(&start, len).is_err());
        }
    }
}
