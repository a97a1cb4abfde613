//! Profiles: what is run, against what, and how the bundle comes of it. This is the library's front door.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::arrival::Arrivals;
use crate::bundle::{
    Answer, AnswerRecord, Api, Bundle, BundleError, Engine, Environment, Knee, Limits, Load, Model, Outcome, Point,
    Profile, Quality, RequestRecord, Run, SCHEMA_VERSION, ServerReport, Software, Target,
};
use crate::choice::Choice;
use crate::client::{Client, ClientError, Clock};
use crate::environment::environment;
use crate::knee;
use crate::lengths::Lengths;
use crate::load::{Sent, closed_loop, open_loop};
use crate::measure::{self, PointPlan};
use crate::plan::{PlannedRequest, Source, plan, repeat_seed};
use crate::prompts::{TokensOfWords, synthetic};
use crate::server_report;
use crate::workload::Workload;

/// Why a profile could not be run. What goes wrong with single requests is no such error: it is measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The server.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The bundle.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// Settings that cannot be run, naming the flag.
    #[error("{0}")]
    Settings(String),
    /// A model that the server does not list.
    #[error("the server has no model `{name}`; it lists: {listed}")]
    UnknownModel {
        /// The model.
        name: String,
        /// What is listed.
        listed: String,
    },
    /// The server refuses the first request, so no measurement would mean anything.
    #[error("the server does not answer a trial request to `{model}` ({kind}): {error}")]
    Trial {
        /// The model.
        model: String,
        /// Kind of failure.
        kind: String,
        /// What was seen.
        error: String,
    },
}

/// Against what, with what, how often. [`Settings::new`] has the defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Base URL of an OpenAI-compatible server.
    pub url: String,
    /// Endpoint.
    pub api: Api,
    /// Sent as a bearer token; kept nowhere.
    pub api_key: Option<String>,
    /// What the run stands for in a comparison, e.g. `PrinMix`.
    pub label: Option<String>,
    /// What is known of the server; name and version are what the server says when absent.
    pub engine: Engine,
    /// Models to ask; empty: every listed model that has a parent, or the first listed one if none has.
    pub models: Vec<String>,
    /// How each request's model is chosen.
    pub choice: Choice,
    /// Weights for [`Choice::Weights`].
    pub weights: BTreeMap<String, f64>,
    /// Prompt tokens.
    pub input_tokens: Lengths,
    /// Completion tokens.
    pub output_tokens: Lengths,
    /// Whether to ask for exactly that many, past the end-of-sequence token.
    pub ignore_eos: bool,
    /// A workload file instead of drawn requests; its models already renamed.
    pub workload: Option<Workload>,
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// Repeats of each point.
    pub repeats: u32,
    /// Warm-up requests before each point's first repeat; `None`: one for each model.
    pub warmup: Option<u32>,
    /// Time after which a request counts as failed.
    pub timeout: Duration,
    /// Limits for goodput.
    pub limits: Option<Limits>,
    /// Folder that the bundle's folder is written into.
    pub out: PathBuf,
    /// Command line to record, without secrets.
    pub command: Vec<String>,
}

impl Settings {
    /// Defaults for a server and a folder for bundles.
    pub fn new(url: impl Into<String>, out: impl Into<PathBuf>) -> Self {
        Self {
            url: url.into(),
            api: Api::Chat,
            api_key: None,
            label: None,
            engine: Engine::default(),
            models: Vec::new(),
            choice: Choice::Uniform,
            weights: BTreeMap::new(),
            input_tokens: Lengths::Fixed(128),
            output_tokens: Lengths::Fixed(128),
            ignore_eos: false,
            workload: None,
            seed: 0,
            repeats: 3,
            warmup: None,
            timeout: Duration::from_secs(600),
            limits: None,
            out: out.into(),
            command: Vec::new(),
        }
    }
}

/// Open loop at one rate after the other.
#[derive(Debug, Clone)]
pub struct ArrivalsProfile {
    /// Arrival process.
    pub process: Arrivals,
    /// Rates, requests/s, ascending; empty with [`Arrivals::Trace`].
    pub rates: Vec<f64>,
    /// Measured requests in each repeat.
    pub requests: u32,
    /// Whether to go on beyond the given rates until the knee is found.
    pub find_knee: bool,
    /// Requests that the client itself keeps in flight at most; `None`: no limit, as an open loop should be.
    pub max_in_flight: Option<u32>,
}

