//! Run bundles of a simulated server, for tests and for looking at pages: the events are invented, everything computed
//! from them is not. Their engine is called `simulation`, so no page can be mistaken for a measurement.
#![allow(dead_code)] // Each test binary uses its own part.

use deltamux_bench::arrival::Arrivals;
use deltamux_bench::bundle::{
    Answer, AnswerRecord, Api, Bundle, Chunk, ChunkKind, Cpu, DivergenceSums, Engine, Environment, Load, Model,
    Outcome, Point, Profile, Quality, Reference, RequestRecord, Run, SCHEMA_VERSION, ServerReport, Software, Target,
    TaskFile, Workload,
};
use deltamux_bench::choice::Choice;
use deltamux_bench::knee::knee;
use deltamux_bench::lengths::Lengths;
use deltamux_bench::measure::{self, PointPlan};
use deltamux_bench::quality::figures::{self, ScorePlan};

/// Repeats of every point.
const REPEATS: u32 = 3;
/// Answer tokens of every request.
const TOKENS: u32 = 32;

/// A bundle's identity.
pub struct Identity<'a> {
    /// Run id.
    pub id: &'a str,
    /// Label.
    pub label: &'a str,
    /// Models.
    pub models: &'a [&'a str],
    /// When it began.
    pub started_at: &'a str,
}

/// A small generator: tests must give the same pages every time.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.uniform().ln()
    }
}

/// A server with some slots; a request holds one, and the more are held the slower each goes.
struct Simulation {
    free_at: Vec<f64>,
    prefill_s: f64,
    token_s: f64,
}

impl Simulation {
    /// When a request sent at `send` starts, and how fast it then goes.
    fn admit(&mut self, send: f64, random: &mut Random) -> (f64, f64) {
        let busy = self.free_at.iter().filter(|free| **free > send).count() as f64;
        let token = self.token_s * (1.0 + 0.06 * busy) * (0.9 + 0.2 * random.uniform());
        let slot = (0..self.free_at.len())
            .min_by(|a, b| self.free_at[*a].total_cmp(&self.free_at[*b]))
            .unwrap();
        let start = self.free_at[slot].max(send) + self.prefill_s * (0.8 + 0.4 * random.uniform());
        self.free_at[slot] = start + token * f64::from(TOKENS);
        (start, token)
    }
}

fn ns(seconds: f64) -> i64 {
    (seconds * 1e9).round() as i64
}

fn record(place: (u32, u32, u32), model: &str, due: f64, start: f64, token: f64) -> RequestRecord {
    let (point, repeat, request) = place;
    let mut chunks: Vec<Chunk> = (1..=TOKENS)
        .map(|k| Chunk {
            t_ns: ns(start + token * f64::from(k)),
            kind: ChunkKind::Text,
            chars: 4,
        })
        .collect();
    let done = ns(start + token * f64::from(TOKENS)) + 120_000;
    chunks.push(Chunk {
        t_ns: done,
        kind: ChunkKind::Done,
        chars: 0,
    });
    RequestRecord {
        point,
        repeat,
        warmup: false,
        request,
        model: model.to_owned(),
        t_sched_ns: ns(due),
        t_send_ns: Some(ns(due) + 200_000),
        t_done_ns: done,
        max_tokens: Some(TOKENS),
        prompt_tokens: Some(64),
        cached_tokens: None,
        completion_tokens: Some(TOKENS),
        finish_reason: Some("length".to_owned()),
        outcome: Outcome::Completed,
        chunks,
    }
}

/// An open-loop run.
pub fn arrivals(identity: &Identity<'_>, rates: &[f64], requests: u32) -> Bundle {
    let mut random = Random(identity.id.len() as u64 + 11);
    let mut clock = 0.0;
    let mut records = Vec::new();
    let mut points = Vec::new();
    for (index, rate) in (0u32..).zip(rates) {
        let mut of_point = Vec::new();
        for repeat in 0..REPEATS {
            let mut server = Simulation {
                free_at: vec![clock; 4],
                prefill_s: 0.03,
                token_s: 0.02,
            };
            let mut due = clock;
            for request in 0..requests {
                due += random.exponential(1.0 / rate);
                let (start, token) = server.admit(due, &mut random);
                let model = identity.models[request as usize % identity.models.len()];
                of_point.push(record((index, repeat, request), model, due, start, token));
            }
            clock = server.free_at.iter().copied().fold(due, f64::max) + 1.0;
        }
        // One failure, so that pages have it to show.
        if index + 1 == rates.len() as u32
            && let Some(last) = of_point.last_mut()
        {
            last.outcome = Outcome::Failed {
                kind: "timeout".into(),
                error: "no byte within 60 s".into(),
            };
            last.chunks.clear();
            last.completion_tokens = None;
            last.prompt_tokens = None;
            last.finish_reason = None;
        }
        let load = Load::Open {
            arrivals: Arrivals::Poisson,
            rate_req_per_s: Some(*rate),
        };
        points.push(point(load, u64::from(requests), &of_point));
        records.extend(of_point);
    }
    let mut run = run(identity, Profile::Arrivals, points);
    run.knee = Some(knee(&run.points));
    bundle(run, records)
}

