//! Cancellation, limits, damaged variants, replacement, shutdown, panics.

use std::time::Duration;

use super::toy::{answers, collect, config, engine, request, states, wait_until};
use crate::request::{EngineConfig, FinishReason, SamplingParams, VariantState};
use crate::{Engine, SubmitError};

fn submit_error(engine: &Engine, change: impl FnOnce(&mut crate::Request)) -> SubmitError {
    let mut request = request("base", 1, 4, 4);
    change(&mut request);
    engine.submit(request).expect_err("refused")
}

/// github.com/ai-dynamo/dynamo/pull/13068
#[test]
fn an_unknown_model_is_refused_and_never_answered_by_the_base() {
    let (engine, _) = engine(config(), &["a"], 10);
    let error = submit_error(&engine, |r| r.model = "nope".to_owned());
    assert_eq!(error, SubmitError::UnknownModel("nope".to_owned()));
}

/// github.com/vllm-project/vllm/issues/765
#[test]
fn max_tokens_is_clamped_and_a_long_prompt_refused_with_both_numbers() {
    let (engine, _) = engine(
        EngineConfig {
            max_model_len: Some(64),
            ..config()
        },
        &[],
        10,
    );
    let clamped = answers(&engine, &[request("base", 1, 60, 10_000)]);
    assert_eq!((clamped[0].ids.len(), clamped[0].reason), (4, FinishReason::Length));
    let error = submit_error(&engine, |r| r.prompt = vec![5; 5000]);
    assert_eq!(
        error,
        SubmitError::PromptTooLong {
            tokens: 5000,
            limit: 64
        }
    );
    let message = error.to_string();
    assert!(message.contains("5000") && message.contains("64"), "{message}");
    assert_eq!(
        answers(&engine, &[request("base", 1, 4, 4)])[0].ids.len(),
        4,
        "the next request is fine"
    );
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let (engine, _) = engine(config(), &[], 10);
    let field = |error| match error {
        SubmitError::Invalid { field, .. } => field,
        other => panic!("{other}"),
    };
    assert_eq!(field(submit_error(&engine, |r| r.prompt.clear())), "prompt");
    assert_eq!(field(submit_error(&engine, |r| r.prompt = vec![1454])), "prompt");
    assert_eq!(field(submit_error(&engine, |r| r.max_tokens = Some(0))), "max_tokens");
    let hot = SamplingParams {
        temperature: -1.0,
        ..SamplingParams::default()
    };
    assert_eq!(field(submit_error(&engine, |r| r.sampling = hot)), "temperature");
}

/// github.com/vllm-project/vllm/pull/32439
#[test]
fn a_dropped_stream_frees_its_pages() {
    let (engine, _) = engine(config(), &[], 10);
    let mut stream = engine.submit(request("base", 1, 40, 400)).expect("accepted");
    assert!(stream.blocking_next().is_some());
    wait_until(&engine, |s| s.kv_pages_used > 0);
    drop(stream);
    wait_until(&engine, |s| s.cancelled == 1 && s.kv_pages_used == 0 && s.running == 0);
}

#[test]
fn a_request_that_waits_for_a_load_can_be_cancelled() {
    let (engine, controls) = engine(config(), &["a"], 10);
    controls.hold_loader(true);
    let stream = engine.submit(request("a", 1, 4, 4)).expect("accepted");
    wait_until(&engine, |s| s.waiting == 1);
    drop(stream);
    wait_until(&engine, |s| s.cancelled == 1 && s.waiting == 0);
    controls.hold_loader(false);
}

/// github.com/vllm-project/vllm/pull/15422
#[test]
fn others_run_while_a_variant_loads() {
    let (engine, controls) = engine(config(), &["a"], 10);
    controls.hold_loader(true);
    let waits = engine.submit(request("a", 1, 4, 4)).expect("accepted");
    assert_eq!(answers(&engine, &[request("base", 2, 30, 20)])[0].ids.len(), 20);
    assert_eq!(states(&engine)["a"], VariantState::Loading);
    controls.hold_loader(false);
    assert_eq!(collect(waits).expect("answered").ids.len(), 4);
    assert_eq!(states(&engine)["a"], VariantState::Resident);
}