/// Closed loop at one concurrency after the other.
#[derive(Debug, Clone)]
pub struct ConcurrencyProfile {
    /// Requests in flight.
    pub levels: Vec<u32>,
    /// Measured requests in each repeat; `None`: four for each in flight, at least 16.
    pub requests: Option<u32>,
}

/// How a run goes on.
#[derive(Debug)]
pub enum Progress<'a> {
    /// A repeat begins.
    Repeat {
        /// Point, counted from 0.
        point: u32,
        /// Its load.
        load: &'a Load,
        /// Repeat, counted from 0.
        repeat: u32,
        /// Repeats of the point.
        repeats: u32,
        /// Requests that will be measured.
        requests: u64,
    },
    /// A measured request is done.
    Request {
        /// Whether it completed.
        completed: bool,
    },
    /// A point is done.
    Point(&'a Point),
    /// A model begins a file of tasks.
    Tasks {
        /// The model.
        model: &'a str,
        /// Name of the file.
        tasks: &'a str,
        /// Tasks in it.
        requests: u64,
    },
}

/// A finished run.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Its summary.
    pub run: Run,
    /// Folder of its bundle.
    pub bundle: PathBuf,
}

/// Runs the arrivals profile and writes its bundle. Give it a runtime with at least two worker threads of its own: a
/// server on the same runtime would be measured with the client.
pub async fn arrivals(
    settings: &Settings,
    profile: &ArrivalsProfile,
    progress: impl FnMut(Progress<'_>) + Send,
) -> Result<Finished, BenchError> {
    let refuse = |what: &str| Err(BenchError::Settings(what.into()));
    let trace = profile.process == Arrivals::Trace;
    if profile.requests == 0 {
        return refuse("--requests is 0; a point needs at least 1");
    }
    if trace && settings.workload.is_none() {
        return refuse("--arrivals trace needs the timestamps of --workload FILE.jsonl");
    }
    if trace && profile.find_knee {
        return refuse("--find-knee needs --rates: a trace that is replayed as it is has only its own rate");
    }
    if !trace && (profile.rates.is_empty() || profile.rates.iter().any(|r| !r.is_finite() || *r <= 0.0)) {
        return refuse("--rates needs rates above 0 in requests a second");
    }
    let load = |rate| Load::Open {
        arrivals: profile.process,
        rate_req_per_s: rate,
    };
    let mut rates: Vec<Option<f64>> = if trace {
        vec![None]
    } else {
        profile.rates.iter().copied().map(Some).collect()
    };
    rates.reverse();

    let mut runner = Runner::start(settings, profile.max_in_flight, progress).await?;
    while let Some(rate) = rates.pop() {
        runner.point(load(rate), profile.requests).await?;
        if rates.is_empty() && profile.find_knee {
            rates.extend(knee::next_rate(&runner.points).map(Some));
        }
    }
    runner.finish(Profile::Arrivals, profile.find_knee).await
}

/// Runs the concurrency profile and writes its bundle; see [`arrivals`] for the runtime.
pub async fn concurrency(
    settings: &Settings,
    profile: &ConcurrencyProfile,
    progress: impl FnMut(Progress<'_>) + Send,
) -> Result<Finished, BenchError> {
    if profile.levels.is_empty() || profile.levels.contains(&0) {
        return Err(BenchError::Settings(
            "--levels needs numbers of requests in flight, each at least 1".into(),
        ));
    }
    if profile.requests == Some(0) {
        return Err(BenchError::Settings("--requests is 0; a point needs at least 1".into()));
    }
    let mut runner = Runner::start(settings, None, progress).await?;
    for &concurrency in &profile.levels {
        let requests = profile
            .requests
            .unwrap_or_else(|| concurrency.saturating_mul(4).max(16));
        runner.point(Load::Closed { concurrency }, requests).await?;
    }
    runner.finish(Profile::Concurrency, false).await
}

/// Requests in flight during warm-up of an open-loop point at most.
const WARMUP_IN_FLIGHT: u32 = 4;
/// Failures of the trial after which no request can be expected to succeed.
const HOPELESS: [&str; 5] = ["connect", "http_401", "http_403", "http_404", "http_405"];
/// Words of the two questions from whose token counts the server's tokens of a word are learned.
const COUNTED_WORDS: [u32; 2] = [8, 72];

/// A server that answers, and what is known of it and of the client's machine before anything is asked.
pub(crate) struct Session<'a> {
    settings: &'a Settings,
    pub(crate) client: Client,
    pub(crate) models: Vec<Model>,
    id_time: jiff::Timestamp,
    server: ServerReport,
    environment: Environment,
}

/// What a profile brings to the bundle.
pub(crate) struct Measured {
    pub(crate) profile: Profile,
    pub(crate) workload: crate::bundle::Workload,
    pub(crate) points: Vec<Point>,
    pub(crate) knee: Option<Knee>,
    pub(crate) quality: Option<Quality>,
    pub(crate) records: Vec<RequestRecord>,
    pub(crate) answers: Vec<AnswerRecord>,
}

impl<'a> Session<'a> {
    pub(crate) async fn open(settings: &'a Settings) -> Result<Self, BenchError> {
        let environment = environment("");
        let id_time = jiff::Timestamp::now();
        let client = Client::new(
            &settings.url,
            settings.api,
            settings.api_key.as_deref(),
            settings.timeout,
            Clock::start(),
        )?;
        let (listed, list) = match server_report::models(&client).await {
            Ok((listed, list)) => (Some(listed), list),
            // Some servers have no list; then the names are the user's word.
            Err(ClientError::Status { status, what, .. }) if !settings.models.is_empty() => (
                None,
                Answer {
                    status: Some(status),
                    text: None,
                    error: Some(what),
                },
            ),
            Err(e) => return Err(e.into()),
        };
        let models = asked_models(settings, listed.as_deref())?;
        let version = server_report::ask(&client, "/version").await;
        let not_asked = Answer {
            status: None,
            text: None,
            error: None,
        };
        Ok(Self {
            settings,
            client,
            models,
            id_time,
            server: ServerReport {
                run: String::new(),
                models: list,
                version,
                metrics_before: not_asked.clone(),
                metrics_after: not_asked,
            },
            environment,
        })
    }

    /// Reads the server's metrics; call it when the load begins.
    pub(crate) async fn begin(&mut self) {
        self.server.metrics_before = server_report::ask(&self.client, "/metrics").await;
    }

    /// Reads the server's metrics again and writes the bundle.
    pub(crate) async fn finish(mut self, measured: Measured) -> Result<Finished, BenchError> {
        self.server.metrics_after = server_report::ask(&self.client, "/metrics").await;
        let settings = self.settings;
        let id = run_id(self.id_time, measured.profile);
        self.server.run.clone_from(&id);
        self.environment.run.clone_from(&id);
        let mut engine = settings.engine.clone();
        engine.name = engine.name.or_else(|| server_report::owner(&self.server.models));
        engine.version = engine.version.or_else(|| server_report::version(&self.server.version));
        let run = Run {
            schema_version: SCHEMA_VERSION,
            id,
            profile: measured.profile,
            label: settings.label.clone(),
            started_at: self.id_time.to_string(),
            finished_at: jiff::Timestamp::now().to_string(),
            generator: Software {
                name: "deltamux".into(),
                version: env!("CARGO_PKG_VERSION").into(),
            },
            engine,
            target: Target {
                url: self.client.url(),
                api: settings.api,
            },
            command: settings.command.clone(),
            seed: settings.seed,
            models: self.models,
            workload: measured.workload,
            limits: settings.limits,
            knee: measured.knee,
            points: measured.points,
            quality: measured.quality,
        };
        let bundle = Bundle {
            run,
            records: measured.records,
            answers: measured.answers,
            environment: self.environment,
            server: self.server,
        };
        let path = bundle.write(&settings.out)?;
        Ok(Finished {
            run: bundle.run,
            bundle: path,
        })
    }
}

struct Runner<'a, P> {
    settings: &'a Settings,
    session: Session<'a>,
    source: Source,
    max_in_flight: Option<u32>,
    progress: P,
    records: Vec<RequestRecord>,
    points: Vec<Point>,
    /// Requests planned so far, so that no two prompts of a run are alike.
    planned: u64,
}

