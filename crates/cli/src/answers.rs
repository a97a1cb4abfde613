//! Greedy answers to a file of tasks, all in one batch.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use deltamux_bench::tasks::Task;
use deltamux_engine::{Engine, EngineConfig, Event, Request, RequestStream, SamplingParams, SubmitError};

use crate::output;

/// Name under which an artifact is registered to be asked.
const VARIANT: &str = "evaluated-variant";

/// What was answered.
#[derive(Debug)]
pub struct Answers {
    /// One text a task, in their order.
    pub texts: Vec<String>,
    /// Completion tokens.
    pub tokens: usize,
    /// From the first request to the last answer, s.
    pub seconds: f64,
}

/// Starts an engine, asks it every task (the artifact's variant, or the base) and stops it; `answered` is called after
/// each answer.
pub fn greedy(
    mut config: EngineConfig,
    artifact: Option<&Path>,
    tasks: &[Task],
    max_tokens: usize,
    answered: impl FnMut(),
) -> anyhow::Result<Answers> {
    config.max_queue = config.max_queue.max(tasks.len());
    let engine = Engine::start(config)?;
    let model = match artifact {
        Some(artifact) => engine.register(VARIANT, artifact.to_owned())?.name,
        None => engine.base_name().to_owned(),
    };
    let answers = ask(&engine, &model, tasks, max_tokens, answered);
    engine.shutdown(Duration::ZERO);
    answers
}

/// Submits every task at once, so that the engine batches them, and waits for the answers.
fn ask(
    engine: &Engine,
    model: &str,
    tasks: &[Task],
    max_tokens: usize,
    mut answered: impl FnMut(),
) -> anyhow::Result<Answers> {
    let text = engine
        .text(model)
        .ok_or_else(|| anyhow!("the model `{model}` does not exist"))?;
    let Some(template) = &text.template else {
        bail!("the model has no chat template, and tasks are chat messages: add chat_template.jinja to its directory");
    };
    let started = Instant::now();
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
        streams.push(engine.submit(request).map_err(refused).with_context(line)?);
    }
    let mut answers = Answers {
        texts: Vec::with_capacity(tasks.len()),
        tokens: 0,
        seconds: 0.0,
    };
    for (stream, task) in streams.into_iter().zip(tasks) {
        let (text, tokens) = collect(stream).with_context(|| format!("task in line {}", task.line))?;
        answers.texts.push(text);
        answers.tokens += tokens;
        answered();
    }
    answers.seconds = started.elapsed().as_secs_f64();
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
            Event::Failed(error) => return Err(refused(error)),
        }
    }
    Err(output::Internal("the engine ended a request without a word".into()).into())
}

/// Only a failure of the engine itself is an internal error.
pub fn refused(why: SubmitError) -> anyhow::Error {
    match why {
        SubmitError::Internal(what) => output::Internal(what).into(),
        SubmitError::Invalid { field, what } => {
            anyhow::anyhow!("--{}: {what}", field.replace('_', "-"))
        }
        other => other.into(),
    }
}
