//! Digests of packed matrices: XXH3 with 128 bits over pieces of a matrix, then over the pieces' digests, so that all
//! threads can share one matrix.
//!
//! They find damage, not forgery: whoever may write the cache decides what the model computes, as whoever may write the
//! model's files does. A cryptographic digest would find the same damage, more slowly.

use rayon::prelude::*;
use twox_hash::XxHash3_128;

/// Bytes of a piece.
pub const PIECE: usize = 1 << 20;

/// Digest of one piece.
pub fn of_piece(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}

/// Digest, in hex, of a matrix whose pieces have these digests.
pub fn of_pieces(pieces: &[u128]) -> String {
    let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_le_bytes()).collect();
    format!("{:032x}", XxHash3_128::oneshot(&bytes))
}

/// Digest of a whole matrix, by all threads of the pool it is called in.
pub fn of(bytes: &[u8]) -> String {
    let pieces: Vec<u128> = bytes.par_chunks(PIECE).map(of_piece).collect();
    of_pieces(&pieces)
}