impl<'a, P: FnMut(Progress<'_>) + Send> Runner<'a, P> {
    async fn start(settings: &'a Settings, max_in_flight: Option<u32>, progress: P) -> Result<Self, BenchError> {
        if settings.repeats == 0 {
            return Err(BenchError::Settings("--repeats is 0; a point needs at least 1".into()));
        }
        if max_in_flight == Some(0) {
            return Err(BenchError::Settings(
                "--max-in-flight is 0; nothing could be sent".into(),
            ));
        }
        let mut session = Session::open(settings).await?;
        let models = &session.models;
        // Without warm-up nothing but the measured requests is to reach the model.
        let tokens = match settings.warmup {
            Some(0) => TokensOfWords::default(),
            _ => learn_tokens(&session.client, models).await?,
        };
        let source = match &settings.workload {
            Some(workload) => Source::File {
                workload: workload.clone(),
                default_model: models[0].name.clone(),
            },
            None => Source::Synthetic {
                choice: settings.choice,
                models: models.clone(),
                input: settings.input_tokens,
                output: settings.output_tokens,
                ignore_eos: settings.ignore_eos,
                tokens,
            },
        };
        session.begin().await;
        Ok(Self {
            settings,
            session,
            source,
            max_in_flight,
            progress,
            records: Vec::new(),
            points: Vec::new(),
            planned: COUNTED_WORDS.len() as u64,
        })
    }

    fn plan(&mut self, load: &Load, seed: u64, count: usize) -> Arc<Vec<PlannedRequest>> {
        let plan = plan(&self.source, load, seed, count, self.planned);
        self.planned += plan.len() as u64;
        Arc::new(plan)
    }

    async fn point(&mut self, load: Load, requests: u32) -> Result<(), BenchError> {
        let point = self.points.len() as u32;
        let repeats = self.settings.repeats;
        let requests = match &self.source {
            // A file has what it has: asking for more must not repeat its prompts.
            Source::File { workload, .. } => requests.min(workload.requests.len() as u32),
            Source::Synthetic { .. } => requests,
        };
        let first = self.records.len();
        let warmup = self.warm_up(&load, point).await;
        let seeds: Vec<u64> = (0..repeats)
            .map(|r| repeat_seed(self.settings.seed, point, r))
            .collect();
        for (repeat, &seed) in (0u32..).zip(&seeds) {
            let plan = self.plan(&load, seed, requests as usize);
            (self.progress)(Progress::Repeat {
                point,
                load: &load,
                repeat,
                repeats,
                requests: plan.len() as u64,
            });
            let progress = &mut self.progress;
            let on_done = |sent: &Sent| {
                let completed = sent.reply.outcome == Outcome::Completed;
                progress(Progress::Request { completed });
            };
            let sent = match load {
                Load::Open { .. } => open_loop(&self.session.client, &plan, self.max_in_flight, on_done).await,
                Load::Closed { concurrency } => closed_loop(&self.session.client, &plan, concurrency, on_done).await,
            };
            self.records
                .extend(sent.into_iter().map(|s| s.into_record(&plan, point, repeat, false)));
        }
        let planned = PointPlan {
            load,
            requests: u64::from(requests),
            warmup,
            seeds,
        };
        let point = measure::point(&planned, self.settings.limits, &self.records[first..]);
        (self.progress)(Progress::Point(&point));
        self.points.push(point);
        Ok(())
    }

    /// Sends the warm-up requests of a point, to each model in turn, and gives their number.
    async fn warm_up(&mut self, load: &Load, point: u32) -> u64 {
        let count = self.settings.warmup.unwrap_or(self.session.models.len() as u32);
        // A seed that no repeat has.
        let seed = repeat_seed(self.settings.seed, point, u32::MAX);
        let mut plan = plan(&self.source, load, seed, count as usize, self.planned);
        self.planned += plan.len() as u64;
        if matches!(self.source, Source::Synthetic { .. }) {
            for (request, model) in plan.iter_mut().zip(self.session.models.iter().cycle()) {
                request.model.clone_from(&model.name);
            }
        }
        let concurrency = match load {
            Load::Open { .. } => WARMUP_IN_FLIGHT,
            Load::Closed { concurrency } => *concurrency,
        };
        let plan = Arc::new(plan);
        let sent = closed_loop(&self.session.client, &plan, concurrency, |_| {}).await;
        self.records
            .extend(sent.into_iter().map(|s| s.into_record(&plan, point, 0, true)));
        plan.len() as u64
    }

    async fn finish(self, profile: Profile, find_knee: bool) -> Result<Finished, BenchError> {
        let settings = self.settings;
        let from_file = settings.workload.as_ref();
        let workload = crate::bundle::Workload {
            variants: from_file.is_none().then_some(settings.choice),
            input_tokens: from_file.is_none().then_some(settings.input_tokens),
            output_tokens: from_file.is_none().then_some(settings.output_tokens),
            ignore_eos: from_file.map_or(settings.ignore_eos, |w| w.requests.iter().all(|r| r.ignore_eos)),
            file: from_file.map(|w| w.source.clone()),
            max_in_flight: self.max_in_flight,
            timeout_s: settings.timeout.as_secs_f64(),
        };
        let measured = Measured {
            profile,
            workload,
            knee: find_knee.then(|| knee::knee(&self.points)),
            points: self.points,
            quality: None,
            records: self.records,
            answers: Vec::new(),
        };
        self.session.finish(measured).await
    }
}

