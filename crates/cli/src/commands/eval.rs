//! `deltamux eval`: exact match of greedy answers on a file of tasks.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use deltamux_bench::tasks::{Task, read_tasks, score};
use deltamux_engine::{Engine, EngineConfig, Event, Request, RequestStream, SamplingParams};
use serde_json::json;

use crate::output;

/// Exact match of greedy answers on a file of tasks.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  deltamux eval --base models/tiny/base --variant variants/sql --tasks models/tiny/data/sql.heldout.jsonl
  deltamux eval --base models/tiny/base --full models/tiny/sql --tasks models/tiny/data/sql.heldout.jsonl --limit 50")]
pub struct Args {
    /// Directory of the base model.
    #[arg(long, value_name = "DIR")]
    base: PathBuf,
    /// Answer with this variant, an artifact of `deltamux compress`.
    #[arg(long, value_name = "ARTIFACT", conflicts_with = "full")]
    variant: Option<PathBuf>,
    /// Answer with this full checkpoint instead of the base.
    #[arg(long, value_name = "DIR")]
    full: Option<PathBuf>,
    /// Tasks: one {"messages": […], "answer": "…"} a line.
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,
    /// The first tasks only.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Completion tokens at most.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

/// Name under which the evaluated variant is registered.
const VARIANT: &str = "evaluated-variant";

pub fn run(args: Args) -> anyhow::Result<()> {
    let tasks = read_tasks(&args.tasks, args.limit.map(|n| n as usize))?;
    let mut config = EngineConfig::new(args.full.clone().unwrap_or_else(|| args.base.clone()));
    config.max_queue = config.max_queue.max(tasks.len());
    let engine = Engine::start(config)?;
    let model = match &args.variant {
        Some(artifact) => engine.register(VARIANT, artifact.clone())?.name,
        None => engine.base_name().to_owned(),
    };
    let started = Instant::now();
    let answers = answer(&engine, &model, &tasks, args.max_tokens as usize);
    let seconds = started.elapsed().as_secs_f64();
    engine.shutdown(Duration::ZERO);
    let Answers { texts, tokens } = answers?;
    let score = score(&tasks, &texts).ok_or_else(|| anyhow!("{}: holds no task", args.tasks.display()))?;

    if args.json {
        let mut document = serde_json::to_value(&score)?;
        document["seconds"] = json!(seconds);
        document["completion_tokens"] = json!(tokens);
        return output::json(&document);
    }
    output::text(format!(
        "exact match {:.1} % ({} of {}) in {seconds:.1} s",
        100.0 * score.exact_match,
        score.correct,
        score.n
    ))?;
    for wrong in &score.wrong {
        output::text(format!(
            "  line {}: expected {:?}, found {:?}",
            wrong.line, wrong.expected, wrong.found
        ))?;
    }
    Ok(())
}

struct Answers {
    texts: Vec<String>,
    tokens: usize,
}

/// Submits every task at once, so that the engine batches them, and waits for the answers.
fn answer(engine: &Engine, model: &str, tasks: &[Task], max_tokens: usize) -> anyhow::Result<Answers> {
    let text = engine
        .text(model)
        .ok_or_else(|| anyhow!("the model `{model}` does not exist"))?;
    let Some(template) = &text.template else {
        bail!("the model has no chat template, and tasks are chat messages: add chat_template.jinja to its directory");
    };
    let mut streams = Vec::with_capacity(tasks.len());
    for task in tasks {
        let line = || format!("task in line {}", task.line);
        let prompt = template
            .render(&task.messages, None, true, &serde_json::Map::new())
            .with_context(line)?;
        let request = Request {
            model: model.to_owned(),
            prompt: text.tokenizer.encode(&prompt, false).with_context(line)?,
            max_tokens: Some(max_tokens),
            min_tokens: 0,
            ignore_eos: false,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            sampling: SamplingParams::default(),
        };
        streams.push(engine.submit(request).with_context(line)?);
    }
    let bar = indicatif::ProgressBar::new(tasks.len() as u64);
    let mut answers = Answers {
        texts: Vec::with_capacity(tasks.len()),
        tokens: 0,
    };
    for (stream, task) in streams.into_iter().zip(tasks) {
        let (text, tokens) = collect(stream).with_context(|| format!("task in line {}", task.line))?;
        answers.texts.push(text);
        answers.tokens += tokens;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(answers)
}

fn collect(mut stream: RequestStream) -> anyhow::Result<(String, usize)> {
    let mut answer = String::new();
    while let Some(event) = stream.blocking_next() {
        match event {
            Event::Token { text, .. } => answer.push_str(&text),
            Event::Done { text, usage, .. } => {
                answer.push_str(&text);
                return Ok((answer, usage.completion_tokens));
            }
            Event::Failed(error) => return Err(error.into()),
        }
    }
    Err(output::Internal("the engine ended a request without a word".into()).into())
}