/// A closed-loop run.
pub fn concurrency(identity: &Identity<'_>, levels: &[u32]) -> Bundle {
    let mut random = Random(identity.id.len() as u64 + 5);
    let mut clock = 0.0;
    let mut records = Vec::new();
    let mut points = Vec::new();
    for (index, level) in (0u32..).zip(levels) {
        let mut of_point = Vec::new();
        let requests = level * 4;
        for repeat in 0..REPEATS {
            let mut server = Simulation {
                free_at: vec![clock; 48],
                prefill_s: 0.03,
                token_s: 0.02,
            };
            let mut clients = vec![clock; *level as usize];
            for request in 0..requests {
                let client = (0..clients.len())
                    .min_by(|a, b| clients[*a].total_cmp(&clients[*b]))
                    .unwrap();
                let due = clients[client];
                let (start, token) = server.admit(due, &mut random);
                let model = identity.models[request as usize % identity.models.len()];
                let record = record((index, repeat, request), model, due, start, token);
                clients[client] = record.t_done_ns as f64 * 1e-9;
                of_point.push(record);
            }
            clock = clients.iter().copied().fold(clock, f64::max) + 1.0;
        }
        points.push(point(
            Load::Closed { concurrency: *level },
            u64::from(requests),
            &of_point,
        ));
        records.extend(of_point);
    }
    bundle(run(identity, Profile::Concurrency, points), records)
}

/// Tasks that every model is asked, `items` of them: each model is right a little more often than the one before it, one
/// request fails, and the first model is compared with a full fine-tune. Sizes double from model to model.
pub fn quality(identity: &Identity<'_>, items: u32) -> Bundle {
    let mut random = Random(identity.id.len() as u64 + 3);
    let sha256 = "7a".repeat(32);
    let (mut records, mut answers) = (Vec::new(), Vec::new());
    let (mut points, mut scores) = (Vec::new(), Vec::new());
    let mut clock = 0.0;
    for (index, model) in (0u32..).zip(identity.models) {
        let (mut of_point, mut given) = (Vec::new(), Vec::new());
        for request in 0..items {
            let mut record = record((index, 0, request), model, clock, clock + 0.05, 0.02);
            clock = record.t_done_ns as f64 * 1e-9;
            record.max_tokens = Some(TOKENS);
            record.finish_reason = Some("stop".to_owned());
            let right = random.uniform() < 0.6 + 0.1 * f64::from(index);
            // As many characters as the chunks carry.
            let text = format!("{:<128}", if right { "SELECT 1;" } else { "SELECT 2;" });
            let failed = index == 0 && request == 0;
            if failed {
                record.outcome = Outcome::Failed {
                    kind: "timeout".into(),
                    error: "no end within 60 s".into(),
                };
                record.chunks.clear();
                record.completion_tokens = None;
            }
            given.push(AnswerRecord {
                point: index,
                request,
                model: (*model).to_owned(),
                tasks_sha256: sha256.clone(),
                line: u64::from(request) + 1,
                prompt_sha256: "9c".repeat(32),
                expected: "SELECT 1;".to_owned(),
                outcome: record.outcome.name().to_owned(),
                answer: (!failed).then_some(text),
                matches: (!failed).then_some(right),
                prompt_tokens: record.prompt_tokens,
                completion_tokens: record.completion_tokens,
                divergence: (index == 0).then_some(DivergenceSums {
                    positions: 4,
                    kl_nats: 0.015625,
                    same: 3,
                    loss_nats: 0.5,
                    reference_loss_nats: 0.25,
                }),
            });
            of_point.push(record);
        }
        let plan = PointPlan {
            load: Load::Closed { concurrency: 1 },
            requests: u64::from(items),
            warmup: 0,
            seeds: vec![7],
        };
        points.push(measure::point(&plan, None, &of_point));
        let plan = ScorePlan {
            model: (*model).to_owned(),
            tasks: 0,
            precision: Some("bf16".to_owned()),
            reference: (index == 0).then(|| Reference {
                name: "full".to_owned(),
                digest: "5e".repeat(32),
            }),
            divergence_absent: (index > 0).then(|| "no fine-tune was given".to_owned()),
        };
        let (of, by): (Vec<_>, Vec<_>) = (of_point.iter().collect(), given.iter().collect());
        scores.push(figures::score(plan, &of, &by));
        records.extend(of_point);
        answers.extend(given);
    }
    let mut run = run(identity, Profile::Quality, points);
    for (i, model) in (0u32..).zip(&mut run.models) {
        model.bytes = Some(u64::from(3 + i) << 20);
    }
    run.workload.variants = None;
    run.workload.input_tokens = None;
    run.workload.output_tokens = None;
    run.workload.ignore_eos = false;
    run.quality = Some(Quality {
        max_tokens: TOKENS,
        tasks: vec![TaskFile {
            name: "sql.jsonl".to_owned(),
            sha256,
            items: u64::from(items),
            model: None,
        }],
        scores,
    });
    let mut bundle = bundle(run, records);
    bundle.answers = answers;
    bundle
}

