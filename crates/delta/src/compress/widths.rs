//! Which widths PrinMix's ranks may have: the set, and how many of it one artifact uses at most.

use std::collections::BTreeSet;

use deltamux_kernels::lowbit::GROUP;

use super::allocate::{Allocation, allocate};
use super::error::CompressError;
use super::matrix::RankItem;
use super::prinmix::WIDTHS;

/// A choice among the widths that kernels read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WidthLimits {
    /// Bits a weight that a rank may have; any rank may also be dropped.
    bits: BTreeSet<u8>,
    /// Distinct ones that are used at most (the papers' `f_max`).
    most: usize,
}

impl Default for WidthLimits {
    fn default() -> Self {
        let bits: BTreeSet<u8> = WIDTHS.iter().map(|&(v, _)| v).filter(|&bits| bits > 0).collect();
        Self { most: bits.len(), bits }
    }
}

impl WidthLimits {
    /// Only these `bits` (0, a dropped rank, may be named, too), and at most `most` of them.
    ///
    /// # Errors
    /// A width that kernels do not read, or no width at all.
    pub fn new(bits: Option<&[u8]>, most: Option<usize>) -> Result<Self, CompressError> {
        let all = Self::default();
        let bits: BTreeSet<u8> = match bits {
            None => all.bits.clone(),
            Some(bits) => bits.iter().copied().filter(|&bits| bits > 0).collect(),
        };
        if let Some(unknown) = bits.iter().find(|bits| !all.bits.contains(bits)) {
            return Err(CompressError::Option(format!(
                "width of {unknown} bits: kernels read 2, 3, 4 and 8 (and 0, a dropped rank)"
            )));
        }
        if bits.is_empty() || most == Some(0) {
            return Err(CompressError::Option(
                "no width is left for any rank: name some of 2, 3, 4 and 8 bits, and allow at least one".to_string(),
            ));
        }
        let most = most.unwrap_or(bits.len()).min(bits.len());
        Ok(Self { bits, most })
    }

    /// Checks a group size: codes share a scale in groups of [`GROUP`], as kernels read them.
    ///
    /// # Errors
    /// Any other size.
    pub fn check_group_size(size: usize) -> Result<(), CompressError> {
        if size == GROUP {
            return Ok(());
        }
        Err(CompressError::Option(format!(
            "group size {size}: artifacts have groups of {GROUP} codes, which the kernels multiply from where they lie; \
             leave --group-size out or set it to {GROUP}"
        )))
    }

    /// The best allocation within `budget`: with fewer widths allowed than there are, that of the best set of them.
    pub(crate) fn allocate(&self, items: &[RankItem], budget: u64) -> Allocation {
        if *self == Self::default() {
            return allocate(items, budget);
        }
        let mut best: Option<Allocation> = None;
        let mut bound = f64::INFINITY;
        for set in subsets(&self.bits, self.most) {
            let limited: Vec<RankItem> = items.iter().map(|item| limit(item, &set)).collect();
            let found = allocate(&limited, budget);
            bound = bound.min(found.bound);
            if best.as_ref().is_none_or(|best| found.error < best.error) {
                best = Some(found);
            }
        }
        // Every allocation that keeps the limit uses one of the sets.
        best.map_or_else(|| allocate(items, 0), |best| Allocation { bound, ..best })
    }
}

impl std::fmt::Display for WidthLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bits: Vec<String> = self.bits.iter().map(u8::to_string).collect();
        write!(f, "{} of {}", self.most, bits.join(","))
    }
}

/// All subsets of `count` elements.
fn subsets(bits: &BTreeSet<u8>, count: usize) -> Vec<BTreeSet<u8>> {
    let bits: Vec<u8> = bits.iter().copied().collect();
    (0..1u32 << bits.len())
        .filter(|mask| mask.count_ones() as usize == count)
        .map(|mask| {
            let chosen = bits.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1);
            chosen.map(|(_, &bits)| bits).collect()
        })
        .collect()
}

/// The item with every choice of another width made as good as dropping the rank, at no cost: the knapsack then drops it.
fn limit(item: &RankItem, bits: &BTreeSet<u8>) -> RankItem {
    let mut item = *item;
    for (choice, (width, _)) in WIDTHS.iter().enumerate().skip(1) {
        if !bits.contains(width) {
            item.errors[choice] = item.errors[0];
            item.costs[choice] = item.costs[0];
        }
    }
    item
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(count: usize) -> Vec<RankItem> {
        (0..count)
            .map(|i| {
                let energy = 100.0 / (i + 1) as f64;
                RankItem {
                    errors: WIDTHS.map(|(bits, _)| energy * 4f64.powi(-i32::from(bits))),
                    costs: WIDTHS.map(|(bits, _)| 10 * u64::from(bits)),
                }
            })
            .collect()
    }

    fn used(allocation: &Allocation) -> BTreeSet<u8> {
        allocation
            .choices
            .iter()
            .map(|&c| WIDTHS[c].0)
            .filter(|&bits| bits > 0)
            .collect()
    }

    #[test]
    fn limits_are_kept_and_cost_error() {
        let items = items(40);
        let free = WidthLimits::default().allocate(&items, 1500);
        assert_eq!(free, allocate(&items, 1500));
        for most in 1..=4 {
            let limited = WidthLimits::new(None, Some(most)).unwrap().allocate(&items, 1500);
            assert!(used(&limited).len() <= most && limited.cost <= 1500);
            assert!(limited.error >= free.error * (1.0 - 1e-12));
            assert!(limited.bound <= limited.error * (1.0 + 1e-12));
        }
        let narrow = WidthLimits::new(Some(&[0, 2, 3]), None).unwrap().allocate(&items, 1500);
        assert!(used(&narrow).is_subset(&[2, 3].into()));
        let wide = WidthLimits::new(Some(&[8]), None).unwrap().allocate(&items, 1500);
        assert_eq!(used(&wide), [8].into());
        assert_eq!(wide.choices.iter().filter(|&&c| c > 0).count(), 18, "1500 of 80 each");
    }

    #[test]
    fn one_width_of_two_is_the_better_one() {
        let items = items(40);
        let error = |bits: &[u8], most| {
            let limits = WidthLimits::new(Some(bits), most).unwrap();
            limits.allocate(&items, 1500).error
        };
        assert_eq!(error(&[2, 8], Some(1)), error(&[2], None).min(error(&[8], None)));
    }

    #[test]
    fn widths_that_kernels_do_not_read_are_refused() {
        let refused = |bits: &[u8], most| WidthLimits::new(Some(bits), most).unwrap_err().to_string();
        assert!(refused(&[2, 5], None).contains("width of 5 bits"));
        assert!(refused(&[0], None).contains("no width is left"));
        assert!(refused(&[2], Some(0)).contains("no width is left"));
        assert!(WidthLimits::check_group_size(128).is_ok());
        assert!(
            WidthLimits::check_group_size(64)
                .unwrap_err()
                .to_string()
                .contains("groups of 128")
        );
    }
}