#[test]
fn a_damaged_variant_is_refused_and_only_it() {
    let (engine, _) = engine(config(), &["a", "damaged"], 10);
    let streams = ["a", "damaged", "base"].map(|m| engine.submit(request(m, 1, 4, 4)).expect("accepted"));
    let [a, damaged, base] = streams.map(collect);
    assert!(a.is_ok() && base.is_ok());
    let refused = SubmitError::VariantRefused {
        name: "damaged".to_owned(),
        why: "damaged: the digest differs".to_owned(),
    };
    assert_eq!(damaged, Err(refused.clone()));
    assert_eq!(
        engine.submit(request("damaged", 1, 4, 4)).expect_err("refused at once"),
        refused
    );
    assert!(matches!(states(&engine)["damaged"], VariantState::Refused { .. }));
}

/// github.com/vllm-project/vllm/issues/11077: room for two, five variants, each asked once.
#[test]
fn more_variants_than_room_are_all_answered() {
    let variants = ["a", "b", "c", "d", "e"];
    let (engine, _) = engine(
        EngineConfig {
            variant_memory: Some(20),
            ..config()
        },
        &variants,
        10,
    );
    let requests: Vec<_> = variants.iter().map(|v| request(v, 1, 10, 10)).collect();
    let answers = answers(&engine, &requests);
    assert!(answers.iter().all(|a| a.ids.len() == 10));
    assert!(
        answers[1..].iter().all(|a| a.ids != answers[0].ids),
        "each by its own variant"
    );
}

/// github.com/sgl-project/sglang/issues/23141: all places busy, one more request, for the base.
#[test]
fn the_base_takes_no_variant_s_place() {
    let (engine, controls) = engine(
        EngineConfig {
            variant_memory: Some(20),
            ..config()
        },
        &["a", "b"],
        10,
    );
    let requests: Vec<_> = ["a", "b", "base"].iter().map(|m| request(m, 1, 10, 100)).collect();
    assert_eq!(answers(&engine, &requests).len(), 3);
    assert_eq!(engine.stats().variant_evictions, 0);
    assert!(controls.most_variants.load(std::sync::atomic::Ordering::Relaxed) >= 1);
}

/// github.com/sgl-project/sglang/pull/15129: room for one; A, B, A, A, A … without end.
#[test]
fn a_variant_without_room_gets_its_turn_under_endless_load() {
    let aging = Duration::from_millis(20);
    let (engine, _) = engine(
        EngineConfig {
            variant_memory: Some(10),
            aging,
            ..config()
        },
        &["a", "b"],
        10,
    );
    let mut endless: Vec<_> = (0..4)
        .map(|i| engine.submit(request("a", i, 10, 20)).expect("accepted"))
        .collect();
    let b = engine.submit(request("b", 1, 10, 20)).expect("accepted");
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(collect(b));
    });
    let mut rounds = 0u32;
    let answer = loop {
        // One A ends, another one comes: A is never idle unless the engine makes it so.
        endless.push(engine.submit(request("a", rounds, 10, 20)).expect("accepted"));
        collect(endless.remove(0)).expect("answered");
        rounds += 1;
        assert!(rounds < 1_000_000, "B starves");
        if let Ok(answer) = receiver.try_recv() {
            break answer;
        }
    };
    assert_eq!(answer.expect("answered").ids.len(), 20);
}

#[test]
fn a_full_queue_refuses_and_says_how_many_wait() {
    let (engine, controls) = engine(
        EngineConfig {
            max_queue: 3,
            max_seqs: 1,
            ..config()
        },
        &[],
        10,
    );
    controls.hold_steps(true);
    let first = engine.submit(request("base", 0, 4, 4)).expect("accepted");
    // The first one runs (and is held in its step), three wait.
    while engine.submit(request("base", 9, 4, 1)).is_ok() {}
    let error = engine.submit(request("base", 9, 4, 4)).expect_err("full");
    assert_eq!(error, SubmitError::QueueFull { waiting: 3 });
    controls.hold_steps(false);
    collect(first).expect("answered");
    wait_until(&engine, |s| s.waiting == 0 && s.running == 0);
    assert_eq!(answers(&engine, &[request("base", 1, 4, 4)]).len(), 1);
}

