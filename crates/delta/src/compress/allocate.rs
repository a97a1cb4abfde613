//! The bits of each rank: a multiple-choice knapsack.
//!
//! Minimise `Σ errors[i][choice(i)]` subject to `Σ costs[i][choice(i)] ≤ budget` (PrinMix, arXiv 2506.11087, section 4,
//! solves it as a 0/1 integer program). Here: Lagrangian bisection finds the multiplier at which the relaxed optimum
//! just fits, a greedy fill spends what is left, and the dual gives a lower bound on every allocation.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The bisection ends when the multiplier is known this closely, relative.
const CLOSE: f64 = 1e-13;

/// One item: the error and the cost of each choice. Choice 0 must be free.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Item<const N: usize> {
    pub errors: [f64; N],
    pub costs: [u64; N],
}

/// A choice for every item.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Allocation {
    pub choices: Vec<usize>,
    /// Sum of the chosen errors.
    pub error: f64,
    /// Sum of the chosen costs.
    pub cost: u64,
    /// No allocation within the budget has a smaller error.
    pub bound: f64,
}

/// Chooses for every item within `budget`.
pub(crate) fn allocate<const N: usize>(items: &[Item<N>], budget: u64) -> Allocation {
    // The dual is a bound at every multiplier; the best one seen counts.
    let mut bound = f64::NEG_INFINITY;
    let mut fits = |multiplier: f64| {
        let (cost, value) = relaxed(items, multiplier);
        bound = bound.max(value - multiplier * budget as f64);
        cost <= budget
    };
    let mut low = 0.0; // multiplier whose choices may not fit
    let mut high = dearest(items);
    if fits(low) {
        high = low;
    } else {
        fits(high);
        while high - low > CLOSE * high {
            let middle = 0.5 * (low + high);
            if fits(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
    }
    let mut choices = pick(items, high);
    fill(items, budget, &mut choices);
    let error = items.iter().zip(&choices).map(|(item, &c)| item.errors[c]).sum();
    Allocation {
        error,
        cost: cost(items, &choices),
        bound: bound.clamp(0.0, f64::INFINITY),
        choices,
    }
}

/// A multiplier at which no choice is worth its cost.
fn dearest<const N: usize>(items: &[Item<N>]) -> f64 {
    let rates = items.iter().flat_map(|item| {
        let priced = item.errors.iter().zip(&item.costs).filter(|&(_, &cost)| cost > 0);
        priced.map(|(error, &cost)| (item.errors[0] - error) / cost as f64)
    });
    rates.fold(0.0, f64::max) * (1.0 + 1e-9)
}

/// Cost and value (`error + multiplier · cost`) of the choices that minimise the value; the cheaper one on a tie.
fn relaxed<const N: usize>(items: &[Item<N>], multiplier: f64) -> (u64, f64) {
    let (mut total_cost, mut total_value) = (0, 0.0);
    for Item { errors, costs } in items {
        let (mut cost, mut least) = (costs[0], errors[0] + multiplier * costs[0] as f64);
        for (&c, &error) in costs.iter().zip(errors).skip(1) {
            let value = error + multiplier * c as f64;
            if value < least || (value == least && c < cost) {
                (cost, least) = (c, value);
            }
        }
        total_cost += cost;
        total_value += least;
    }
    (total_cost, total_value)
}

/// The choice of each item that minimises `error + multiplier · cost`; the cheaper one on a tie.
fn pick<const N: usize>(items: &[Item<N>], multiplier: f64) -> Vec<usize> {
    items
        .iter()
        .map(|item| {
            let value = |c: usize| item.errors[c] + multiplier * item.costs[c] as f64;
            (1..N).fold(0, |best, c| match value(c).total_cmp(&value(best)) {
                Ordering::Less => c,
                Ordering::Equal if item.costs[c] < item.costs[best] => c,
                _ => best,
            })
        })
        .collect()
}

fn cost<const N: usize>(items: &[Item<N>], choices: &[usize]) -> u64 {
    items.iter().zip(choices).map(|(item, &c)| item.costs[c]).sum()
}

/// An upgrade of one item: error saved for each unit of cost.
struct Upgrade {
    rate: f64,
    item: usize,
    from: usize,
    to: usize,
}

impl PartialEq for Upgrade {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Upgrade {}
impl PartialOrd for Upgrade {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Upgrade {
    fn cmp(&self, other: &Self) -> Ordering {
        // Earlier items first on a tie, so that the result is one and the same everywhere.
        self.rate
            .total_cmp(&other.rate)
            .then_with(|| (other.item, other.to).cmp(&(self.item, self.to)))
    }
}

/// Spends what is left where it saves most for each unit of cost.
fn fill<const N: usize>(items: &[Item<N>], budget: u64, choices: &mut [usize]) {
    let mut left = budget - cost(items, choices).min(budget);
    let mut heap = BinaryHeap::new();
    let push = |heap: &mut BinaryHeap<Upgrade>, item: usize, from: usize, left: u64| {
        let Item { errors, costs } = &items[item];
        for to in 0..N {
            let saved = errors[from] - errors[to];
            if costs[to] > costs[from] && costs[to] - costs[from] <= left && saved > 0.0 {
                let rate = saved / (costs[to] - costs[from]) as f64;
                heap.push(Upgrade { rate, item, from, to });
            }
        }
    };
    for (item, &choice) in choices.iter().enumerate() {
        push(&mut heap, item, choice, left);
    }
    while let Some(Upgrade { item, from, to, .. }) = heap.pop() {
        if choices[item] != from {
            continue; // stale: the item was upgraded, and its new upgrades are in the heap
        }
        let price = items[item].costs[to] - items[item].costs[from];
        if price <= left {
            left -= price;
            choices[item] = to;
            push(&mut heap, item, to, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exhaustive(items: &[Item<4>], budget: u64) -> f64 {
        let mut best = f64::INFINITY;
        for code in 0..4usize.pow(items.len() as u32) {
            let (mut error, mut cost, mut rest) = (0.0, 0, code);
            for item in items {
                error += item.errors[rest % 4];
                cost += item.costs[rest % 4];
                rest /= 4;
            }
            if cost <= budget {
                best = best.min(error);
            }
        }
        best
    }

    fn item() -> impl Strategy<Value = Item<4>> {
        (
            proptest::array::uniform4(0.0..10.0f64),
            proptest::array::uniform3(1..40u64),
        )
            .prop_map(|(errors, costs)| Item {
                errors,
                costs: [0, costs[0], costs[1], costs[2]],
            })
    }

    proptest! {
        #[test]
        fn small_instances_lie_between_the_bound_and_the_optimum_plus_one_item(
            items in proptest::collection::vec(item(), 1..7),
            budget in 0..150u64,
        ) {
            let found = allocate(&items, budget);
            let best = exhaustive(&items, budget);
            prop_assert!(found.cost <= budget);
            prop_assert!(found.bound <= best + 1e-9, "bound {} optimum {best}", found.bound);
            prop_assert!(found.error >= best - 1e-9);
            // The relaxation splits at most one item, so rounding it costs at most that item's whole error.
            let largest = items.iter().flat_map(|i| i.errors).fold(0.0, f64::max);
            prop_assert!(found.error <= best + largest + 1e-9, "found {} optimum {best}", found.error);
        }

        #[test]
        fn a_budget_for_everything_takes_the_least_error_of_each(items in proptest::collection::vec(item(), 1..20)) {
            let found = allocate(&items, 10_000);
            let least: f64 = items.iter().map(|i| i.errors.into_iter().fold(f64::INFINITY, f64::min)).sum();
            prop_assert_eq!(found.error, least);
        }
    }

    #[test]
    fn errors_that_fall_as_quantised_ranks_do_are_close_to_exhaustive_search() {
        // Errors fall by a factor of four for each bit, as those of quantised ranks do.
        let items: Vec<Item<4>> = (0..8)
            .map(|i| {
                let energy = 100.0 / f64::from(i + 1).powi(2);
                Item {
                    errors: [energy, energy / 16.0, energy / 64.0, energy / 256.0],
                    costs: [0, 2, 3, 4],
                }
            })
            .collect();
        for budget in 0..=32 {
            let found = allocate(&items, budget);
            let best = exhaustive(&items, budget);
            assert!(
                found.error <= best * 1.35,
                "budget {budget}: {} against {best}",
                found.error
            );
            assert!(found.bound <= best * (1.0 + 1e-12));
        }
    }

    #[test]
    fn no_budget_drops_everything() {
        let items = [Item {
            errors: [1.0, 0.5],
            costs: [0, 10],
        }; 3];
        let found = allocate(&items, 9);
        assert_eq!(found.choices, [0, 0, 0]);
        assert_eq!(found.cost, 0);
    }
}
