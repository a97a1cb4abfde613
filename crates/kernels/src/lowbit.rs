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
//! A weight is `(code − zero) · scale`, with one f16 scale and one `bits`-wide zero point a group.

/// Weights that share one scale and one zero point.
pub const GROUP: usize = 128;

/// The widths a rank may have; 0 (dropped) is not stored.
pub const WIDTHS: [u8; 4] = [8, 4, 3, 2];

/// Number of groups of a row of `len` weights.
pub const fn groups(len: usize) -> usize {
    len.div_ceil(GROUP)
}

/// Bytes of the codes of one row of `len` weights at `bits`.
pub const fn row_bytes(len: usize, bits: u8) -> usize {
    (len / GROUP * GROUP + (len % GROUP).next_multiple_of(8)) * bits as usize / 8
}
