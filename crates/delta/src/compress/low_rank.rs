//! The low-rank baseline: as many ranks of f16 factors as the budget holds.

use super::account::rank_bits;

/// Ranks that fit in `budget` bits.
pub(crate) fn ranks(inputs: usize, outputs: usize, budget: u64) -> usize {
    (budget / rank_bits(inputs, outputs, 16)) as usize
}
