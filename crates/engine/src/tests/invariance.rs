//! A request's answer, log-probabilities included, does not depend on what runs beside it, bit by bit.

use std::sync::atomic::Ordering;

use super::toy::{answers, assert_same, config, engine, request, wait_until};
use crate::request::{EngineConfig, Mode, Request, SamplingParams};

const VARIANTS: [&str; 3] = ["a", "b", "c"];

/// Requests of different lengths for the base and three variants, some sampled with a seed.
fn mixture() -> Vec<Request> {
    (0..24u32)
        .map(|i| {
            let model = ["base", "a", "b", "c"][i as usize % 4];
            let mut request = request(model, i, 1 + (i as usize * 13) % 60, 5 + (i as usize * 7) % 40);
            if i % 3 == 0 {
                request.sampling = SamplingParams {
                    temperature: 0.7,
                    top_p: 0.9,
                    seed: Some(u64::from(i)),
                    frequency_penalty: 0.3,
                    ..request.sampling
                };
            }
            request
        })
        .collect()
}

fn alone(config: &EngineConfig) -> Vec<super::toy::Answer> {
    let (engine, _) = engine(config.clone(), &VARIANTS, 10);
    mixture()
        .iter()
        .flat_map(|request| answers(&engine, std::slice::from_ref(request)))
        .collect()
}

#[test]
fn an_answer_alone_equals_the_answer_among_others() {
    let (engine, controls) = engine(config(), &VARIANTS, 10);
    assert_same(&answers(&engine, &mixture()), &alone(&config()), "among others");
    assert!(controls.widest.load(Ordering::Relaxed) > 4, "requests did run together");
    assert!(
        controls.most_variants.load(Ordering::Relaxed) > 2,
        "variants did run together"
    );
}

#[test]
fn an_answer_does_not_depend_on_how_prefill_was_cut() {
    let expected = alone(&config());
    for max_batch_tokens in [1, 3, 17, 400] {
        let (engine, _) = engine(
            EngineConfig {
                max_batch_tokens,
                ..config()
            },
            &VARIANTS,
            10,
        );
        assert_same(
            &answers(&engine, &mixture()),
            &expected,
            &format!("steps of {max_batch_tokens} tokens"),
        );
    }
}

#[test]
fn an_answer_survives_preemption() {
    let expected = alone(&config());
    // Seven pages: a long request takes most of them, so others are preempted and computed again.
    let few = EngineConfig {
        kv_memory: Some(7 * 1024),
        max_model_len: Some(112),
        ..config()
    };
    let (engine, _) = engine(few, &VARIANTS, 10);
    assert_same(&answers(&engine, &mixture()), &expected, "all at once");
    assert!(engine.stats().preemptions > 0, "pages did run out");
    wait_until(&engine, |s| s.kv_pages_used == 0);
}

#[test]
fn an_answer_survives_evictions() {
    let expected = alone(&config());
    let one = EngineConfig {
        variant_memory: Some(10),
        ..config()
    };
    let (engine, _) = engine(one, &VARIANTS, 10);
    assert_same(&answers(&engine, &mixture()), &expected, "all at once");
    assert!(engine.stats().variant_evictions >= 2);
}

#[test]
fn in_swap_mode_one_model_runs_at_a_time_and_answers_are_the_same() {
    let swap = EngineConfig {
        mode: Mode::Swap,
        variant_memory: Some(1000),
        ..config()
    };
    let expected = alone(&swap);
    let (engine, controls) = engine(swap, &VARIANTS, 1000);
    assert_same(&answers(&engine, &mixture()), &expected, "all at once");
    assert!(
        controls.widest.load(Ordering::Relaxed) > 2,
        "requests of one model did run together"
    );
    let stats = engine.stats();
    assert!(stats.variant_loads >= 3 && stats.variant_evictions >= 3, "{stats:?}");
    assert_eq!(stats.variant_bytes, 1000, "one model is in memory at a time");
}
