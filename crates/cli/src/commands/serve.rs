//! `deltamux serve`: serve the base and its variants behind an OpenAI-compatible API.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use deltamux_engine::{Engine, EngineConfig, Mode};
use deltamux_model::hub;
use deltamux_server::{ApiKeys, App, ServerConfig, serve_app};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::precision::PrecisionArgs;
use crate::{output, progress, signals, size, threads};

/// Threads that move bytes; the step thread and its kernels have the other cores.
const SERVER_THREADS: usize = 2;
/// Threads that render templates and tokenize.
const PROMPT_THREADS: usize = 4;

/// Serve the base and its variants behind an OpenAI-compatible API.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  deltamux serve --base models/tiny/base --variants variants/
  deltamux serve --base models/SmolLM2-135M-Instruct --variants variants/ --port 0 --json
  deltamux serve --base models/tiny/base --mode swap --variants checkpoints/ --memory 2GiB

Then:
  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"model\": \"sql\", \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}'")]
pub struct Args {
    /// Directory of the base model, or its id on the hub (org/name).
    #[arg(long, value_name = "DIR")]
    base: String,
    /// Folder whose sub-folders are variants: artifacts of `deltamux compress` (with --mode swap: full checkpoints).
    #[arg(long, value_name = "DIR")]
    variants: Option<PathBuf>,
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 picks a free one.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// How variants are held: as compressed differences batched together, or (the Naive baseline) as full checkpoints
    /// swapped in and out.
    #[arg(long, value_enum, default_value_t = ModeArg::Delta)]
    mode: ModeArg,
    #[command(flatten)]
    precision: PrecisionArgs,
    /// Bytes for everything; the parts below are cut from it when they are not given.
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    memory: Option<u64>,
    /// Bytes for variants in memory.
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    variant_memory: Option<u64>,
    /// Bytes for the KV cache.
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    kv_memory: Option<u64>,
    /// Tokens in one step at most.
    #[arg(long, value_name = "N", value_parser = positive)]
    max_batch_tokens: Option<usize>,
    /// Sequences that run at once at most.
    #[arg(long, value_name = "N", value_parser = positive)]
    max_seqs: Option<usize>,
    /// Requests that wait at most; beyond it the answer is 429.
    #[arg(long, value_name = "N", value_parser = positive)]
    max_queue: Option<usize>,
    /// Tokens of prompt and completion at most; default: what the model was made for.
    #[arg(long, value_name = "N", value_parser = positive)]
    max_model_len: Option<usize>,
    /// Threads of the arithmetic; default: all cores.
    #[arg(long, value_name = "N", value_parser = threads::parse)]
    threads: Option<usize>,
    /// Speculative decoding.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Speculate::Off)]
    speculate: Speculate,
    /// File with one API key a line; requests to /v1/ must then carry one.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Seconds that running requests may take to finish after SIGTERM or SIGINT; a second signal ends at once.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain_timeout: u64,
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ModeArg {
    Delta,
    Swap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Speculate {
    Off,
    Ngram,
    Draft,
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(error.to_string()),
    }
}

impl Args {
    /// Refuses what the contract of the command line names and this version does not do.
    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.speculate == Speculate::Off,
            "--speculate: only off is implemented in this version; leave the flag out"
        );
        Ok(())
    }

    fn engine_config(&self) -> anyhow::Result<EngineConfig> {
        let base = hub::resolve(&self.base)?;
        // A model of the hub answers under its id, not under the name of a folder in the hub's cache.
        let base_name = (base != Path::new(&self.base)).then(|| self.base.clone());
        let defaults = EngineConfig::new(base);
        Ok(EngineConfig {
            base_name,
            variants: self.variants.clone(),
            mode: match self.mode {
                ModeArg::Delta => Mode::Delta,
                ModeArg::Swap => Mode::Swap,
            },
            memory: self.memory,
            variant_memory: self.variant_memory,
            kv_memory: self.kv_memory,
            max_batch_tokens: self.max_batch_tokens.unwrap_or(defaults.max_batch_tokens),
            max_seqs: self.max_seqs.unwrap_or(defaults.max_seqs),
            max_queue: self.max_queue.unwrap_or(defaults.max_queue),
            max_model_len: self.max_model_len,
            threads: self.threads.unwrap_or(defaults.threads),
            precision: self.precision.precision()?,
            weight_cache: self.precision.weight_cache(),
            ..defaults
        })
    }

    fn server_config(&self) -> anyhow::Result<ServerConfig> {
        Ok(ServerConfig {
            api_keys: self.api_key_file.as_deref().map(ApiKeys::from_file).transpose()?,
            drain: Duration::from_secs(self.drain_timeout),
            ..ServerConfig::default()
        })
    }
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    args.check()?;
    let config = args.server_config()?;
    let engine_config = args.engine_config()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(SERVER_THREADS)
        .max_blocking_threads(PROMPT_THREADS)
        .enable_all()
        .build()
        .context("cannot start the server's threads")?;
    // The address first: a port in use is refused before minutes of loading.
    let listener = runtime
        .block_on(TcpListener::bind((args.host.as_str(), args.port)))
        .with_context(|| {
            let Args { host, port, .. } = args;
            format!("cannot listen on {host}:{port}; choose others with --host and --port (0 picks a free port)")
        })?;
    let address = listener.local_addr().context("cannot read the listening address")?;

    let app = App::new(config);
    let (stop, stopped) = oneshot::channel();
    let ready = Arc::new(AtomicBool::new(false));
    runtime.spawn(signals::watch(ready.clone(), stop));
    let serving = runtime.spawn(serve_app(listener, app.clone(), async {
        // A sender that is gone has never sent: the signals could not be watched and keep their default meaning.
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
    }));

    let engine = progress::loading(|report| Engine::start_with(engine_config, report))?;
    app.set_engine(Arc::new(engine.clone()));
    ready.store(true, Ordering::Release);
    announce(args, &engine, address)?;
    runtime.block_on(serving).context("the server's task failed")??;
    engine.shutdown(Duration::ZERO);
    Ok(())
}

/// One line (or document) once requests are answered.
fn announce(args: &Args, engine: &Engine, address: SocketAddr) -> anyhow::Result<()> {
    let url = format!("http://{address}");
    let models: Vec<String> = engine.variants().into_iter().map(|model| model.name).collect();
    if args.json {
        // On one line, so that scripts read the same line with and without --json.
        output::text(json!({
            "url": url, "base": engine.base_name(), "models": models, "weight_cache": engine.weight_cache(),
        }))
    } else {
        output::text(format_args!(
            "listening on {url} with {} (base) and {}",
            engine.base_name(),
            match models.len().saturating_sub(1) {
                1 => "1 variant".to_owned(),
                n => format!("{n} variants"),
            }
        ))
    }
}
