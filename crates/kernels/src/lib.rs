//! Packed matrices and the arithmetic on them; no I/O, no async.
//!
//! **Batch invariance.** Every output element is reduced over `k` in one fixed order that depends on its position
//! only: never on the number of rows in the call, on the number of threads or on the instruction set. A product
//! computed for one row alone is therefore bit-identical to the same row computed among a thousand others.

#[cfg(target_endian = "big")]
compile_error!("packed matrices and artifacts are read in place, as little-endian numbers");

pub mod attention;
mod bytes;
pub mod isa;
mod lanes;
pub mod limits;
pub mod lowbit;
pub mod lowrank;
pub mod ops;
pub mod packed;
mod placement;
pub mod quantised;
mod scratch;
pub mod signs;
pub mod threads;
mod vector;

pub use bytes::{ALIGNMENT, AlignedBytes, Bytes};
pub use lowrank::LowRankDelta;
pub use packed::{PackedMatrix, Product, multiply};
pub use quantised::{Bits, QuantisedMatrix, QuantisedRows};
pub use signs::SignDelta;
pub use threads::Threads;
