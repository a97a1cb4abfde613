//! The engine with the real tiny family: artifacts made by deltamux-delta, arithmetic by the CPU backend. Answers are
//! compared with `==`, log-probabilities by their bits.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use deltamux_delta::{CompressOptions, Method, compress};
use deltamux_engine::{
    Engine, EngineConfig, Event, FinishReason, Mode, Request, RequestStream, SamplingParams, SubmitError, VariantState,
};
use serde_json::Value;

/// Variants that are compressed, with the method; json changes its embedding too.
const VARIANTS: [(&str, Method); 3] = [
    ("route", Method::Prinmix),
    ("sql", Method::DeltaCome),
    ("json", Method::LowRank),
];

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/tiny")
        .join(name)
}

/// A folder of artifacts, shared by the tests that run at the same time and removed with the last of them.
fn artifacts() -> Arc<tempfile::TempDir> {
    static FOLDER: Mutex<Weak<tempfile::TempDir>> = Mutex::new(Weak::new());
    let mut shared = FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let folder = Arc::new(tempfile::tempdir().expect("temporary directory"));
        for (name, method) in VARIANTS {
            let options = CompressOptions {
                method,
                ratio: Some(0.125),
                ..CompressOptions::new()
            };
            compress(
                &tiny("base"),
                &tiny(name),
                &folder.path().join(name),
                &options,
                &|_, _, _| {},
            )
            .expect("compresses");
        }
        *shared = Arc::downgrade(&folder);
        folder
    })
}

fn config(variants: &Path) -> EngineConfig {
    EngineConfig {
        variants: Some(variants.to_owned()),
        kv_memory: Some(64 << 20),
        threads: 2,
        ..EngineConfig::new(tiny("base"))
    }
}

fn copy(from: &Path, to: &Path) {
    fs_err::create_dir_all(to).expect("created");
    for entry in fs_err::read_dir(from).expect("read") {
        let path = entry.expect("read").path();
        fs_err::copy(&path, to.join(path.file_name().expect("a file"))).expect("copied");
    }
}

/// The first messages of a task's held-out file, templated and tokenized for `model`.
fn prompt(engine: &Engine, model: &str, task: &str, index: usize) -> Vec<u32> {
    let file = fs_err::read_to_string(tiny("data").join(format!("{task}.heldout.jsonl"))).expect("data");
    let item: Value = serde_json::from_str(file.lines().nth(index).expect("enough items")).expect("JSON");
    let messages = item["messages"].as_array().expect("messages");
    let text = engine.text(model).expect("known");
    let template = text.template.as_ref().expect("template");
    let rendered = template
        .render(messages, None, true, &serde_json::Map::new())
        .expect("renders");
    text.tokenizer.encode(&rendered, false).expect("encodes")
}

fn request(engine: &Engine, model: &str, task: &str, index: usize) -> Request {
    Request {
        model: model.to_owned(),
        prompt: prompt(engine, model, task, index),
        max_tokens: Some(if index.is_multiple_of(3) { 70 } else { 12 + index % 5 }),
        min_tokens: 0,
        ignore_eos: true,
        stop: Vec::new(),
        stop_token_ids: Vec::new(),
        sampling: SamplingParams {
            temperature: if index.is_multiple_of(2) { 0.0 } else { 0.8 },
            seed: Some(index as u64),
            logprobs: Some(3),
            ..SamplingParams::default()
        },
    }
}

/// Requests for the base and every variant, in turn.
fn mixture(engine: &Engine, count: usize) -> Vec<Request> {
    let models = [
        ("tiny", "tiny-echo"),
        ("route", "route"),
        ("sql", "sql"),
        ("json", "json"),
    ];
    (0..count)
        .map(|i| {
            let (model, task) = models[i % 4];
            let model = if model == "tiny" { engine.base_name() } else { model };
            request(engine, model, task, i)
        })
        .collect()
}

