//! A bundle that was changed in any way is not validated.

mod common;

use std::path::Path;
use std::time::Duration;

use common::{arrivals, constant, mock, settings, stream};
use deltamux_bench::bundle::{
    Answer, Bundle, Chunk, ChunkKind, Cpu, DIGESTS_FILE, EVENTS_FILE, Engine, Environment, Load, Outcome, Profile,
    RUN_FILE, RequestRecord, Run, SCHEMA_VERSION, ServerReport, Software, Target, Workload, write_events,
};
use deltamux_bench::measure::{self, PointPlan};
use deltamux_bench::profile::{self, ConcurrencyProfile};
use deltamux_bench::verify::{Status, verify};
use sha2::{Digest as _, Sha256};

/// A request every 100 ms, each with four tokens 10 ms apart; every fifth fails.
fn record(i: u32, warmup: bool) -> RequestRecord {
    let t_sched_ns = i64::from(i) * 100_000_000;
    let failed = i % 5 == 4;
    let kinds = [
        ChunkKind::Empty,
        ChunkKind::Text,
        ChunkKind::Text,
        ChunkKind::Text,
        ChunkKind::Text,
        ChunkKind::Done,
    ];
    let chunks = (0i64..)
        .zip(kinds)
        .map(|(k, kind)| Chunk {
            t_ns: t_sched_ns + 20_000_000 + 10_000_000 * k,
            kind,
            chars: 3,
        })
        .collect();
    RequestRecord {
        point: 0,
        repeat: 0,
        warmup,
        request: i,
        model: "sql".into(),
        t_sched_ns,
        t_send_ns: Some(t_sched_ns + 50_000),
        t_done_ns: t_sched_ns + 70_000_000,
        max_tokens: Some(4),
        prompt_tokens: Some(20),
        cached_tokens: None,
        completion_tokens: Some(4),
        finish_reason: Some("length".into()),
        outcome: if failed {
            Outcome::Failed {
                kind: "http_503".into(),
                error: "no room".into(),
            }
        } else {
            Outcome::Completed
        },
        chunks: if failed { Vec::new() } else { chunks },
    }
}

fn bundle() -> Bundle {
    let mut records = vec![record(0, true)];
    records.extend((0..10).map(|i| record(i, false)));
    let load = Load::Open {
        arrivals: "constant".parse().unwrap(),
        rate_req_per_s: Some(10.0),
    };
    let plan = PointPlan {
        load,
        requests: 10,
        warmup: 1,
        seeds: vec![7],
    };
    let absent = Answer {
        status: None,
        text: None,
        error: Some("none".into()),
    };
    Bundle {
        run: Run {
            schema_version: SCHEMA_VERSION,
            id: "20260101T000000Z-arrivals-000001".into(),
            profile: Profile::Arrivals,
            label: None,
            started_at: "2026-01-01T00:00:00Z".into(),
            finished_at: "2026-01-01T00:00:02Z".into(),
            generator: Software {
                name: "deltamux".into(),
                version: "0.1.0".into(),
            },
            engine: Engine::default(),
            target: Target {
                url: "http://127.0.0.1:1".into(),
                api: Default::default(),
            },
            command: Vec::new(),
            seed: 0,
            models: Vec::new(),
            workload: Workload {
                variants: None,
                input_tokens: None,
                output_tokens: None,
                ignore_eos: false,
                file: None,
                max_in_flight: None,
                timeout_s: 60.0,
            },
            limits: None,
            points: vec![measure::point(&plan, None, &records)],
            knee: None,
            quality: None,
        },
        records,
        answers: Vec::new(),
        environment: Environment {
            run: "20260101T000000Z-arrivals-000001".into(),
            cpu: Cpu::default(),
            memory_bytes: None,
            os: None,
            kernel: None,
            governor: None,
            load_before: None,
            git_revision: None,
            packages: Default::default(),
        },
        server: ServerReport {
            run: "20260101T000000Z-arrivals-000001".into(),
            models: absent.clone(),
            version: absent.clone(),
            metrics_before: absent.clone(),
            metrics_after: absent,
        },
    }
}

