//! Serving the family: answers checked, then measured against the Naive baseline under the same memory.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use deltamux_bench::arrival::Arrivals;
use deltamux_bench::bundle::{Engine, Run};
use deltamux_bench::lengths::Lengths;
use deltamux_bench::profile::{
    ArrivalsProfile, ConcurrencyProfile, Finished, Progress, Settings, arrivals, concurrency,
};
use deltamux_bench::tasks;
use serde_json::{Value, json};

use super::compression::{METHODS, artifacts};
use super::family::{Family, VARIANTS};
use super::server::Server;
use crate::commands::command_line;
use crate::demo::Steps;

/// The same for every engine: room for the base, the compressed variants and KV pages, not for five full models.
const MEMORY: [&str; 4] = ["--memory", "18MiB", "--kv-memory", "6MiB"];
/// Requests/s that are offered.
const RATES: [f64; 2] = [32.0, 160.0];
/// Requests of each point.
const REQUESTS: u32 = 192;
/// Requests in flight.
const LEVELS: [u32; 4] = [1, 2, 4, 8];
/// Tasks of each variant whose answers are checked.
const CHECKED: usize = 8;

/// One engine at one rate.
#[derive(Debug, Clone, serde::Serialize)]
pub struct ServingRow {
    /// Engine: Naive, Delta-CoMe or PrinMix.
    pub method: String,
    /// Offered, requests/s.
    pub offered_req_per_s: Option<f64>,
    /// Completed, requests/s.
    pub throughput_req_per_s: Option<f64>,
    /// Mean time to the last token, s.
    pub e2e_mean_s: Option<f64>,
    /// 95th percentile, s.
    pub e2e_p95_s: Option<f64>,
    /// Failed requests.
    pub failed: u64,
}

/// What serving gave.
#[derive(Debug)]
pub struct Served {
    /// Answers that were equal alone and among others.
    pub answers_checked: usize,
    /// Figures by engine and rate.
    pub rows: Vec<ServingRow>,
    /// Bundles.
    pub bundles: Vec<PathBuf>,
}

/// Serves every method and the Naive baseline; bundles go to `out/runs`.
pub fn run(family: &Family, out: &Path, steps: &Steps) -> anyhow::Result<Served> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let runs = out.join("runs");
    fs_err::create_dir_all(&runs)?;
    let mut served = Served {
        answers_checked: 0,
        rows: Vec::new(),
        bundles: Vec::new(),
    };

    let checkpoints = full_checkpoints(family)?;
    let mut engines = vec![("Naive", checkpoints.path().to_owned(), true)];
    engines.extend(METHODS.map(|(method, label)| (label, artifacts(out, method), false)));
    for (label, variants, swap) in engines {
        let mut flags = MEMORY.to_vec();
        if swap {
            flags.extend(["--mode", "swap"]);
        }
        let server = Server::start(&family.base(), &variants, &flags)?;
        let settings = settings(&server.url, &runs, label);
        let is_prinmix = label == METHODS[1].1;
        if is_prinmix {
            served.answers_checked = runtime.block_on(check_answers(family, &server.url, steps))?;
        }
        let bar = steps.step(
            &format!("{label}: arrivals"),
            (RATES.len() as u64) * u64::from(REQUESTS),
        );
        let profile = ArrivalsProfile {
            process: Arrivals::Poisson,
            rates: RATES.to_vec(),
            requests: REQUESTS,
            find_knee: false,
            max_in_flight: None,
        };
        let finished = runtime.block_on(arrivals(&settings, &profile, |p| advance(&bar, &p)))?;
        bar.finish();
        served.rows.extend(rows(label, &finished.run));
        served.bundles.push(finished.bundle);
        if is_prinmix {
            let requests: u32 = LEVELS.iter().map(|level| level * 8).sum();
            let bar = steps.step(&format!("{label}: concurrency"), u64::from(requests));
            let mut bundles = Vec::new();
            let profile = ConcurrencyProfile {
                levels: LEVELS.to_vec(),
                requests: Some(requests / LEVELS.len() as u32),
            };
            let Finished { bundle, .. } = runtime.block_on(concurrency(&settings, &profile, |p| advance(&bar, &p)))?;
            bundles.push(bundle);
            bar.finish();
            served.bundles.append(&mut bundles);
        }
        server.stop();
    }
    Ok(served)
}

