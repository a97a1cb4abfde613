//! Delta-CoMe (NeurIPS 2024): fixed widths by the order of the singular values, 8 + 3 + 2 bits.
//!
//! The release stores 2 ranks at 8 bits, 32 at 3 and the rest at 2 for 4096-wide matrices; counts are scaled to each
//! matrix's own budget here, by the shares of the budget that those widths take.

use super::account::rank_bits;

/// Share of the budget for ranks of 8 bits; at least one rank.
const SHARE_8: f64 = 0.02;
/// Share of the rest for ranks of 3 bits.
const SHARE_3: f64 = 0.55;

/// Bits of each rank in order of falling singular value, within `budget` bits.
pub(crate) fn widths(inputs: usize, outputs: usize, ranks: usize, budget: u64) -> Vec<u8> {
    let cost = |bits: u8| rank_bits(inputs, outputs, bits);
    let mut left = budget;
    let mut widths = Vec::new();
    let mut take = |bits: u8, count: u64| {
        let count = count.min(left / cost(bits));
        left -= count * cost(bits);
        widths.extend(std::iter::repeat_n(bits, count as usize));
        left
    };
    let left = take(8, ((budget as f64 * SHARE_8) as u64 / cost(8)).max(1));
    let _ = take(3, (left as f64 * SHARE_3) as u64 / cost(3));
    let _ = take(2, u64::MAX);
    widths.truncate(ranks);
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_the_budget_and_never_exceed_it() {
        for (inputs, outputs) in [(576, 576), (576, 192), (1536, 576)] {
            for ratio in [1.0 / 8.0, 1.0 / 16.0, 1.0 / 32.0, 1.0 / 500.0] {
                let budget = (inputs as f64 * outputs as f64 * 16.0 * ratio) as u64;
                let widths = widths(inputs, outputs, 10_000, budget);
                let cost: u64 = widths.iter().map(|&b| rank_bits(inputs, outputs, b)).sum();
                assert!(cost <= budget);
                assert!(widths.is_sorted_by(|a, b| a >= b));
                assert!(budget - cost < rank_bits(inputs, outputs, 2));
            }
        }
    }

    #[test]
    fn the_split_at_a_sixteenth_of_a_square_projection() {
        let widths = widths(576, 576, 576, 576 * 576);
        let count = |bits| widths.iter().filter(|&&b| b == bits).count();
        assert_eq!((count(8), count(3), count(2)), (1, 48, 58));
    }
}
