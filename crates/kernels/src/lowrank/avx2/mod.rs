//! The integer kernels on AVX2.
//!
//! V multiplies codes with the bytes of x by `maddubs`, whose sums of two products of at most 15 · 128 are collected in
//! 16 bits over a group. U lays the packed words of two ranks side by side, so that a shift and a mask leave both
//! ranks' codes of one output as the two halves of `madd`; for codes of 3 and 2 bits, whose coefficients are bytes, it
//! lays the packed bytes side by side for `maddubs`, and collects a block's sums in 16 bits.

mod dots;
mod mix;
mod quantise;
mod unpack;

pub(super) use dots::{DotSums, dots, sum_each};
pub(super) use mix::{fill, mix};
pub(super) use quantise::quantise;
pub(super) use unpack::{bytes, unpack, unpack_tail};
