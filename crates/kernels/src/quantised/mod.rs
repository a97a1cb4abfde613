//! Weight matrices in 8 or 4 bits, activations in 8 bits, products in integers.
//!
//! Both operands of a product are cut into groups of [`GROUP`] inputs, each with a scale of its own. Within a group the
//! dot product of the codes is an integer and therefore exact, in whatever order an instruction set adds it up; the
//! groups' results are converted to f32 and added by one fused multiply-add each, in order. An output element hence has
//! the same bits on every instruction set, however many rows are computed together.
//!
//! # Weights
//! * 8 bits: `w = scale · code`, code in −127 … 127, scale in bf16 (the whole range of f32, so that no matrix of small
//!   weights underflows). 8.5 bits a weight.
//! * 4 bits: `w = unit · scale · (code − zero / 16)`, code in 0 … 15, scale and zero in 0 … 255, one f32 unit for each
//!   output. 4.5 bits a weight, like a group with an f16 scale alone, but the levels may lie around any centre: the
//!   8-bit scales are those of the k-quants of llama.cpp, without their super-groups of 256 inputs, which would divide
//!   neither 576 nor 896.
//!
//! # Layout
//! Sixteen outputs form a panel, 64 inputs (two groups) of a panel form a block; both are padded with codes that stand
//! for 0. A panel is a sequence of bytes in the order in which a product reads them:
//!
//! | part | 8 bits | 4 bits |
//! | --- | --- | --- |
//! | head | none | 16 units, f32 |
//! | for each block: scales | 2 × 16 bf16 | 2 × (16 scales, 16 zeros), u8 |
//! | for each block: codes | 16 chunks | 8 chunks |
//!
//! A chunk is 64 bytes, four for each output: of 8 bits those are the codes (plus 128) of four consecutive inputs; of
//! 4 bits the low halves are the codes of four inputs, the high halves those of the next four. All parts are multiples
//! of 64 bytes. Numbers are little-endian.
//!
//! # Special values
//! A row of activations with an infinity or NaN in a group has NaN in all its outputs, and so has a weight row with one
//! in all its products. Groups of activations all below 2⁻¹²⁰ count as 0.

mod encode;
mod group;
mod layout;
mod matrix;
mod rows;
mod tile;

pub(crate) use layout::PANEL;
pub use layout::{Bits, GROUP};
pub use matrix::QuantisedMatrix;
pub use rows::QuantisedRows;

#[cfg(test)]
mod tests;
