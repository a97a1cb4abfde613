//! The flags that every load profile takes, and the settings they make.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use deltamux_bench::bundle::{Api, Engine, Limits};
use deltamux_bench::choice::Choice;
use deltamux_bench::lengths::Lengths;
use deltamux_bench::profile::{BenchError, Finished, Settings};
use deltamux_bench::workload::{Workload, model_map};

use super::table;
use crate::output;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ApiArg {
    /// /v1/chat/completions.
    Chat,
    /// /v1/completions.
    Completions,
}

#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// Base URL of an OpenAI-compatible server.
    #[arg(long, value_name = "URL")]
    url: String,
    /// Endpoint that requests go to.
    #[arg(long, value_enum, default_value_t = ApiArg::Chat)]
    api: ApiArg,
    /// Sent as a bearer token; never recorded.
    #[arg(long, value_name = "KEY", env = "DELTAMUX_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Models to ask [default: every listed model that has a parent, or the first listed one].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    models: Vec<String>,
    /// How each request's model is chosen: uniform, zipf:ALPHA, round-robin, or a JSON file {"model": weight}.
    #[arg(long, value_name = "HOW", default_value = "uniform")]
    variants: String,
    /// Prompt tokens: N, LOW..HIGH or log-normal:MEDIAN,SIGMA. Prompts are words; how many tokens a word is, the server
    /// is asked before the run.
    #[arg(long, value_name = "LENGTHS", default_value = "128")]
    input_tokens: Lengths,
    /// Completion tokens at most, in the same forms.
    #[arg(long, value_name = "LENGTHS", default_value = "128")]
    output_tokens: Lengths,
    /// Ask for exactly that many completion tokens, past the end-of-sequence token.
    #[arg(long)]
    ignore_eos: bool,
    /// Take requests from a workload file (JSON lines: prompt or messages, timestamp, model, min_tokens, max_tokens,
    /// ignore_eos) instead of drawing them.
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// Rename the workload file's models: FROM=TO,… or a JSON file {"from": "to"}.
    #[arg(long, value_name = "MAP", requires = "workload")]
    model_map: Option<String>,
    /// Fixes schedule, lengths, variants and prompts.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Repeats of each point.
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeats: u32,
    /// Warm-up requests before each point's first repeat, excluded from every figure [default: one for each model]. With
    /// 0, nothing but the measured requests reaches the models.
    #[arg(long, value_name = "N")]
    warmup: Option<u32>,
    /// Seconds after which a request counts as failed.
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    timeout: f64,
    /// Goodput counts requests whose TTFT is at most this.
    #[arg(long, value_name = "MS")]
    slo_ttft_ms: Option<f64>,
    /// Goodput counts requests whose TPOT is at most this.
    #[arg(long, value_name = "MS")]
    slo_tpot_ms: Option<f64>,
    /// Folder that the bundle's folder is written into.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    out: PathBuf,
    /// What the run stands for in a comparison, e.g. PrinMix.
    #[arg(long)]
    label: Option<String>,
    #[command(flatten)]
    about: AboutArgs,
}

/// What the bundle says of the server.
#[derive(Debug, clap::Args)]
pub struct AboutArgs {
    /// Name of the server's engine [default: who owns the first listed model].
    #[arg(long, value_name = "NAME", help_heading = "What is measured, for the bundle")]
    engine: Option<String>,
    /// Its version [default: what GET /version says].
    #[arg(long, value_name = "VERSION", help_heading = "What is measured, for the bundle")]
    engine_version: Option<String>,
    /// Device it computes on.
    #[arg(long, value_name = "NAME", help_heading = "What is measured, for the bundle")]
    device: Option<String>,
    /// Topology, e.g. TP=1.
    #[arg(long, value_name = "NAME", help_heading = "What is measured, for the bundle")]
    topology: Option<String>,
    /// Precision of the base's weights, e.g. bf16.
    #[arg(long, value_name = "NAME", help_heading = "What is measured, for the bundle")]
    precision: Option<String>,
    /// Whether nothing else used the device.
    #[arg(long, value_name = "BOOL", help_heading = "What is measured, for the bundle")]
    exclusive: Option<bool>,
}

impl AboutArgs {
    /// Precision of the base's weights, if it was stated.
    pub fn precision(&self) -> Option<&str> {
        self.precision.as_deref()
    }

    /// The same as the bundle has it.
    pub fn engine(&self) -> Engine {
        Engine {
            name: self.engine.clone(),
            version: self.engine_version.clone(),
            device: self.device.clone(),
            topology: self.topology.clone(),
            precision: self.precision.clone(),
            exclusive: self.exclusive,
        }
    }
}

