//! Scheduler and residency together, without threads or models: nobody starves whatever the load.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;

use crate::registry::BASE;
use crate::residency::{Lease, Residency};
use crate::scheduler::{Availability, Limits, ModelKey, Scheduler, SequenceId};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The step thread's loop with a loader that takes some steps; one step is one millisecond.
struct Machine {
    scheduler: Scheduler,
    residency: Residency<()>,
    exclusive: bool,
    load_steps: u64,
    loading: Option<(ModelKey, u64)>,
    leases: HashMap<SequenceId, Lease<()>>,
    left: HashMap<SequenceId, (ModelKey, usize)>,
    started: HashMap<SequenceId, u64>,
    step: u64,
}

impl Machine {
    fn new(limits: Limits, pages: usize, budget: u64, sizes: &[u64], load_steps: u64) -> Self {
        let mut residency = Residency::new(budget);
        for (i, &bytes) in sizes.iter().enumerate() {
            residency.register(ModelKey(i as u64 + 1), bytes);
        }
        let exclusive = limits.exclusive;
        if exclusive {
            residency.register(BASE, sizes.iter().copied().max().unwrap_or(1));
        }
        Self {
            scheduler: Scheduler::new(limits, pages),
            residency,
            exclusive,
            load_steps,
            loading: None,
            leases: HashMap::new(),
            left: HashMap::new(),
            started: HashMap::new(),
            step: 0,
        }
    }

    fn add(&mut self, id: u64, model: ModelKey, prompt: usize, output: usize) {
        let id = SequenceId(id);
        self.scheduler.add(id, model, prompt, ms(self.step));
        self.left.insert(id, (model, output));
    }

    fn run_step(&mut self) {
        let now = ms(self.step);
        if let Some((key, _)) = self.loading.filter(|&(_, done)| done <= self.step) {
            self.residency.loaded(key, (), now);
            self.loading = None;
        }
        let (residency, exclusive) = (&self.residency, self.exclusive);
        let plan = self.scheduler.plan(now, |key| match key {
            BASE if !exclusive => Availability::Ready,
            _ => residency.availability(key),
        });
        for id in &plan.admitted {
            if self.started.contains_key(id) {
                continue;
            }
            self.started.insert(*id, self.step);
            let (model, _) = self.left[id];
            if exclusive || model != BASE {
                let lease = self.residency.lease(model, now).expect("what is admitted is in memory");
                self.leases.insert(*id, lease);
            }
        }
        let models: HashSet<ModelKey> = plan.chunks.iter().map(|c| self.left[&c.id].0).collect();
        assert!(!exclusive || models.len() <= 1, "one model a batch");
        let moves = self.residency.next_load(&self.scheduler.demand(now));
        if let Some(key) = moves.load {
            assert!(self.loading.is_none(), "one load at a time");
            self.loading = Some((key, self.step + self.load_steps));
        }
        for chunk in plan.chunks {
            self.scheduler.computed(chunk.id, chunk.len);
            if chunk.samples {
                let (_, left) = self.left.get_mut(&chunk.id).expect("running");
                *left -= 1;
                if *left == 0 {
                    self.left.remove(&chunk.id);
                    self.leases.remove(&chunk.id);
                    self.scheduler.remove(chunk.id);
                } else {
                    self.scheduler.push_token(chunk.id);
                }
            }
        }
        self.step += 1;
    }
}

fn limits(exclusive: bool, max_seqs: usize) -> Limits {
    Limits {
        max_batch_tokens: 32,
        max_seqs,
        aging: ms(50),
        exclusive,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_is_served_whatever_the_room(
        requests in proptest::collection::vec((0u64..5, 1usize..40, 1usize..20, 0u64..4), 1..40),
        sizes in proptest::array::uniform4(1u64..10),
        spare in 0u64..12,
        load_steps in 0u64..20,
        exclusive in any::<bool>(),
        max_seqs in 1usize..6,
    ) {
        let budget = sizes.iter().max().expect("four") + spare;
        let mut machine = Machine::new(limits(exclusive, max_seqs), 12, budget, &sizes, load_steps);
        for (i, &(model, prompt, output, pause)) in requests.iter().enumerate() {
            machine.add(i as u64, ModelKey(model), prompt, output);
            for _ in 0..pause {
                machine.run_step();
                prop_assert!(machine.residency.bytes() <= budget);
            }
        }
        for _ in 0..20_000 {
            if machine.left.is_empty() {
                return Ok(());
            }
            machine.run_step();
            prop_assert!(machine.residency.bytes() <= budget);
        }
        prop_assert!(false, "still waiting: {:?}", machine.left);
    }

    /// Room for one variant, requests for A without end, one for B: it starts within the aging bound, what ran before
    /// it, and its load.
    #[test]
    fn a_lone_request_starts_within_a_bound_under_endless_load(
        load_steps in 0u64..20,
        exclusive in any::<bool>(),
        max_seqs in 1usize..6,
        arrives in 0u64..100,
    ) {
        let (output, prompt) = (10, 16);
        let mut machine = Machine::new(limits(exclusive, max_seqs), 12, 10, &[10, 10], load_steps);
        let lone = SequenceId(1_000_000);
        let mut next = 0;
        let bound = 50 + 2 * load_steps + (output as u64 + prompt as u64) * (2 + max_seqs as u64);
        while machine.step < arrives + bound {
            if machine.scheduler.waiting() < 3 {
                machine.add(next, ModelKey(1), prompt, output);
                next += 1;
            }
            if machine.step == arrives {
                // Ids are given in the order of arrival.
                machine.add(lone.0, ModelKey(2), prompt, output);
                next = lone.0 + 1;
            }
            machine.run_step();
            if machine.started.contains_key(&lone) {
                return Ok(());
            }
        }
        prop_assert!(false, "not started {bound} steps after it came");
    }
}