/// Token ids, and the bits of every log-probability.
type Answer = (Vec<u32>, Vec<Vec<(u32, u32)>>);

fn collect(mut stream: RequestStream) -> Result<Answer, SubmitError> {
    let (mut ids, mut bits) = (Vec::new(), Vec::new());
    while let Some(event) = stream.blocking_next() {
        match event {
            Event::Token { id, logprobs, .. } => {
                ids.push(id);
                let logprobs = logprobs.expect("wanted");
                bits.push(
                    std::iter::once(&logprobs.chosen)
                        .chain(&logprobs.top)
                        .map(|p| (p.id, p.logprob.to_bits()))
                        .collect(),
                );
            }
            Event::Done { .. } => return Ok((ids, bits)),
            Event::Failed(why) => return Err(why),
        }
    }
    panic!("a stream ended without its last event");
}

fn ask(engine: &Engine, request: &Request) -> Answer {
    collect(engine.submit(request.clone()).expect("accepted")).expect("answered")
}

fn ask_all(engine: &Engine, requests: &[Request]) -> Vec<Answer> {
    let streams: Vec<_> = requests
        .iter()
        .map(|r| engine.submit(r.clone()).expect("accepted"))
        .collect();
    streams.into_iter().map(|s| collect(s).expect("answered")).collect()
}

fn assert_same(found: &[Answer], expected: &[Answer], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.0, expected.0, "tokens of request {i}, {what}");
        assert!(found.1 == expected.1, "log-probabilities of request {i}, {what}");
    }
}

#[test]
fn answers_do_not_depend_on_batch_chunks_threads_or_preemption() {
    let folder = artifacts();
    let engine = Engine::start(config(folder.path())).expect("starts");
    let requests = mixture(&engine, 16);
    let alone: Vec<Answer> = requests.iter().map(|r| ask(&engine, r)).collect();
    assert!(alone.iter().all(|(ids, _)| ids.len() >= 12));
    assert_same(&ask_all(&engine, &requests), &alone, "all at once");
    engine.shutdown(Duration::ZERO);

    let page = engine.stats().kv_page_bytes as u64;
    for (what, config) in [
        (
            "steps of 7 tokens",
            EngineConfig {
                max_batch_tokens: 7,
                ..config(folder.path())
            },
        ),
        (
            "one thread",
            EngineConfig {
                threads: 1,
                max_batch_tokens: 64,
                ..config(folder.path())
            },
        ),
        (
            "three threads",
            EngineConfig {
                threads: 3,
                ..config(folder.path())
            },
        ),
        (
            "8 pages",
            EngineConfig {
                kv_memory: Some(8 * page),
                max_model_len: Some(128),
                ..config(folder.path())
            },
        ),
        ("room for one variant", one_variant(&engine, folder.path())),
    ] {
        let engine = Engine::start(config).expect("starts");
        assert_same(&ask_all(&engine, &requests), &alone, what);
        let stats = engine.stats();
        match what {
            "8 pages" => assert!(stats.preemptions > 0, "pages did run out"),
            "room for one variant" => assert!(stats.variant_evictions >= 2, "{stats:?}"),
            _ => {}
        }
    }
}

/// Room for the largest variant only.
fn one_variant(engine: &Engine, variants: &Path) -> EngineConfig {
    let largest = engine.variants().iter().skip(1).map(|v| v.bytes).max();
    EngineConfig {
        variant_memory: largest,
        ..config(variants)
    }
}

