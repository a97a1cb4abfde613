//! One matrix: from its difference to packed factors, in the two steps between which the budget is shared out.

use super::account::{self, overhead_bits};
use super::allocate::{Allocation, Item};
use super::factor::{Factors, factor};
use super::linalg::{LinalgError, Matrix};
use super::options::Method;
use super::quantise::{Approximation, InputMoments, quantise, store_f16};
use super::{WidthLimits, best, bitdelta, delta_come, low_rank, prinmix};

/// What a rank may become, the dropped rank included.
pub(crate) const CHOICES: usize = 8;

/// Bits of a rank's row of V and of U for each choice; the first is (0, 0), a dropped rank.
pub(crate) type Choices = [(u8, u8); CHOICES];

/// A rank in the knapsack.
pub(crate) type RankItem = Item<CHOICES>;

/// The ranks as items whose every choice leaves all of a rank's energy, as dropping it does. Errors are divided by
/// `scale`.
pub(crate) fn dropped(factors: &Factors, costs: [u64; CHOICES], scale: f64) -> Vec<RankItem> {
    let item = |&energy: &f64| RankItem {
        errors: [energy / scale; CHOICES],
        costs,
    };
    factors.energies.iter().map(item).collect()
}

/// A matrix that shares in a common budget may take this many times the ranks that its own budget holds at the
/// smallest width.
const CANDIDATES: usize = 2;

/// A matrix's factors and what each of its ranks may become.
#[derive(Debug)]
pub(crate) struct Candidates {
    method: Method,
    pub factors: Factors,
    pub kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// Widths are to be chosen.
    Open,
    /// Widths follow from the rank order.
    Fixed(Vec<u8>),
    /// f16, no codes.
    Halves,
    /// Signs: there are no factors.
    Signs,
}

/// Bits for the ranks of a matrix with its own budget, and those by which what it takes besides is over the budget: one
/// of the two is 0.
pub(crate) fn own_budget(name: &str, inputs: usize, outputs: usize, ratio: f64) -> (u64, u64) {
    let budget = account::budget_bits(inputs, outputs, ratio);
    let overhead = overhead_bits(name, (budget / 8) as usize);
    (budget.saturating_sub(overhead), overhead.saturating_sub(budget))
}

/// Ranks of which a matrix with its own `budget` in bits may keep some, when budgets are shared out.
pub(crate) fn candidate_ranks(inputs: usize, outputs: usize, budget: u64) -> usize {
    let smallest = account::rank_bits(inputs, outputs, 2);
    CANDIDATES * (budget / smallest) as usize + 8
}

/// Factors `delta`; `budget` is the matrix's own in bits.
pub(crate) fn prepare(
    delta: &Matrix<f32>,
    moments: &InputMoments,
    method: Method,
    budget: u64,
) -> Result<Candidates, LinalgError> {
    let (outputs, inputs) = (delta.rows, delta.cols);
    if method == Method::Bitdelta {
        return Ok(Candidates {
            method,
            factors: Factors::none(inputs, outputs),
            kind: Kind::Signs,
        });
    }
    let full = outputs.min(inputs);
    let (keep, fixed) = match method {
        Method::Prinmix => (candidate_ranks(inputs, outputs, budget), None),
        Method::Best => (best::candidate_ranks(inputs, outputs, budget), None),
        Method::DeltaCome => {
            let widths = delta_come::widths(inputs, outputs, full, budget);
            (widths.len(), Some(widths))
        }
        Method::LowRank => (low_rank::ranks(inputs, outputs, budget), None),
        Method::Bitdelta => (0, None),
    };
    let factors = factor(delta, &moments.c, method.norm(), method.order(), keep)?;
    let in_halves = factors.s.len() as u64 * account::rank_bits(inputs, outputs, 16);
    let kind = match (method, fixed) {
        (Method::LowRank, _) => Kind::Halves,
        // Few ranks and nothing else, as adapters leave: f16 keeps them and costs no more than is there.
        _ if factors.exact && in_halves <= budget => Kind::Halves,
        (_, Some(mut widths)) => {
            widths.truncate(factors.s.len());
            Kind::Fixed(widths)
        }
        (_, None) => Kind::Open,
    };
    Ok(Candidates { method, factors, kind })
}

impl Candidates {
    /// Bits of the ranks where nothing is left to choose.
    pub fn settled_bits(&self) -> u64 {
        let (inputs, outputs) = (self.factors.v.cols, self.factors.u.cols);
        let rank = |&bits: &u8| account::rank_bits(inputs, outputs, bits);
        match &self.kind {
            Kind::Open | Kind::Signs => 0,
            Kind::Fixed(widths) => widths.iter().map(rank).sum(),
            Kind::Halves => self.factors.s.len() as u64 * rank(&16),
        }
    }

    /// The ranks as items of the knapsack, errors divided by `scale`; none when widths are not open.
    pub fn items(&self, moments: &InputMoments, scale: f64) -> Vec<RankItem> {
        match (&self.kind, self.method) {
            (Kind::Open, Method::Best) => best::items(&self.factors, moments, scale),
            (Kind::Open, _) => prinmix::items(&self.factors, moments, scale),
            (Kind::Fixed(_) | Kind::Halves | Kind::Signs, _) => Vec::new(),
        }
    }

    /// Chooses widths within the matrix's own `budget`, if they are open; errors are divided by `scale`.
    pub fn allocate(
        &self,
        moments: &InputMoments,
        scale: f64,
        budget: u64,
        widths: &WidthLimits,
    ) -> Option<Allocation> {
        match &self.kind {
            Kind::Open => Some(widths.allocate(&self.items(moments, scale), budget)),
            Kind::Fixed(_) | Kind::Halves | Kind::Signs => None,
        }
    }

    /// Quantises with the given choices (indices into the method's widths), which only open widths need.
    pub fn quantise(
        &self,
        delta: &Matrix<f32>,
        moments: &InputMoments,
        choices: &[usize],
    ) -> Result<Approximation, LinalgError> {
        match (&self.kind, self.method) {
            (Kind::Halves, _) => Ok(store_f16(delta, &self.factors)),
            (Kind::Signs, _) => Ok(bitdelta::quantise(delta, &moments.c)),
            (Kind::Fixed(widths), _) => {
                let chosen: Vec<_> = widths.iter().copied().enumerate().collect();
                quantise(delta, moments, &self.factors, &chosen, false)
            }
            (Kind::Open, Method::Best) => best::quantise(delta, moments, &self.factors, choices),
            (Kind::Open, _) => {
                let widths = choices.iter().map(|&c| prinmix::WIDTHS[c].0).enumerate();
                let chosen: Vec<_> = widths.filter(|&(_, bits)| bits > 0).collect();
                quantise(delta, moments, &self.factors, &chosen, true)
            }
        }
    }
}