/// The full fine-tunes in a folder of their own, as the swap mode reads them.
fn full_checkpoints(family: &Family) -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir().context("a folder for the full checkpoints")?;
    for variant in VARIANTS {
        let target = folder.path().join(variant);
        fs_err::create_dir_all(&target)?;
        for file in fs_err::read_dir(family.full(variant))? {
            let file = file?;
            fs_err::copy(file.path(), target.join(file.file_name()))?;
        }
    }
    Ok(folder)
}

fn settings(url: &str, runs: &Path, label: &str) -> Settings {
    let mut settings = Settings::new(url, runs);
    settings.label = Some(label.to_owned());
    settings.engine = Engine {
        name: Some("deltamux".into()),
        version: Some(env!("CARGO_PKG_VERSION").into()),
        precision: Some("bf16".into()),
        device: Some("CPU".into()),
        ..Engine::default()
    };
    settings.input_tokens = Lengths::Fixed(32);
    settings.output_tokens = Lengths::Fixed(24);
    settings.ignore_eos = true;
    settings.repeats = 1;
    settings.command = command_line(std::env::args());
    settings
}

fn advance(bar: &indicatif::ProgressBar, progress: &Progress<'_>) {
    if let Progress::Request { .. } = progress {
        bar.inc(1);
    }
}

fn rows(label: &str, run: &Run) -> Vec<ServingRow> {
    let row = |point: &deltamux_bench::bundle::Point| ServingRow {
        method: label.to_owned(),
        offered_req_per_s: point.rates.offered_req_per_s.as_ref().map(|e| e.mean),
        throughput_req_per_s: point.rates.request_throughput_req_per_s.as_ref().map(|e| e.mean),
        e2e_mean_s: point.latency.e2e_from_schedule_s.as_ref().map(|s| s.mean),
        e2e_p95_s: point.latency.e2e_from_schedule_s.as_ref().map(|s| s.p95),
        failed: point.counts.failed,
    };
    run.points.iter().map(row).collect()
}

/// Asks every variant and the base a few tasks, one at a time and then all at once: each answer must be the same.
async fn check_answers(family: &Family, url: &str, steps: &Steps) -> anyhow::Result<usize> {
    let client = reqwest::Client::new();
    let mut questions = Vec::new();
    for variant in VARIANTS {
        for task in tasks::read_tasks(&family.tasks(variant), Some(CHECKED))? {
            questions.push((variant, task.messages.clone()));
            questions.push(("base", task.messages));
        }
    }
    let bar = steps.step("Answers alone and together", 2 * questions.len() as u64);
    let mut alone = Vec::new();
    for (model, messages) in &questions {
        alone.push(ask(&client, url, model, messages).await?);
        bar.inc(1);
    }
    let together = questions
        .iter()
        .map(|(model, messages)| ask(&client, url, model, messages));
    let together: Vec<String> = futures::future::try_join_all(together).await?;
    bar.inc(questions.len() as u64);
    bar.finish();
    for ((model, _), (alone, together)) in questions.iter().zip(alone.iter().zip(&together)) {
        if alone != together {
            bail!(crate::output::Internal(format!(
                "{model} answered {alone:?} alone and {together:?} among other requests"
            )));
        }
    }
    Ok(questions.len())
}

/// A greedy answer over HTTP.
async fn ask(client: &reqwest::Client, url: &str, model: &str, messages: &[Value]) -> anyhow::Result<String> {
    let body = json!({"model": model, "messages": messages, "temperature": 0, "max_tokens": 64});
    let response = client
        .post(format!("{url}/v1/chat/completions"))
        .json(&body)
        .send()
        .await?;
    let status = response.status();
    let answer: Value = response.json().await?;
    match answer["choices"][0]["message"]["content"].as_str() {
        Some(text) => Ok(text.to_owned()),
        None => bail!("{model} answered with status {status}: {answer}"),
    }
}