#[test]
fn each_variant_answers_as_itself() {
    let folder = artifacts();
    let engine = Engine::start(config(folder.path())).expect("starts");
    for (name, _) in VARIANTS {
        // The full fine-tune as a base of its own.
        let full = Engine::start(EngineConfig::new(tiny(name))).expect("starts");
        let (mut equal, mut as_base) = (0, 0);
        for index in (0..20).step_by(2) {
            let request = Request {
                max_tokens: Some(12),
                ..request(&engine, name, name, index)
            };
            let answer = ask(&engine, &request).0;
            equal += usize::from(
                answer
                    == ask(
                        &full,
                        &Request {
                            model: name.to_owned(),
                            ..request.clone()
                        },
                    )
                    .0,
            );
            let base = engine.base_name().to_owned();
            as_base += usize::from(answer == ask(&engine, &Request { model: base, ..request }).0);
        }
        assert!(equal >= 7, "{name} equals its fine-tune in {equal} of 10 answers");
        assert_eq!(as_base, 0, "{name} never answers as the base");
    }
}

#[test]
fn a_damaged_artifact_is_refused_at_load_and_only_it() {
    let folder = artifacts();
    let own = tempfile::tempdir().expect("temporary directory");
    copy(&folder.path().join("sql"), &own.path().join("sql"));
    copy(&folder.path().join("route"), &own.path().join("damaged"));
    copy(&folder.path().join("route"), &own.path().join("no-manifest"));
    fs_err::write(own.path().join("no-manifest/manifest.json"), "{").expect("written");
    let packed = fs_err::read_dir(own.path().join("damaged"))
        .expect("read")
        .map(|entry| entry.expect("read").path())
        .find(|path| path.extension().is_some_and(|e| e == "safetensors"))
        .expect("packed tensors");
    let mut bytes = fs_err::read(&packed).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs_err::write(&packed, bytes).expect("written");

    let engine = Engine::start(EngineConfig {
        variants: Some(own.path().to_owned()),
        ..config(folder.path())
    })
    .expect("starts");
    let state = |name: &str| {
        engine
            .variants()
            .into_iter()
            .find(|v| v.name == name)
            .expect("listed")
            .state
    };
    assert!(
        matches!(state("no-manifest"), VariantState::Refused { .. }),
        "refused when it was registered"
    );
    assert_eq!(state("damaged"), VariantState::Registered, "its manifest is in order");
    let sql = engine.submit(request(&engine, "sql", "sql", 0)).expect("accepted");
    let damaged = engine
        .submit(request(&engine, "damaged", "route", 0))
        .expect("accepted");
    match collect(damaged) {
        Err(SubmitError::VariantRefused { name, .. }) => assert_eq!(name, "damaged"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(state("damaged"), VariantState::Refused { .. }));
    assert!(collect(sql).is_ok());
    assert_eq!(state("sql"), VariantState::Resident);
}

/// github.com/vllm-project/vllm/pull/11727
#[test]
fn an_artifact_for_another_base_is_refused_and_the_rest_goes_on() {
    let folder = artifacts();
    let engine = Engine::start(EngineConfig {
        variants: None,
        ..EngineConfig::new(tiny("date"))
    })
    .expect("starts");
    let error = engine
        .register("sql", folder.path().join("sql"))
        .expect_err("another base");
    assert!(error.to_string().contains("digest"), "{error}");
    assert_eq!(engine.variants().len(), 1);
    assert_eq!(
        engine.submit(request_for(&engine, "sql")).expect_err("unknown"),
        SubmitError::UnknownModel("sql".into())
    );
    assert!(!ask(&engine, &request_for(&engine, "date")).0.is_empty());
}

fn request_for(engine: &Engine, model: &str) -> Request {
    Request {
        model: model.to_owned(),
        ..request(engine, engine.base_name(), "date", 0)
    }
}

/// github.com/vllm-project/vllm/issues/30931 and 42125
#[test]
fn a_name_that_is_replaced_answers_as_its_new_generation() {
    let folder = artifacts();
    let cold = Engine::start(config(folder.path())).expect("starts");
    let engine = Engine::start(EngineConfig {
        variants: None,
        ..config(folder.path())
    })
    .expect("starts");
    let first = engine.register("x", folder.path().join("sql")).expect("registers");
    let as_x = |r: Request| Request {
        model: "x".to_owned(),
        ..r
    };
    let of_sql = request(&cold, "sql", "sql", 0);
    assert_eq!(ask(&engine, &as_x(of_sql.clone())), ask(&cold, &of_sql));

    let second = engine.register("x", folder.path().join("route")).expect("replaces");
    assert_ne!(first.generation, second.generation);
    let on_route = Request {
        model: "route".to_owned(),
        ..of_sql
    };
    assert_eq!(ask(&engine, &as_x(on_route.clone())), ask(&cold, &on_route));
    assert_eq!(engine.variants().len(), 2);

    engine.unregister("x").expect("known");
    assert_eq!(
        engine.submit(as_x(on_route)).expect_err("gone"),
        SubmitError::UnknownModel("x".into())
    );
}

#[test]
fn swap_mode_answers_as_each_full_model_alone() {
    let folder = artifacts();
    let config = EngineConfig {
        mode: Mode::Swap,
        variants: Some(tiny("")),
        // One model of 2.6 million weights at a time.
        variant_memory: Some(6 << 20),
        ..config(folder.path())
    };
    let engine = Engine::start(config).expect("starts");
    let names: Vec<String> = engine.variants().into_iter().map(|v| v.name).collect();
    assert_eq!(
        names,
        ["base", "date", "json", "route", "sql"],
        "the base among its fine-tunes is listed once"
    );
    let requests: Vec<Request> = (0..12)
        .map(|i| {
            request(
                &engine,
                ["base", "date", "sql"][i % 3],
                ["tiny-echo", "date", "sql"][i % 3],
                i,
            )
        })
        .collect();
    let expected: Vec<Answer> = ["base", "date", "sql"]
        .iter()
        .map(|name| Engine::start(EngineConfig::new(tiny(name))).expect("starts"))
        .collect::<Vec<_>>()
        .iter()
        .flat_map(|alone| {
            requests
                .iter()
                .filter(|r| r.model == alone.base_name())
                .map(|r| ask(alone, r))
        })
        .collect();
    let mut found = ask_all(&engine, &requests).into_iter().enumerate().collect::<Vec<_>>();
    found.sort_by_key(|(i, _)| i % 3);
    assert_same(
        &found.into_iter().map(|(_, a)| a).collect::<Vec<_>>(),
        &expected,
        "swapped",
    );
    let stats = engine.stats();
    assert!(stats.variant_loads >= 2 && stats.variant_bytes < 6 << 20, "{stats:?}");
}

/// github.com/QwenLM/Qwen3/issues/927
#[test]
fn end_of_sequence_ids_come_from_the_generation_config() {
    let engine = Engine::start(EngineConfig::new(tiny("sql"))).expect("starts");
    let mut request = request(&engine, "sql", "sql", 0);
    request.ignore_eos = false;
    request.max_tokens = None;
    let mut stream = engine.submit(request).expect("accepted");
    let mut ids = Vec::new();
    loop {
        match stream.blocking_next().expect("an end") {
            Event::Token { id, .. } => ids.push(id),
            Event::Done { reason, .. } => {
                assert_eq!(reason, FinishReason::Stop);
                break;
            }
            Event::Failed(why) => panic!("{why}"),
        }
    }
    assert_eq!(ids.last(), Some(&2), "<|im_end|>");
}

#[test]
fn limits_that_contradict_each_other_are_named() {
    let folder = artifacts();
    let start = |config| Engine::start(config).expect_err("contradictory").to_string();
    let error = start(EngineConfig {
        kv_memory: Some(1 << 16),
        ..config(folder.path())
    });
    assert!(
        error.contains("--kv-memory") && error.contains("--max-model-len"),
        "{error}"
    );
    let error = start(EngineConfig {
        memory: Some(1 << 20),
        ..config(folder.path())
    });
    assert!(error.contains("--memory"), "{error}");
    let error = start(EngineConfig {
        max_model_len: Some(4096),
        ..config(folder.path())
    });
    assert!(error.contains("--max-model-len") && error.contains("512"), "{error}");
}
