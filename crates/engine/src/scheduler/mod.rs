//! What runs in the next step: a pure function of the queue, the running set, the free pages and the time.
//!
//! * Decodes come first, one token each; what is left of the token budget goes to prefill, cut into chunks.
//! * Admission is in [`admission`]: first come, first served with an aging bound, fair between variants.
//! * Pages are given oldest first. When they run out, the youngest running sequence gives all of its pages back and
//!   waits to be recomputed; the oldest one therefore always gets on, and every sequence is the oldest one day.
//!
//! Nothing here reads a clock, waits or computes: time comes in as a duration since the engine's start.

mod admission;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use deltamux_model::backend::PAGE_TOKENS;

use crate::kv::{PagePool, pages_for};

/// A request inside the engine. Numbered in the order of arrival: a smaller number is older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SequenceId(pub(crate) u64);

/// One generation of one model (the base or a variant): a name that is replaced in place gets a new key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ModelKey(pub(crate) u64);

/// What bounds a step.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Tokens of one step at most.
    pub(crate) max_batch_tokens: usize,
    /// Running sequences at most.
    pub(crate) max_seqs: usize,
    /// A request that has waited this long goes before fairness and before requests that came after it.
    pub(crate) aging: Duration,
    /// Whether a batch holds one model only (swap mode).
    pub(crate) exclusive: bool,
}

/// Whether a model's weights are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Availability {
    /// In memory.
    Ready,
    /// In memory, but to make room soon: only requests that arrived by this time may still start.
    ReadyFor {
        /// Latest arrival.
        arrived_by: Duration,
    },
    /// Not in memory.
    Absent,
}

/// Tokens of one sequence to compute in this step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedChunk {
    /// Whose.
    pub(crate) id: SequenceId,
    /// Position of the first token.
    pub(crate) start: usize,
    /// Number of tokens.
    pub(crate) len: usize,
    /// Whether the chunk reaches the sequence's last known token, so that the next one can be sampled.
    pub(crate) samples: bool,
}

/// One step.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// What to compute, oldest sequence first.
    pub(crate) chunks: Vec<PlannedChunk>,
    /// Sequences that start to run (again) in this step.
    pub(crate) admitted: Vec<SequenceId>,
    /// Sequences that gave their pages back and wait again.
    pub(crate) preempted: Vec<SequenceId>,
}

/// A model that waiting requests want.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Which.
    pub(crate) model: ModelKey,
    /// Arrival of its oldest waiting request.
    pub(crate) arrived: Duration,
    /// Whether that request has waited for longer than the aging bound.
    pub(crate) aged: bool,
}

/// A sequence, as far as scheduling goes.
#[derive(Debug)]
struct Sequence {
    model: ModelKey,
    arrived: Duration,
    /// Known tokens: prompt and completion so far.
    length: usize,
    /// Tokens whose keys and values are in the pages.
    computed: usize,
    pages: Vec<u32>,
    /// Whether it has run before (and holds its variant), so that only pages and slots can keep it waiting.
    started: bool,
}

impl Sequence {
    fn remaining(&self) -> usize {
        self.length - self.computed
    }

    fn missing_pages(&self) -> usize {
        pages_for(self.length).saturating_sub(self.pages.len())
    }
}

/// The queue, the running set and the pages.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    pool: PagePool,
    waiting: BTreeMap<SequenceId, Sequence>,
    running: BTreeMap<SequenceId, Sequence>,
    /// Exclusive mode: the model whose batch runs, and since when.
    turn: Option<(ModelKey, Duration)>,
}

impl Scheduler {
    /// An empty scheduler over `pages` KV pages.
    pub(crate) fn new(mut limits: Limits, pages: usize) -> Self {
        limits.max_batch_tokens = limits.max_batch_tokens.max(1);
        // Every running sequence may need one token of the budget to decode.
        limits.max_seqs = limits.max_seqs.clamp(1, limits.max_batch_tokens);
        Self {
            limits,
            pool: PagePool::new(pages),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            turn: None,
        }
    }

    /// Queues a sequence of `length` known tokens.
    pub(crate) fn add(&mut self, id: SequenceId, model: ModelKey, length: usize, now: Duration) {
        let sequence = Sequence {
            model,
            arrived: now,
            length,
            computed: 0,
            pages: Vec::new(),
            started: false,
        };
        let previous = self.waiting.insert(id, sequence);
        assert!(previous.is_none(), "sequence {} is queued twice", id.0);
    }

    /// Takes a finished, failed or cancelled sequence out and frees its pages.
    pub(crate) fn remove(&mut self, id: SequenceId) {
        if let Some(sequence) = self.running.remove(&id).or_else(|| self.waiting.remove(&id)) {
            sequence.pages.into_iter().for_each(|page| self.pool.release(page));
        }
    }

