//! Reads a cache file: everything is checked before anything is used.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use deltamux_kernels::{AlignedBytes, PackedMatrix, Threads, packed};
use rayon::prelude::*;

use super::digest::{self, PIECE};
use super::header::{self, Entry, Matrix, PREAMBLE};

/// Pieces between two reports of progress.
const PIECES: usize = 64;

/// What a cache file holds.
#[derive(Debug)]
pub struct Stored {
    /// The matrices by name.
    pub matrices: BTreeMap<String, PackedMatrix>,
    /// Digest of the checkpoint that they were packed from.
    pub checkpoint: String,
}

/// Reads the matrices of `plan` from a file with that key. `Ok(None)`: there is no file; an error says why the file is
/// not used. `progress` is called with the bytes that have been read, and all that will be.
pub fn read(
    path: &Path,
    key: &str,
    plan: &[Matrix],
    threads: &Threads,
    progress: &dyn Fn(u64, u64),
) -> Result<Option<Stored>, String> {
    // Opening anything else might wait for ever.
    match fs_err::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
        Ok(metadata) if !metadata.is_file() => return Err("not a regular file".to_owned()),
        Ok(_) => {}
    }
    let file = fs_err::File::open(path).map_err(|e| e.to_string())?;
    let len = file.metadata().map_err(|e| e.to_string())?.len();
    let start = read_start(&file, len)?;
    let (data, header) = header::parse(&start, len)?;
    if header.layout != packed::LAYOUT {
        return Err(format!(
            "packed by layout {}, this version has {}",
            header.layout,
            packed::LAYOUT
        ));
    }
    if header.key != key {
        return Err("made from other files than the checkpoint's".to_owned());
    }
    if !header.matrices.iter().map(|entry| &entry.matrix).eq(plan) {
        return Err("its matrices are not the checkpoint's".to_owned());
    }
    let buffers = read_matrices(&file, data as u64, &header.matrices, threads, progress)?;
    let mut matrices = BTreeMap::new();
    for (Entry { matrix, .. }, bytes) in header.matrices.into_iter().zip(buffers) {
        let packed = PackedMatrix::from_packed(matrix.packing.into(), bytes.into(), matrix.outputs, matrix.inputs);
        let packed = packed.ok_or_else(|| format!("damaged: matrix {} has another size", matrix.name))?;
        matrices.insert(matrix.name, packed);
    }
    Ok(Some(Stored {
        matrices,
        checkpoint: header.checkpoint,
    }))
}

/// Preamble and header.
fn read_start(file: &fs_err::File, len: u64) -> Result<Vec<u8>, String> {
    let mut start = vec![0; PREAMBLE];
    if len < PREAMBLE as u64 {
        return Err(format!("truncated: {len} bytes"));
    }
    read_at(file, &mut start, 0).map_err(|e| e.to_string())?;
    let data = header::data_offset(&start)?;
    if len < data as u64 {
        return Err(format!("truncated: {len} bytes, the header ends at {data}"));
    }
    start.resize(data, 0);
    read_at(file, &mut start[PREAMBLE..], PREAMBLE as u64).map_err(|e| e.to_string())?;
    Ok(start)
}

/// A part of a matrix.
struct Piece<'a> {
    offset: u64,
    bytes: &'a mut [u8],
    digest: u128,
}

/// The bytes of each matrix, checked: all threads read pieces and take their digests while they are in the cache.
fn read_matrices(
    file: &fs_err::File,
    data: u64,
    entries: &[Entry],
    threads: &Threads,
    progress: &dyn Fn(u64, u64),
) -> Result<Vec<AlignedBytes>, String> {
    // The lengths are those of the checkpoint's own matrices.
    let mut buffers: Vec<AlignedBytes> = entries
        .iter()
        .map(|entry| AlignedBytes::zeroed(entry.length as usize))
        .collect();
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    for (entry, buffer) in entries.iter().zip(&mut buffers) {
        let parts = buffer.chunks_mut(PIECE).enumerate();
        pieces.extend(parts.map(|(i, bytes)| Piece {
            offset: data + entry.offset + (i * PIECE) as u64,
            bytes,
            digest: 0,
        }));
    }
    let total: u64 = entries.iter().map(|entry| entry.length).sum();
    let mut done = 0;
    for batch in pieces.chunks_mut(PIECES) {
        let read = threads.install(|| {
            batch.par_iter_mut().try_for_each(|piece| {
                read_at(file, piece.bytes, piece.offset)?;
                piece.digest = digest::of_piece(piece.bytes);
                Ok(())
            })
        });
        read.map_err(|e: io::Error| e.to_string())?;
        done += batch.iter().map(|piece| piece.bytes.len() as u64).sum::<u64>();
        progress(done, total);
    }
    let digests: Vec<u128> = pieces.iter().map(|piece| piece.digest).collect();
    let mut rest = &digests[..];
    for entry in entries {
        let (of_matrix, others) = rest.split_at((entry.length as usize).div_ceil(PIECE));
        rest = others;
        if digest::of_pieces(of_matrix) != entry.digest {
            return Err(format!(
                "damaged: the digest of matrix {} is another",
                entry.matrix.name
            ));
        }
    }
    Ok(buffers)
}

#[cfg(unix)]
fn read_at(file: &fs_err::File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    file.file().read_exact_at(bytes, offset)
}

/// Never called: without Unix's identities of files there is no key.
#[cfg(not(unix))]
fn read_at(_: &fs_err::File, _: &mut [u8], _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