#[test]
fn stop_conditions_end_a_completion() {
    let (engine, _) = engine(config(), &[], 10);
    let free = &answers(&engine, &[request("base", 3, 12, 30)])[0];
    let mut by_id = request("base", 3, 12, 30);
    by_id.stop_token_ids = vec![free.ids[5]];
    let at = free.ids.iter().position(|&id| id == free.ids[5]).expect("it is there");
    let ended = &answers(&engine, &[by_id.clone()])[0];
    assert_eq!(
        (ended.ids.as_slice(), ended.reason),
        (&free.ids[..=at], FinishReason::Stop)
    );
    by_id.min_tokens = 10;
    let later = &answers(&engine, &[by_id])[0];
    assert!(
        later.ids.len() >= 10 && !later.ids[..10].contains(&free.ids[5]),
        "not chosen before min_tokens"
    );

    let stop: String = free.text.chars().skip(10).take(5).collect();
    let mut by_text = request("base", 3, 12, 30);
    by_text.stop = vec![stop.clone()];
    let ended = &answers(&engine, &[by_text])[0];
    let cut = free.text.find(&stop).expect("it is there");
    assert_eq!(
        (ended.text.as_str(), ended.reason),
        (&free.text[..cut], FinishReason::Stop)
    );
}

#[test]
fn unregistering_answers_what_was_asked_before() {
    let (engine, controls) = engine(config(), &["a"], 10);
    controls.hold_loader(true);
    let before = engine.submit(request("a", 1, 4, 4)).expect("accepted");
    assert_eq!(engine.unregister("a").map(|info| info.name), Some("a".to_owned()));
    assert!(engine.unregister("a").is_none() && engine.unregister("base").is_none());
    assert_eq!(
        engine.submit(request("a", 1, 4, 4)).expect_err("gone"),
        SubmitError::UnknownModel("a".to_owned())
    );
    controls.hold_loader(false);
    assert_eq!(collect(before).expect("answered").ids.len(), 4);
    wait_until(&engine, |s| s.variant_bytes == 0);
}

#[test]
fn shutdown_lets_running_requests_finish_and_refuses_waiting_ones() {
    let (engine, controls) = engine(
        EngineConfig {
            max_seqs: 1,
            ..config()
        },
        &[],
        10,
    );
    controls.hold_steps(true);
    let runs = engine.submit(request("base", 1, 4, 50)).expect("accepted");
    let waits = engine.submit(request("base", 2, 4, 4)).expect("accepted");
    let stopper = {
        let engine = engine.clone();
        std::thread::spawn(move || engine.shutdown(Duration::from_secs(3600)))
    };
    while !matches!(engine.submit(request("base", 3, 4, 4)), Err(SubmitError::ShuttingDown)) {}
    controls.hold_steps(false);
    let first = collect(runs);
    // The step thread may have been told to stop before it had begun the first request.
    assert!(first.as_ref().is_err_and(|e| *e == SubmitError::ShuttingDown) || first.is_ok_and(|a| a.ids.len() == 50));
    assert_eq!(collect(waits), Err(SubmitError::ShuttingDown));
    stopper.join().expect("stopped");
}

#[test]
fn shutdown_without_grace_fails_what_runs() {
    let (engine, _) = engine(config(), &[], 10);
    let mut stream = engine.submit(request("base", 1, 4, 500)).expect("accepted");
    assert!(stream.blocking_next().is_some());
    engine.shutdown(Duration::ZERO);
    let rest = collect(stream);
    assert!(rest.is_ok() || rest == Err(SubmitError::ShuttingDown));
    assert_eq!(
        engine.submit(request("base", 1, 4, 4)).expect_err("stopped"),
        SubmitError::ShuttingDown
    );
}

#[test]
fn a_panic_in_the_backend_fails_requests_instead_of_hanging_them() {
    let (engine, controls) = engine(config(), &[], 10);
    *crate::sync::lock(&controls.panic_on) = Some(77);
    let good = engine.submit(request("base", 1, 4, 500)).expect("accepted");
    let mut bad = request("base", 1, 4, 4);
    bad.prompt = vec![77];
    let bad = engine.submit(bad).expect("accepted");
    for stream in [good, bad] {
        assert!(matches!(collect(stream), Err(SubmitError::Internal(why)) if why.contains("as it was told")));
    }
    let error = loop {
        // The engine closes a moment after the last stream has ended.
        if let Err(error) = engine.submit(request("base", 1, 4, 4)) {
            break error;
        }
    };
    assert!(matches!(error, SubmitError::Internal(_)), "{error}");
    engine.shutdown(Duration::ZERO);
}