    /// The pages of a running sequence, in order.
    pub(crate) fn pages(&self, id: SequenceId) -> &[u32] {
        self.running.get(&id).map_or(&[], |sequence| &sequence.pages)
    }

    /// `tokens` further positions of a running sequence are in its pages.
    pub(crate) fn computed(&mut self, id: SequenceId, tokens: usize) {
        if let Some(sequence) = self.running.get_mut(&id) {
            sequence.computed += tokens;
            debug_assert!(sequence.computed <= sequence.length);
        }
    }

    /// A running sequence has one more token, which the next step has to compute.
    pub(crate) fn push_token(&mut self, id: SequenceId) {
        if let Some(sequence) = self.running.get_mut(&id) {
            sequence.length += 1;
        }
    }

    /// Number of running sequences.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Number of waiting sequences.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Pages in use.
    pub(crate) fn pages_used(&self) -> usize {
        self.pool.used()
    }

    /// The models that waiting requests want, oldest request first.
    pub(crate) fn demand(&self, now: Duration) -> Vec<Demand> {
        let mut demand: Vec<Demand> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for sequence in self.waiting.values().filter(|s| !s.started) {
            if seen.insert(sequence.model) {
                demand.push(Demand {
                    model: sequence.model,
                    arrived: sequence.arrived,
                    aged: self.is_aged(sequence, now),
                });
            }
        }
        demand
    }

    fn is_aged(&self, sequence: &Sequence, now: Duration) -> bool {
        now.saturating_sub(sequence.arrived) >= self.limits.aging
    }

    /// The next step. Pages are taken at once; progress is reported back with [`Scheduler::computed`].
    pub(crate) fn plan(&mut self, now: Duration, availability: impl Fn(ModelKey) -> Availability) -> Plan {
        let mut plan = Plan::default();
        // Decodes first: their tokens are set aside before prefill gets any.
        let decodes = self.running.values().filter(|s| s.remaining() == 1).count();
        let mut prefill_budget = self.limits.max_batch_tokens - decodes;
        let mut pages_ran_out = false;
        let ids: Vec<SequenceId> = self.running.keys().copied().collect();
        for id in ids {
            // An older sequence may have preempted this one a moment ago.
            let Some(sequence) = self.running.get(&id) else {
                continue;
            };
            let remaining = sequence.remaining();
            let wanted = if remaining == 1 {
                1
            } else {
                remaining.min(prefill_budget)
            };
            let granted = self.grow(id, wanted, &mut plan.preempted);
            pages_ran_out |= granted < wanted;
            if remaining > 1 {
                prefill_budget -= granted;
            }
            self.push_chunk(id, granted, &mut plan);
        }
        if !pages_ran_out && plan.preempted.is_empty() {
            self.admit(now, prefill_budget, availability, &mut plan);
        }
        plan
    }

    fn push_chunk(&self, id: SequenceId, len: usize, plan: &mut Plan) {
        if let Some(sequence) = self.running.get(&id).filter(|_| len > 0) {
            plan.chunks.push(PlannedChunk {
                id,
                start: sequence.computed,
                len,
                samples: sequence.computed + len == sequence.length,
            });
        }
    }

    /// Gets pages for `wanted` further tokens of a running sequence, preempting younger ones while none is free.
    /// Returns the tokens for which there are pages.
    fn grow(&mut self, id: SequenceId, wanted: usize, preempted: &mut Vec<SequenceId>) -> usize {
        loop {
            let Some(sequence) = self.running.get_mut(&id) else {
                return 0;
            };
            let needed = pages_for(sequence.computed + wanted);
            while sequence.pages.len() < needed {
                match self.pool.allocate() {
                    Some(page) => sequence.pages.push(page),
                    None => break,
                }
            }
            if sequence.pages.len() >= needed {
                return wanted;
            }
            match self
                .running
                .last_key_value()
                .map(|(&youngest, _)| youngest)
                .filter(|&youngest| youngest > id)
            {
                Some(youngest) => {
                    self.preempt(youngest);
                    preempted.push(youngest);
                }
                // The youngest keeps what it has and stalls until an older one finishes.
                None => break,
            }
        }
        let sequence = &self.running[&id];
        (sequence.pages.len() * PAGE_TOKENS - sequence.computed).min(wanted)
    }

    /// Back to the queue: pages are freed and all tokens will be computed again, completion so far included.
    fn preempt(&mut self, id: SequenceId) {
        if let Some(mut sequence) = self.running.remove(&id) {
            sequence.pages.drain(..).for_each(|page| self.pool.release(page));
            sequence.computed = 0;
            self.waiting.insert(id, sequence);
        }
    }
}