/// A time limit in seconds.
pub fn timeout(seconds: f64) -> anyhow::Result<Duration> {
    if !seconds.is_finite() || seconds <= 0.0 {
        bail!("--timeout {seconds}: expected seconds above 0");
    }
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| anyhow::anyhow!("--timeout is {seconds}: expected seconds, at most {}", u64::MAX))
}

impl LoadArgs {
    /// Reads the files that flags name and checks what only shows in combination.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let timeout = timeout(self.timeout)?;
        for (flag, limit) in [("--slo-ttft-ms", self.slo_ttft_ms), ("--slo-tpot-ms", self.slo_tpot_ms)] {
            if let Some(limit) = limit.filter(|l| !l.is_finite() || *l <= 0.0) {
                bail!("{flag} {limit}: expected milliseconds above 0");
            }
        }
        let (choice, weights) = choice(&self.variants)?;
        let mut settings = Settings::new(self.url.clone(), self.out.clone());
        settings.api = match self.api {
            ApiArg::Chat => Api::Chat,
            ApiArg::Completions => Api::Completions,
        };
        settings.api_key = self.api_key.clone().filter(|key| !key.is_empty());
        settings.label = self.label.clone();
        settings.engine = self.about.engine();
        settings.models = self.models.clone();
        settings.choice = choice;
        settings.weights = weights;
        settings.input_tokens = self.input_tokens;
        settings.output_tokens = self.output_tokens;
        settings.ignore_eos = self.ignore_eos;
        settings.workload = self.read_workload()?;
        settings.seed = self.seed;
        settings.repeats = self.repeats;
        settings.warmup = self.warmup;
        settings.timeout = timeout;
        settings.limits = (self.slo_ttft_ms.is_some() || self.slo_tpot_ms.is_some()).then_some(Limits {
            ttft_ms: self.slo_ttft_ms,
            tpot_ms: self.slo_tpot_ms,
        });
        settings.command = command_line(std::env::args());
        Ok(settings)
    }

    fn read_workload(&self) -> anyhow::Result<Option<Workload>> {
        let Some(path) = &self.workload else { return Ok(None) };
        let mut workload = Workload::read(path)?;
        if let Some(map) = &self.model_map {
            workload.rename(&model_map(map)?);
        }
        Ok(Some(workload))
    }
}

fn choice(text: &str) -> anyhow::Result<(Choice, BTreeMap<String, f64>)> {
    if !text.ends_with(".json") {
        let choice = text.parse().ok().filter(|choice| *choice != Choice::Weights);
        let Some(choice) = choice else {
            bail!("--variants {text}: expected uniform, zipf:ALPHA, round-robin or a JSON file {{\"model\": weight}}");
        };
        return Ok((choice, BTreeMap::new()));
    }
    let weights: BTreeMap<String, f64> = serde_json::from_slice(&fs_err::read(text)?)
        .with_context(|| format!("--variants {text}: expected {{\"model\": weight}}"))?;
    if let Some((model, weight)) = weights.iter().find(|(_, w)| !w.is_finite() || **w < 0.0) {
        bail!("--variants {text}: the weight of `{model}` is {weight}; expected 0 or more");
    }
    Ok((Choice::Weights, weights))
}

/// The command line for the bundle: no key, and no folders of this machine before the program's name.
pub(crate) fn command_line(args: impl Iterator<Item = String>) -> Vec<String> {
    const KEY: &str = "--api-key";
    let mut hide_next = false;
    args.enumerate()
        .map(|(i, arg)| {
            if std::mem::take(&mut hide_next) {
                return "…".to_owned();
            }
            hide_next = arg == KEY;
            if arg.starts_with(KEY) && arg.contains('=') {
                return format!("{KEY}=…");
            }
            match i {
                0 => PathBuf::from(&arg)
                    .file_name()
                    .map_or(arg, |name| name.to_string_lossy().into_owned()),
                _ => arg,
            }
        })
        .collect()
}

/// Runs a profile on a runtime of its own, until it ends or the user interrupts it.
pub fn drive(profile: impl Future<Output = Result<Finished, BenchError>>) -> anyhow::Result<Finished> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        tokio::select! {
            finished = profile => Ok(finished?),
            _ = tokio::signal::ctrl_c() => bail!("interrupted; no bundle was written"),
        }
    })
}

/// Prints what came of a run.
pub fn show(finished: &Finished, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(&serde_json::json!({ "bundle": finished.bundle, "run": finished.run }));
    }
    output::text(table::run(&finished.run))?;
    output::text(format!("bundle: {}", finished.bundle.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_command_line_holds_no_key_and_no_folder_of_the_program() {
        let line = |text: &str| command_line(text.split(' ').map(str::to_owned)).join(" ");
        assert_eq!(
            line("/opt/x/deltamux bench --api-key secret --seed 1"),
            "deltamux bench --api-key … --seed 1"
        );
        assert_eq!(line("deltamux bench --api-key=secret"), "deltamux bench --api-key=…");
    }
}