/// Time, profile and a short random part.
fn run_id(time: jiff::Timestamp, profile: Profile) -> String {
    // The standard library's hash keys come from the system's random source.
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), time.as_nanosecond());
    format!(
        "{}-{profile}-{:06x}",
        time.strftime("%Y%m%dT%H%M%SZ"),
        random & 0xff_ffff
    )
}

/// The models of the run: those that a workload file and `--models` name, or every variant, or the first listed.
fn asked_models(settings: &Settings, listed: Option<&[Model]>) -> Result<Vec<Model>, BenchError> {
    let find = |name: &str| match listed {
        None => Ok(Model {
            name: name.to_owned(),
            parent: None,
            digest: None,
            weight: None,
            bytes: None,
        }),
        Some(listed) => listed
            .iter()
            .find(|m| m.name == name)
            .cloned()
            .ok_or_else(|| BenchError::UnknownModel {
                name: name.to_owned(),
                listed: listed.iter().map(|m| m.name.as_str()).collect::<Vec<_>>().join(", "),
            }),
    };
    let in_file = settings
        .workload
        .iter()
        .flat_map(|w| &w.requests)
        .filter_map(|r| r.model.as_deref());
    let mut models: Vec<Model> = Vec::new();
    for name in in_file.chain(settings.models.iter().map(String::as_str)) {
        if models.iter().all(|m| m.name != name) {
            models.push(find(name)?);
        }
    }
    let listed = listed.unwrap_or_default();
    if models.is_empty() {
        models = listed.iter().filter(|m| m.parent.is_some()).cloned().collect();
    }
    if models.is_empty() {
        models.extend(listed.first().cloned());
    }
    if models.is_empty() {
        return Err(BenchError::Settings(
            "the server lists no model; name one with --models".into(),
        ));
    }
    if settings.choice == Choice::Weights && settings.workload.is_none() {
        if let Some(name) = settings
            .weights
            .keys()
            .find(|name| models.iter().all(|m| m.name != **name))
        {
            return Err(BenchError::Settings(format!(
                "--variants gives `{name}` a weight, but it is not asked"
            )));
        }
        for model in &mut models {
            model.weight = Some(settings.weights.get(&model.name).copied().unwrap_or(0.0));
        }
        if !models.iter().any(|m| m.weight.is_some_and(|w| w > 0.0)) {
            return Err(BenchError::Settings(
                "--variants: no model that is asked has a weight above 0".into(),
            ));
        }
    }
    Ok(models)
}