fn reasons(path: &Path) -> Vec<String> {
    let verification = verify(path).unwrap();
    assert_eq!(
        verification.status == Status::Validated,
        verification.reasons.is_empty()
    );
    verification.reasons
}

/// Writes the digests anew, as someone would who wants to hide a change.
fn forge_digests(path: &Path) {
    let names = ["environment.json", "events.parquet", "run.json", "server.json"];
    let lines = names.map(|name| {
        let bytes = fs_err::read(path.join(name)).unwrap();
        format!("{}  {name}\n", hex::encode(Sha256::digest(bytes)))
    });
    fs_err::write(path.join(DIGESTS_FILE), lines.concat()).unwrap();
}

#[test]
fn a_bundle_is_validated_as_it_was_written_and_under_another_name() {
    let out = tempfile::tempdir().unwrap();
    let path = bundle().write(out.path()).unwrap();
    assert_eq!(reasons(&path), Vec::<String>::new());
    assert_eq!(Bundle::read(&path).unwrap(), bundle());
    let renamed = out.path().join("renamed");
    fs_err::rename(&path, &renamed).unwrap();
    assert_eq!(reasons(&renamed), Vec::<String>::new());
}

#[test]
fn a_bundle_is_never_overwritten_and_leaves_nothing_beside_it() {
    let out = tempfile::tempdir().unwrap();
    bundle().write(out.path()).unwrap();
    assert!(
        bundle()
            .write(out.path())
            .unwrap_err()
            .to_string()
            .contains("never overwritten")
    );
    assert_eq!(fs_err::read_dir(out.path()).unwrap().count(), 1);
}

#[test]
fn any_byte_that_changes_in_any_file_is_found() {
    let out = tempfile::tempdir().unwrap();
    let path = bundle().write(out.path()).unwrap();
    for entry in fs_err::read_dir(&path).unwrap() {
        let file = entry.unwrap().path();
        let original = fs_err::read(&file).unwrap();
        // Every byte of the short file of digests, some 200 spread over each of the others.
        let step = (original.len() / 200).max(1);
        for i in (0..original.len()).step_by(step).chain([original.len() - 1]) {
            for flip in [0x01, 0x20] {
                let mut changed = original.clone();
                changed[i] ^= flip;
                fs_err::write(&file, &changed).unwrap();
                assert!(!reasons(&path).is_empty(), "{}: byte {i} ^ {flip}", file.display());
            }
        }
        fs_err::write(&file, [original.as_slice(), b"\n"].concat()).unwrap();
        assert!(!reasons(&path).is_empty(), "{}: a byte more", file.display());
        fs_err::write(&file, &original[..original.len() - 1]).unwrap();
        assert!(!reasons(&path).is_empty(), "{}: a byte less", file.display());
        fs_err::write(&file, &original).unwrap();
    }
    assert_eq!(reasons(&path), Vec::<String>::new());
}

#[test]
fn a_file_more_and_a_file_less_are_found() {
    let out = tempfile::tempdir().unwrap();
    let path = bundle().write(out.path()).unwrap();
    fs_err::write(path.join("notes.txt"), "x").unwrap();
    assert_eq!(reasons(&path), ["notes.txt: is no file of a bundle"]);
    fs_err::remove_file(path.join("notes.txt")).unwrap();
    for name in [RUN_FILE, EVENTS_FILE, DIGESTS_FILE, "environment.json", "server.json"] {
        let bytes = fs_err::read(path.join(name)).unwrap();
        fs_err::remove_file(path.join(name)).unwrap();
        assert_eq!(reasons(&path), [format!("{name}: is missing")]);
        fs_err::write(path.join(name), bytes).unwrap();
    }
}

/// Every number of `points` in run.json, each with the text before and after it.
fn numbers(text: &str) -> Vec<(usize, usize)> {
    let points = text.find("\"points\"").unwrap();
    let mut found = Vec::new();
    let mut i = points;
    while let Some(at) = text[i..].find(": ") {
        let from = i + at + 2;
        let to = from + text[from..].find([',', '\n']).unwrap();
        if text[from..to].parse::<f64>().is_ok() {
            found.push((from, to));
        }
        i = to;
    }
    found
}