fn point(load: Load, requests: u64, records: &[RequestRecord]) -> Point {
    let plan = PointPlan {
        load,
        requests,
        warmup: 0,
        seeds: (0..u64::from(REPEATS)).collect(),
    };
    measure::point(&plan, None, records)
}

fn run(identity: &Identity<'_>, profile: Profile, points: Vec<Point>) -> Run {
    let words = [
        "deltamux",
        "bench",
        &profile.to_string(),
        "--url",
        "http://127.0.0.1:8080",
        "--seed",
        "7",
    ];
    Run {
        schema_version: SCHEMA_VERSION,
        id: identity.id.to_owned(),
        profile,
        label: Some(identity.label.to_owned()),
        started_at: identity.started_at.to_owned(),
        finished_at: identity.started_at.to_owned(),
        generator: Software {
            name: "deltamux".into(),
            version: env!("CARGO_PKG_VERSION").into(),
        },
        engine: Engine {
            name: Some("simulation".into()),
            version: Some("1".into()),
            device: Some("invented".into()),
            topology: Some("TP=1".into()),
            precision: Some("bf16".into()),
            exclusive: Some(true),
        },
        target: Target {
            url: "http://127.0.0.1:8080".into(),
            api: Api::Chat,
        },
        command: words.map(str::to_owned).to_vec(),
        seed: 7,
        models: identity
            .models
            .iter()
            .map(|name| Model {
                name: (*name).to_owned(),
                parent: Some("tiny".into()),
                digest: Some(format!("sha256:{}", "5e".repeat(32))),
                weight: None,
                bytes: None,
            })
            .collect(),
        workload: Workload {
            variants: Some(Choice::Uniform),
            input_tokens: Some(Lengths::Fixed(64)),
            output_tokens: Some(Lengths::Fixed(TOKENS)),
            ignore_eos: true,
            file: None,
            max_in_flight: None,
            timeout_s: 60.0,
        },
        limits: None,
        points,
        knee: None,
        quality: None,
    }
}

fn bundle(run: Run, records: Vec<RequestRecord>) -> Bundle {
    let silent = Answer {
        status: None,
        text: None,
        error: Some("simulated".into()),
    };
    Bundle {
        environment: Environment {
            run: run.id.clone(),
            cpu: Cpu {
                model: Some("invented".into()),
                architecture: "x86_64".into(),
                ..Cpu::default()
            },
            memory_bytes: Some(8 << 30),
            os: Some("invented".into()),
            kernel: None,
            governor: None,
            load_before: Some([0.1, 0.2, 0.3]),
            git_revision: None,
            packages: [("deltamux-bench".to_owned(), "0.1.0".to_owned())].into(),
        },
        server: ServerReport {
            run: run.id.clone(),
            models: silent.clone(),
            version: silent,
            metrics_before: metrics(0, 0),
            metrics_after: metrics(512, 4096),
        },
        run,
        records,
        answers: Vec::new(),
    }
}

/// A part of what deltamux reports about itself.
fn metrics(pages_used: u32, tokens: u32) -> Answer {
    let text = format!(
        "deltamux_base_bytes 1048576\ndeltamux_variant_bytes 262144\ndeltamux_kv_pages 2048\n\
         deltamux_kv_page_bytes 8192\ndeltamux_kv_pages_used {pages_used}\ndeltamux_generation_tokens_total {tokens}\n"
    );
    Answer {
        status: Some(200),
        text: Some(text),
        error: None,
    }
}