/// Asks two questions of different length and learns from the server's own counts how many tokens a word is. They are
/// also the trial without which a wrong key or endpoint would only show as a run full of failures; a server that fails
/// in another way is there to be measured.
async fn learn_tokens(client: &Client, models: &[Model]) -> Result<TokensOfWords, BenchError> {
    let mut rng = <rand_chacha::ChaCha8Rng as rand::SeedableRng>::seed_from_u64(0);
    let mut counts = Vec::new();
    for (number, words) in (0u64..).zip(COUNTED_WORDS) {
        let request = PlannedRequest {
            due_s: None,
            model: models[0].name.clone(),
            prompt: synthetic(number, words, &mut rng),
            min_tokens: None,
            max_tokens: Some(1),
            ignore_eos: false,
        };
        let reply = client.send(&request).await;
        match reply.outcome {
            Outcome::Failed { kind, error } if HOPELESS.contains(&kind.as_str()) => {
                return Err(BenchError::Trial {
                    model: request.model,
                    kind,
                    error,
                });
            }
            Outcome::Failed { .. } => {}
            Outcome::Completed => {
                counts.extend(reply.usage.and_then(|u| u.prompt_tokens).map(|tokens| (words, tokens)));
            }
        }
    }
    Ok(match counts[..] {
        [short, long] => TokensOfWords::through(short, long).unwrap_or_default(),
        _ => TokensOfWords::default(),
    })
}
