//! `deltamux generate`: answer one prompt.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use deltamux_delta::artifact::SHARD_FILE;
use deltamux_engine::{
    Engine, EngineConfig, Event, FinishReason, ModelText, Request, SamplingParams, TokenLogProbs, Usage,
};
use serde_json::{Map, Value, json};

use crate::precision::PrecisionArgs;
use crate::{answers, output, progress, threads};

/// Answer one prompt.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The prompt is one user message of the model's chat template; with --raw (or for a
model without a template) it is text that the model continues. Without --temperature
and the like the model's own generation_config.json decides.

FILE of --messages is a list: [{\"role\": \"user\", \"content\": \"…\"}], or the body of a
chat completion request, whose messages and tools are taken.

Examples:
  deltamux generate --base models/tiny/base --prompt 'Hello'
  deltamux generate --base models/tiny/base --variant variants/sql --prompt 'Hello'
  deltamux generate --base models/tiny/base --variants variants/ --variant sql \\
      --messages chat.json --temperature 0 --json")]
pub struct Args {
    /// Directory of the base model, or its id on the hub (org/name).
    #[arg(long, value_name = "DIR")]
    base: String,
    /// The variant that answers: an artifact directory, or a name inside --variants; default: the base.
    #[arg(long, value_name = "ARTIFACT|NAME")]
    variant: Option<String>,
    /// Folder in which --variant names an artifact.
    #[arg(long, value_name = "DIR", requires = "variant")]
    variants: Option<PathBuf>,
    #[command(flatten)]
    input: Input,
    /// Send the prompt as it is, without the chat template.
    #[arg(long, conflicts_with = "messages")]
    raw: bool,
    /// Tokens of the answer at most; default: all that the context leaves.
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// 0 takes the most likely token each time.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Keep the most likely tokens that together have this probability.
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Keep this many of the most likely tokens; 0 keeps all.
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Seed of the random choices; drawn when absent.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// End the answer before this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Log-probabilities of each token and of the K most likely ones beside it (with --json).
    #[arg(long, value_name = "K", requires = "json")]
    logprobs: Option<usize>,
    #[command(flatten)]
    precision: PrecisionArgs,
    /// Threads of the arithmetic; default: all cores.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = threads::parse)]
    threads: usize,
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Input {
    /// What to answer.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// JSON file with the messages to answer.
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
}

/// What is asked, before the model's template.
enum Question {
    Raw(String),
    Chat {
        messages: Vec<Value>,
        tools: Option<Vec<Value>>,
    },
}

pub fn run(args: Args) -> anyhow::Result<()> {
    // Everything that can be refused without the model comes first.
    let question = args.question()?;
    let variant = args
        .variant
        .as_deref()
        .map(|name| find_variant(name, args.variants.as_deref()))
        .transpose()?;
    let begun = Instant::now();
    let config = EngineConfig {
        max_seqs: 1,
        threads: args.threads,
        precision: args.precision.precision()?,
        weight_cache: args.precision.weight_cache(),
        ..EngineConfig::new(deltamux_model::hub::resolve(&args.base)?)
    };
    let engine = progress::loading(|report| Engine::start_with(config, report))?;
    let model = match variant {
        Some((name, directory)) => engine.register(&name, directory)?.name,
        None => engine.base_name().to_owned(),
    };
    let loaded = begun.elapsed();
    let weight_cache = engine.weight_cache();
    let text = engine.text(&model).context("the model has no text side")?;
    let prompt = prompt_tokens(&text, &question)?;
    let request = args.request(model.clone(), prompt.clone(), &text);
    let mut stream = engine.submit(request).map_err(answers::refused)?;

    let mut answer = Answer::new(args.json);
    let end = loop {
        match stream.blocking_next() {
            Some(Event::Token { id, text, logprobs }) => answer.push(id, &text, logprobs)?,
            Some(Event::Done {
                reason,
                text,
                usage,
                queued,
                prefill,
                decode,
            }) => {
                answer.print(&text)?;
                let durations = Durations {
                    loaded,
                    queued,
                    prefill,
                    decode,
                };
                break (reason, usage, durations);
            }
            Some(Event::Failed(why)) => return Err(answers::refused(why)),
            None => return Err(output::Internal("the engine ended without an answer".to_owned()).into()),
        }
    };
    engine.shutdown(Duration::ZERO);
    let (reason, usage, durations) = end;
    if args.json {
        output::json(&json!({
            "model": model,
            "text": answer.text,
            "token_ids": answer.ids,
            "prompt_token_ids": prompt,
            "finish_reason": reason,
            "logprobs": args.logprobs.map(|_| answer.logprobs),
            "weight_cache": weight_cache,
            "timings": durations.to_json(usage),
        }))
    } else {
        if reason == FinishReason::Length {
            tracing::info!("the answer ended at its token limit");
        }
        output::text("")
    }
}

impl Args {
    fn question(&self) -> anyhow::Result<Question> {
        if let Some(prompt) = &self.input.prompt {
            return Ok(if self.raw {
                Question::Raw(prompt.clone())
            } else {
                Question::Chat {
                    messages: vec![json!({"role": "user", "content": prompt})],
                    tools: None,
                }
            });
        }
        let path = self.input.messages.as_deref().context("give --prompt or --messages")?;
        let file = fs_err::read(path)?;
        let value: Value =
            serde_json::from_slice(&file).with_context(|| format!("{}: not valid JSON", path.display()))?;
        let list = |value: &Value| value.as_array().cloned();
        let (messages, tools) = match &value {
            Value::Array(messages) => (Some(messages.clone()), None),
            Value::Object(body) => (body.get("messages").and_then(list), body.get("tools").and_then(list)),
            _ => (None, None),
        };
        match messages {
            Some(messages) if !messages.is_empty() => Ok(Question::Chat { messages, tools }),
            _ => bail!(
                "{}: expected a list of messages with at least one, or an object with a field \"messages\"",
                path.display()
            ),
        }
    }

    fn request(&self, model: String, prompt: Vec<u32>, text: &ModelText) -> Request {
        let defaults = &text.generation;
        Request {
            model,
            prompt,
            max_tokens: self.max_tokens,
            min_tokens: 0,
            ignore_eos: false,
            stop: self.stop.clone(),
            stop_token_ids: Vec::new(),
            sampling: SamplingParams {
                temperature: self.temperature.or(defaults.temperature).unwrap_or(0.0),
                top_p: self.top_p.or(defaults.top_p).unwrap_or(1.0),
                top_k: self.top_k.or(defaults.top_k).unwrap_or(0),
                repetition_penalty: defaults.repetition_penalty.unwrap_or(1.0),
                seed: self.seed,
                logprobs: self.logprobs,
                ..SamplingParams::default()
            },
        }
    }
}

/// The name and directory of the variant that is meant.
fn find_variant(variant: &str, folder: Option<&Path>) -> anyhow::Result<(String, PathBuf)> {
    let is_artifact = |dir: &Path| dir.join("manifest.json").is_file();
    if let Some(folder) = folder {
        let directory = folder.join(variant);
        if is_artifact(&directory) {
            return Ok((variant.to_owned(), directory));
        }
        bail!(
            "no variant `{variant}` in {}: {} does not exist",
            folder.display(),
            directory.join("manifest.json").display()
        );
    }
    let directory = PathBuf::from(variant);
    if !is_artifact(&directory) {
        ensure!(
            !directory.join(SHARD_FILE).is_file(),
            "--variant {variant}: is one shard of an artifact; put all of them together with `deltamux merge`"
        );
        bail!(
            "--variant {variant}: no artifact there ({} does not exist); give an artifact directory, or a name and --variants DIR",
            directory.join("manifest.json").display()
        );
    }
    let absolute = fs_err::canonicalize(&directory)?;
    let name = absolute
        .file_name()
        .map_or_else(|| variant.into(), |name| name.to_string_lossy());
    Ok((name.into_owned(), directory))
}

fn prompt_tokens(text: &ModelText, question: &Question) -> anyhow::Result<Vec<u32>> {
    let raw = |prompt: &str| Ok(text.tokenizer.encode(prompt, true)?);
    match (question, &text.template) {
        (Question::Raw(prompt), _) => raw(prompt),
        (Question::Chat { messages, tools }, Some(template)) => {
            let rendered = template.render(messages, tools.as_deref(), true, &Map::new())?;
            Ok(text.tokenizer.encode(&rendered, false)?)
        }
        (Question::Chat { messages, .. }, None) => match messages.as_slice() {
            [only] if only["role"] == "user" && only["content"].is_string() => {
                tracing::info!("the model has no chat template: the prompt is sent as it is");
                raw(only["content"].as_str().unwrap_or_default())
            }
            _ => bail!("the model has no chat template; give one --prompt instead of --messages"),
        },
    }
}

/// The answer so far; printed as it comes unless a JSON document is wanted.
struct Answer {
    quiet: bool,
    text: String,
    ids: Vec<u32>,
    logprobs: Vec<Value>,
}

impl Answer {
    fn new(quiet: bool) -> Self {
        Self {
            quiet,
            text: String::new(),
            ids: Vec::new(),
            logprobs: Vec::new(),
        }
    }

    fn push(&mut self, id: u32, text: &str, logprobs: Option<TokenLogProbs>) -> anyhow::Result<()> {
        self.ids.push(id);
        self.logprobs.extend(logprobs.map(|l| {
            let one = |p: &deltamux_engine::LogProb| json!({"id": p.id, "text": p.text, "logprob": p.logprob});
            let mut entry = one(&l.chosen);
            entry["top"] = l.top.iter().map(one).collect();
            entry
        }));
        self.print(text)
    }

    fn print(&mut self, text: &str) -> anyhow::Result<()> {
        self.text.push_str(text);
        if !self.quiet && !text.is_empty() {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    }
}

struct Durations {
    loaded: Duration,
    queued: Duration,
    prefill: Duration,
    decode: Duration,
}

impl Durations {
    /// Seconds, and rates where there is something to count.
    fn to_json(&self, usage: Usage) -> Value {
        let mut timings = json!({
            "load_seconds": self.loaded.as_secs_f64(),
            "queued_seconds": self.queued.as_secs_f64(),
            "prefill_seconds": self.prefill.as_secs_f64(),
            "decode_seconds": self.decode.as_secs_f64(),
        });
        let mut rate = |name: &str, tokens: usize, time: Duration| {
            if tokens > 0 && !time.is_zero() {
                timings[name] = json!(tokens as f64 / time.as_secs_f64());
            }
        };
        rate("prompt_tokens_per_second", usage.prompt_tokens, self.prefill);
        // The first token comes out of prefill.
        rate(
            "decode_tokens_per_second",
            usage.completion_tokens.saturating_sub(1),
            self.decode,
        );
        timings
    }
}
