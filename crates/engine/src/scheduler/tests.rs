//! The scheduler's promises, on hand-made cases and on random load.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

const BASE: ModelKey = ModelKey(0);

fn limits(max_batch_tokens: usize, max_seqs: usize) -> Limits {
    Limits {
        max_batch_tokens,
        max_seqs,
        aging: Duration::from_millis(100),
        exclusive: false,
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn ready(_: ModelKey) -> Availability {
    Availability::Ready
}

/// Applies a plan as the step thread would: everything computed, one token sampled where the chunk allows it.
fn apply(scheduler: &mut Scheduler, plan: &Plan) -> Vec<SequenceId> {
    let mut sampled = Vec::new();
    for chunk in &plan.chunks {
        scheduler.computed(chunk.id, chunk.len);
        if chunk.samples {
            scheduler.push_token(chunk.id);
            sampled.push(chunk.id);
        }
    }
    sampled
}

fn shape(plan: &Plan) -> Vec<(u64, usize, usize, bool)> {
    plan.chunks
        .iter()
        .map(|c| (c.id.0, c.start, c.len, c.samples))
        .collect()
}

#[test]
fn prompts_are_cut_into_chunks_and_decodes_come_first() {
    let mut s = Scheduler::new(limits(10, 8), 100);
    s.add(SequenceId(1), BASE, 8, ms(0));
    let plan = s.plan(ms(0), ready);
    assert_eq!(shape(&plan), [(1, 0, 8, true)]);
    apply(&mut s, &plan);
    s.add(SequenceId(2), BASE, 25, ms(1));
    let mut chunks = Vec::new();
    for _ in 0..3 {
        let plan = s.plan(ms(1), ready);
        chunks.push(shape(&plan));
        apply(&mut s, &plan);
    }
    assert_eq!(
        chunks,
        [
            vec![(1, 8, 1, true), (2, 0, 9, false)],
            vec![(1, 9, 1, true), (2, 9, 9, false)],
            vec![(1, 10, 1, true), (2, 18, 7, true)],
        ]
    );
}

#[test]
fn the_youngest_gives_its_pages_back_when_they_run_out() {
    let mut s = Scheduler::new(limits(64, 8), 3);
    s.add(SequenceId(1), BASE, 16, ms(0));
    let plan = s.plan(ms(0), ready);
    apply(&mut s, &plan);
    s.add(SequenceId(2), BASE, 4, ms(0));
    let plan = s.plan(ms(0), ready);
    assert_eq!(plan.admitted, []);
    assert_eq!(
        shape(&plan),
        [(1, 16, 1, true)],
        "a second page for 1 and one of growth leave none for 2"
    );

    let mut s = Scheduler::new(limits(64, 8), 3);
    s.add(SequenceId(1), BASE, 15, ms(0));
    s.add(SequenceId(2), BASE, 15, ms(0));
    let plan = s.plan(ms(0), ready);
    assert_eq!(plan.admitted, [SequenceId(1), SequenceId(2)]);
    apply(&mut s, &plan);
    for _ in 0..1 {
        let plan = s.plan(ms(0), ready);
        apply(&mut s, &plan);
    }
    // Both have 17 known tokens now and one page; only one page is free.
    let plan = s.plan(ms(0), ready);
    assert_eq!(shape(&plan), [(1, 16, 1, true)]);
    apply(&mut s, &plan);
    assert_eq!(s.running(), 2, "2 stalls and keeps its page");
    for _ in 0..16 {
        let plan = s.plan(ms(0), ready);
        apply(&mut s, &plan);
    }
    assert_eq!(
        (s.running(), s.waiting(), s.pages_used()),
        (1, 1, 3),
        "1 needed a third page"
    );
    s.remove(SequenceId(1));
    let plan = s.plan(ms(0), ready);
    assert_eq!(
        shape(&plan),
        [(2, 0, 17, true)],
        "2 is recomputed with what it had generated"
    );
}

#[test]
fn a_noisy_model_does_not_keep_out_a_single_request() {
    let mut s = Scheduler::new(limits(64, 2), 100);
    for id in 0..50 {
        s.add(SequenceId(id), ModelKey(1), 4, ms(0));
    }
    s.add(SequenceId(50), ModelKey(2), 4, ms(1));
    let plan = s.plan(ms(2), ready);
    assert_eq!(plan.admitted, [SequenceId(0), SequenceId(50)]);
}

#[test]
fn after_the_aging_bound_the_oldest_goes_first() {
    let mut s = Scheduler::new(limits(64, 2), 100);
    for id in 0..50 {
        s.add(SequenceId(id), ModelKey(1), 4, ms(0));
    }
    s.add(SequenceId(50), ModelKey(2), 4, ms(1));
    let plan = s.plan(ms(200), ready);
    assert_eq!(plan.admitted, [SequenceId(0), SequenceId(1)]);
}

#[test]
fn requests_for_a_loading_variant_are_overtaken_and_reported_as_demand() {
    let mut s = Scheduler::new(limits(64, 4), 100);
    s.add(SequenceId(1), ModelKey(1), 4, ms(0));
    s.add(SequenceId(2), BASE, 4, ms(10));
    let absent = |m: ModelKey| {
        if m == BASE {
            Availability::Ready
        } else {
            Availability::Absent
        }
    };
    let plan = s.plan(ms(10), absent);
    assert_eq!(plan.admitted, [SequenceId(2)]);
    let demand = |aged| Demand {
        model: ModelKey(1),
        arrived: ms(0),
        aged,
    };
    assert_eq!(s.demand(ms(10)), [demand(false)]);
    assert_eq!(s.demand(ms(100)), [demand(true)]);
}

#[test]
fn a_variant_that_makes_room_starts_only_what_came_before() {
    let mut s = Scheduler::new(limits(64, 4), 100);
    s.add(SequenceId(1), ModelKey(1), 4, ms(0));
    s.add(SequenceId(2), ModelKey(1), 4, ms(20));
    let plan = s.plan(ms(20), |_| Availability::ReadyFor { arrived_by: ms(10) });
    assert_eq!(plan.admitted, [SequenceId(1)]);
}

/// github.com/sgl-project/sglang/pull/15129, in swap mode: A without end, one B.
#[test]
fn in_swap_mode_the_other_model_gets_its_turn_within_the_aging_bound() {
    let mut s = Scheduler::new(
        Limits {
            exclusive: true,
            ..limits(64, 4)
        },
        100,
    );
    let (a, b) = (ModelKey(1), ModelKey(2));
    let mut next = 0;
    let mut add = |s: &mut Scheduler, model, now| {
        s.add(SequenceId(next), model, 4, now);
        next += 1;
    };
    add(&mut s, a, ms(0));
    let mut age: HashMap<SequenceId, u32> = HashMap::new();
    let mut b_started = None;
    for step in 0..100 {
        let now = ms(step * 10);
        add(&mut s, a, now);
        if step == 1 {
            add(&mut s, b, now);
        }
        let plan = s.plan(now, ready);
        let models: HashSet<ModelKey> = plan.chunks.iter().map(|c| s.running[&c.id].model).collect();
        assert!(models.len() <= 1, "one model a batch");
        if models.contains(&b) && b_started.is_none() {
            b_started = Some(now);
        }
        for id in apply(&mut s, &plan) {
            let tokens = age.entry(id).or_default();
            *tokens += 1;
            if *tokens == 3 {
                s.remove(id);
            }
        }
    }
    // Aged at 110 ms; what runs then has at most three steps left.
    assert!(b_started.is_some_and(|t| t <= ms(150)), "{b_started:?}");
}

#[derive(Debug, Clone)]
struct Arrival {
    at_step: u64,
    model: u64,
    prompt: usize,
    output: usize,
    cancel_after: Option<u64>,
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let one = (
        0u64..60,
        0u64..4,
        1usize..70,
        1usize..40,
        proptest::option::weighted(0.2, 0u64..30),
    )
        .prop_map(|(at_step, model, prompt, output, cancel_after)| Arrival {
            at_step,
            model,
            prompt,
            output,
            cancel_after,
        });
    proptest::collection::vec(one, 1..40).prop_map(|mut all| {
        all.sort_by_key(|a| a.at_step);
        all
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// No request is lost, pages are conserved and never shared, the budget is kept, every request is served.
    #[test]
    fn promises_hold_under_random_load(
        arrivals in arrivals(),
        max_batch_tokens in 1usize..80,
        max_seqs in 1usize..12,
        pages in 7usize..40,
        exclusive in any::<bool>(),
        absent_until in proptest::array::uniform4(0u64..50),
    ) {
        let mut s = Scheduler::new(Limits { exclusive, ..limits(max_batch_tokens, max_seqs) }, pages);
        let mut left: HashMap<SequenceId, usize> = HashMap::new();
        let mut cancels: HashMap<SequenceId, u64> = HashMap::new();
        let mut known: HashMap<SequenceId, usize> = HashMap::new();
        let mut next = 0;
        for step in 0u64..20_000 {
            let now = ms(step);
            while next < arrivals.len() && arrivals[next].at_step <= step {
                let (id, a) = (SequenceId(next as u64), &arrivals[next]);
                s.add(id, ModelKey(a.model), a.prompt, now);
                left.insert(id, a.output);
                known.insert(id, a.prompt);
                if let Some(after) = a.cancel_after {
                    cancels.insert(id, step + after);
                }
                next += 1;
            }
            let due: Vec<SequenceId> = cancels.iter().filter(|&(_, &at)| at <= step).map(|(&id, _)| id).collect();
            for id in due {
                cancels.remove(&id);
                left.remove(&id);
                s.remove(id);
            }
            prop_assert_eq!(s.running() + s.waiting(), left.len(), "no request is lost or doubled");
            if next == arrivals.len() && left.is_empty() {
                prop_assert_eq!(s.pages_used(), 0);
                return Ok(());
            }
            let before: HashMap<SequenceId, usize> = s.running.iter().map(|(&id, q)| (id, q.computed)).collect();
            let plan = s.plan(now, |m| {
                if absent_until[m.0 as usize] <= step { Availability::Ready } else { Availability::Absent }
            });

            prop_assert!(plan.chunks.iter().map(|c| c.len).sum::<usize>() <= max_batch_tokens);
            prop_assert!(s.running() <= max_seqs);
            let mut held = HashSet::new();
            for sequence in s.running.values() {
                prop_assert!(sequence.pages.iter().all(|&p| held.insert(p)), "a page has one owner");
            }
            prop_assert_eq!(held.len(), s.pages_used());
            prop_assert!(s.waiting.values().all(|q| q.pages.is_empty() && q.computed == 0));
            if exclusive {
                let models: HashSet<ModelKey> = s.running.values().map(|q| q.model).collect();
                prop_assert!(models.len() <= 1);
            }
            for chunk in &plan.chunks {
                prop_assert!(chunk.len > 0);
                let sequence = &s.running[&chunk.id];
                prop_assert_eq!(chunk.start, before.get(&chunk.id).copied().unwrap_or(0));
                prop_assert!(sequence.pages.len() * PAGE_TOKENS >= chunk.start + chunk.len);
                prop_assert_eq!(chunk.samples, chunk.start + chunk.len == known[&chunk.id]);
            }
            if let Some(oldest) = s.running.keys().next() {
                prop_assert!(plan.chunks.iter().any(|c| c.id == *oldest), "the oldest gets on in every step");
            } else {
                let waits_for_a_load = s.waiting.values().all(|q| absent_until[q.model.0 as usize] > step);
                prop_assert!(waits_for_a_load, "the machine is never idle beside work");
            }
            for id in apply(&mut s, &plan) {
                *known.get_mut(&id).expect("known") += 1;
                let left_of_it = left.get_mut(&id).expect("running");
                *left_of_it -= 1;
                if *left_of_it == 0 {
                    left.remove(&id);
                    cancels.remove(&id);
                    s.remove(id);
                }
            }
        }
        prop_assert!(false, "not all requests were served: {left:?}");
    }
}
