//! Who of the waiting requests starts to run.
//!
//! First come, first served inside a model. Between models, the one with the fewest running sequences goes first, so
//! that a tenant with a thousand requests does not keep out another one's single request. A request that has waited
//! for longer than the aging bound goes before all of that, oldest first. The chosen request is never overtaken for
//! want of pages or slots; it is overtaken while its variant is not in memory.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::{Availability, ModelKey, Plan, Scheduler, Sequence, SequenceId};
use crate::kv::pages_for;

impl Scheduler {
    /// Admits while there are slots, pages and tokens of the budget.
    pub(super) fn admit(
        &mut self,
        now: Duration,
        mut budget: usize,
        availability: impl Fn(ModelKey) -> Availability,
        plan: &mut Plan,
    ) {
        while budget > 0 && self.running.len() < self.limits.max_seqs {
            let Some(id) = self.pick(now, &availability) else { break };
            if !self.has_pages_for(&self.waiting[&id]) {
                break;
            }
            let Some(mut sequence) = self.waiting.remove(&id) else {
                break;
            };
            let wanted = sequence.remaining().min(budget);
            if self.limits.exclusive && self.running.is_empty() && !sequence.started {
                self.turn = Some((sequence.model, now));
            }
            sequence.started = true;
            self.running.insert(id, sequence);
            let granted = self.grow(id, wanted, &mut plan.preempted);
            budget -= granted;
            plan.admitted.push(id);
            self.push_chunk(id, granted, plan);
        }
    }

    /// Whether all known tokens fit, beside what the running sequences still need for theirs and one page of growth
    /// for each of them (otherwise a preempted sequence would come back only to be preempted again).
    fn has_pages_for(&self, sequence: &Sequence) -> bool {
        let promised: usize = self.running.values().map(|s| s.missing_pages() + 1).sum();
        self.pool.free() >= promised + pages_for(sequence.length)
    }

    fn pick(&self, now: Duration, availability: &impl Fn(ModelKey) -> Availability) -> Option<SequenceId> {
        if self.limits.exclusive {
            self.pick_exclusive(now, availability)
        } else {
            self.pick_shared(now, availability)
        }
    }

    fn pick_shared(&self, now: Duration, availability: &impl Fn(ModelKey) -> Availability) -> Option<SequenceId> {
        let mut running: HashMap<ModelKey, usize> = HashMap::new();
        for sequence in self.running.values() {
            *running.entry(sequence.model).or_default() += 1;
        }
        let mut closed: HashSet<ModelKey> = HashSet::new();
        let mut best: Option<(usize, SequenceId)> = None;
        // Oldest first: the first admissible request of a model is the model's candidate.
        for (&id, sequence) in &self.waiting {
            if closed.contains(&sequence.model) || !admissible(sequence, availability) {
                continue;
            }
            if self.is_aged(sequence, now) {
                // Aged requests are older than all others, so the first one that is met is the oldest.
                return Some(id);
            }
            closed.insert(sequence.model);
            let share = running.get(&sequence.model).copied().unwrap_or(0);
            if best.is_none_or(|(least, _)| share < least) {
                best = Some((share, id));
            }
        }
        best.map(|(_, id)| id)
    }

    /// One model a batch: the batch takes in what waited for its model when its turn began, and later arrivals as
    /// long as no other model's request is aged; then it runs out, and the oldest waiting request's model is next.
    fn pick_exclusive(&self, now: Duration, availability: &impl Fn(ModelKey) -> Availability) -> Option<SequenceId> {
        // A sequence that was preempted still belongs to the batch.
        let started = self.waiting.values().find(|s| s.started);
        let Some(model) = self.running.values().next().or(started).map(|s| s.model) else {
            return self
                .waiting
                .iter()
                .find(|(_, s)| admissible(s, availability))
                .map(|(&id, _)| id);
        };
        let since = self
            .turn
            .filter(|&(turn, _)| turn == model)
            .map_or(Duration::ZERO, |(_, since)| since);
        let other_is_aged = self.waiting.values().any(|s| s.model != model && self.is_aged(s, now));
        self.waiting
            .iter()
            .find(|(_, s)| {
                s.model == model && (s.started || s.arrived <= since || !other_is_aged) && admissible(s, availability)
            })
            .map(|(&id, _)| id)
    }
}

fn admissible(sequence: &Sequence, availability: &impl Fn(ModelKey) -> Availability) -> bool {
    sequence.started
        || match availability(sequence.model) {
            Availability::Ready => true,
            Availability::ReadyFor { arrived_by } => sequence.arrived <= arrived_by,
            Availability::Absent => false,
        }
}