#[test]
fn an_edited_figure_is_found_even_with_its_digest_made_anew() {
    let out = tempfile::tempdir().unwrap();
    let path = bundle().write(out.path()).unwrap();
    let file = path.join(RUN_FILE);
    let original = fs_err::read_to_string(&file).unwrap();
    let numbers = numbers(&original);
    assert!(numbers.len() > 50, "{}", numbers.len());
    for (from, to) in numbers {
        let figure = &original[from..to];
        let before = original[..from].rsplit('\n').next().unwrap();
        // The rate that was asked for and the repeat's seed are settings: nothing that was measured follows from them.
        if before.contains("rate_req_per_s") || before.contains("\"seed\"") {
            continue;
        }
        let digit = figure.chars().next_back().unwrap();
        let other = if digit == '1' { '2' } else { '1' };
        let edited = format!("{}{other}{}", &original[..to - 1], &original[to..]);
        if edited == original {
            continue;
        }
        fs_err::write(&file, edited).unwrap();
        forge_digests(&path);
        let reasons = reasons(&path);
        assert!(
            reasons
                .iter()
                .any(|r| r.starts_with("run.json: ") || r.starts_with("events.parquet: ")),
            "{before}"
        );
    }
}

#[test]
fn an_edited_figure_is_named_with_both_values() {
    let out = tempfile::tempdir().unwrap();
    let path = bundle().write(out.path()).unwrap();
    let file = path.join(RUN_FILE);
    let original = fs_err::read_to_string(&file).unwrap();
    let ttft = bundle().run.points[0].latency.ttft_ms.unwrap();
    assert_eq!(ttft.p50, 29.95);
    fs_err::write(&file, original.replacen("\"p50\": 29.95", "\"p50\": 9.95", 1)).unwrap();
    forge_digests(&path);
    assert_eq!(
        reasons(&path),
        ["run.json: points[0].latency.ttft_ms.p50 is 9.95, the events give 29.95"]
    );
}

#[test]
fn a_run_that_hides_its_failures_is_found() {
    let out = tempfile::tempdir().unwrap();
    let path = bundle().write(out.path()).unwrap();
    let mut records = bundle().records;
    // The failed rows left out, then also renumbered.
    records.retain(RequestRecord::completed);
    fs_err::write(path.join(EVENTS_FILE), write_events(&records).unwrap()).unwrap();
    forge_digests(&path);
    assert_eq!(
        reasons(&path),
        ["events.parquet: point 1, repeat 1: request 5 where 4 is due"]
    );
    for (i, record) in records.iter_mut().filter(|r| !r.warmup).enumerate() {
        record.request = i as u32;
    }
    fs_err::write(path.join(EVENTS_FILE), write_events(&records).unwrap()).unwrap();
    forge_digests(&path);
    assert_eq!(
        reasons(&path),
        ["events.parquet: point 1, repeat 1: 8 requests, run.json says 10"]
    );
    // Failures turned into warm-up requests.
    let mut records = bundle().records;
    records[5].warmup = true;
    fs_err::write(path.join(EVENTS_FILE), write_events(&records).unwrap()).unwrap();
    forge_digests(&path);
    assert!(!reasons(&path).is_empty());
}

#[test]
fn files_of_another_run_are_found() {
    let out = tempfile::tempdir().unwrap();
    let path = bundle().write(out.path()).unwrap();
    for name in ["environment.json", "server.json"] {
        let text = fs_err::read_to_string(path.join(name)).unwrap();
        fs_err::write(path.join(name), text.replace("000001", "000002")).unwrap();
        forge_digests(&path);
        assert_eq!(reasons(&path).len(), 1, "{name}");
        fs_err::write(path.join(name), text).unwrap();
    }
}

#[test]
fn a_folder_that_is_not_there_is_an_error_with_its_path() {
    assert!(
        verify(Path::new("no/such/bundle"))
            .unwrap_err()
            .to_string()
            .contains("no/such/bundle")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeats_warm_up_and_levels_end_up_in_a_bundle_that_verifies() {
    let url = mock(|_, _| stream(4, "x ", Duration::from_millis(1), 4)).await;
    let out = tempfile::tempdir().unwrap();
    let mut settings = settings(&url, &out);
    settings.repeats = 3;
    settings.warmup = None;
    let profile = ConcurrencyProfile {
        levels: vec![1, 4],
        requests: Some(8),
    };
    let finished = profile::concurrency(&settings, &profile, |_| {}).await.unwrap();
    assert_eq!(verify(&finished.bundle).unwrap().reasons, Vec::<String>::new());

    let run = &finished.run;
    assert_eq!(
        run.models.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(),
        ["sql", "date"]
    );
    for point in &run.points {
        // One warm-up request for each model, recorded and counted in nothing else.
        assert_eq!(
            (point.repeats.len(), point.counts.requests, point.counts.warmup),
            (3, 24, 2)
        );
        let ttft = point.latency.ttft_ms.unwrap();
        assert!(ttft.n == 24 && ttft.mean_ci95.is_some());
        let throughput = point.rates.request_throughput_req_per_s.unwrap();
        assert!(throughput.n == 3 && throughput.ci95.is_some());
        assert!(point.rates.offered_req_per_s.is_none(), "a closed loop offers no rate");
        assert!(
            point
                .repeats
                .iter()
                .all(|r| r.latency.ttft_ms.unwrap().mean_ci95.is_none())
        );
    }
    // Never more in flight than asked for.
    let bundle = Bundle::read(&finished.bundle).unwrap();
    let measured = |p| bundle.records.iter().filter(move |r| r.point == p && !r.warmup);
    for (point, level) in [(0, 1), (1, 4)] {
        for one in measured(point) {
            let at = one.t_sched_ns;
            let beside = measured(point).filter(|r| r.repeat == one.repeat && r.t_sched_ns <= at && r.t_done_ns > at);
            assert!(beside.count() <= level);
        }
    }
    let metrics = bundle.server.metrics_after.metric("mock_requests_total");
    assert_eq!(metrics, Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_and_lengths_reach_the_server_and_what_it_lacks_stays_absent() {
    let url = mock(|_, body| {
        assert_eq!(body["stream_options"]["include_usage"], true);
        assert_eq!(
            (&body["max_tokens"], &body["min_tokens"], &body["ignore_eos"]),
            (&7.into(), &7.into(), &true.into())
        );
        assert!(
            body["messages"][0]["content"]
                .as_str()
                .is_some_and(|text| text.split(' ').count() == 12)
        );
        // A server that does not count.
        common::Script::Stream(vec![(
            Duration::ZERO,
            common::text("x", Some("stop")) + "data: [DONE]\n\n",
        )])
    })
    .await;
    let out = tempfile::tempdir().unwrap();
    let mut settings = settings(&url, &out);
    settings.models = vec!["date".into(), "sql".into()];
    settings.choice = "round-robin".parse().unwrap();
    settings.input_tokens = "12".parse().unwrap();
    settings.output_tokens = "7".parse().unwrap();
    settings.ignore_eos = true;
    let (finished, bundle) = arrivals(&settings, &constant(100.0, 6)).await;
    let models: Vec<&str> = bundle.records.iter().map(|r| r.model.as_str()).collect();
    assert_eq!(models, ["date", "sql", "date", "sql", "date", "sql"]);

    let point = &finished.run.points[0];
    assert_eq!((point.counts.completed, point.counts.without_usage), (6, 6));
    assert!(point.latency.ttft_ms.is_some() && point.latency.e2e_s.is_some());
    assert!(point.latency.tpot_ms.is_none() && point.latency.completion_tokens.is_none());
    assert!(point.rates.output_throughput_tok_per_s.is_none() && point.rates.aggregate_decode_tok_per_s.is_none());
    let text = fs_err::read_to_string(finished.bundle.join(RUN_FILE)).unwrap();
    assert!(
        !text.contains("tpot") && !text.contains("null"),
        "an absent figure is absent"
    );
}
