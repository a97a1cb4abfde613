//! The quality profile: tasks with known answers over the chat endpoint, and how many are answered right.

pub mod figures;
pub(crate) mod rows;

use std::path::Path;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::bundle::{
    AnswerRecord, Api, DivergenceSums, Load, Model, Outcome, Profile, Quality, Reference, RequestRecord, TaskFile,
    Workload,
};
use crate::load::{Sent, closed_loop};
use crate::measure::{self, PointPlan};
use crate::plan::PlannedRequest;
use crate::profile::{BenchError, Finished, Measured, Progress, Session, Settings};
use crate::prompts::Prompt;
use crate::tasks::{Task, TasksError, matches, parse_tasks};
use figures::ScorePlan;

/// A file of tasks that was read.
#[derive(Debug, Clone)]
pub struct TaskSet {
    /// Its name, digest and number of tasks.
    pub file: TaskFile,
    /// The tasks.
    pub tasks: Vec<Task>,
}

impl TaskSet {
    /// Reads a file of tasks, at most `limit`, for every model or for one.
    pub fn read(path: &Path, limit: Option<usize>, model: Option<String>) -> Result<Self, TasksError> {
        let bytes = fs_err::read(path)?;
        let tasks = parse_tasks(&bytes, path, limit)?;
        let name = path.file_name().unwrap_or(path.as_os_str());
        Ok(Self {
            file: TaskFile {
                name: name.to_string_lossy().into_owned(),
                sha256: hex::encode(Sha256::digest(&bytes)),
                items: tasks.len() as u64,
                model,
            },
            tasks,
        })
    }

    /// Whether a model is asked these tasks.
    pub fn is_for(&self, model: &str) -> bool {
        self.file.is_for(model)
    }
}

/// A model's predictions compared with those of a full fine-tune; see [`crate::agreement::compare`].
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The model.
    pub model: String,
    /// The file of tasks, by its place.
    pub tasks: usize,
    /// The full fine-tune.
    pub reference: Reference,
    /// One for each task; `None` where the right answer has no token.
    pub sums: Vec<Option<DivergenceSums>>,
}

/// What is asked, beside the settings that every profile has. Temperature is 0.
#[derive(Debug, Clone)]
pub struct QualityProfile {
    /// Files of tasks.
    pub tasks: Vec<TaskSet>,
    /// Requests in flight.
    pub concurrency: u32,
    /// Completion tokens of an answer at most.
    pub max_tokens: u32,
    /// Comparisons that were made.
    pub comparisons: Vec<Comparison>,
    /// Why there are no others.
    pub not_compared: String,
}

/// Asks every model every file of tasks that is for it and writes the bundle, also when requests fail: see
/// [`answered`]. See [`crate::profile::arrivals`] for the runtime.
pub async fn quality(
    settings: &Settings,
    profile: &QualityProfile,
    mut progress: impl FnMut(Progress<'_>) + Send,
) -> Result<Finished, BenchError> {
    check(settings, profile)?;
    let mut session = Session::open(settings).await?;
    session.models = asked(settings, profile, std::mem::take(&mut session.models))?;
    session.begin().await;
    let client = session.client.clone().keeping_text();
    let load = Load::Closed {
        concurrency: profile.concurrency,
    };
    let (mut records, mut answers) = (Vec::new(), Vec::new());
    let (mut points, mut scores) = (Vec::new(), Vec::new());
    for model in &session.models {
        for (place, set) in profile
            .tasks
            .iter()
            .enumerate()
            .filter(|(_, set)| set.is_for(&model.name))
        {
            progress(Progress::Tasks {
                model: &model.name,
                tasks: &set.file.name,
                requests: set.file.items,
            });
            let plan = Arc::new(plan(&model.name, set, profile.max_tokens));
            let on_done = |sent: &Sent| {
                let completed = sent.reply.outcome == Outcome::Completed;
                progress(Progress::Request { completed });
            };
            let sent = closed_loop(&client, &plan, profile.concurrency, on_done).await;
            let comparison = profile
                .comparisons
                .iter()
                .find(|c| c.model == model.name && c.tasks == place);
            let point = points.len() as u32;
            let (first_record, first_answer) = (records.len(), answers.len());
            for (mut sent, task) in sent.into_iter().zip(&set.tasks) {
                let text = std::mem::take(&mut sent.reply.text);
                let record = sent.into_record(&plan, point, 0, false);
                let divergence = comparison.and_then(|c| c.sums.get(record.request as usize).copied().flatten());
                answers.push(answer(&record, &set.file, task, text, divergence));
                records.push(record);
            }
            let planned = PointPlan {
                load: load.clone(),
                requests: set.file.items,
                warmup: 0,
                seeds: vec![settings.seed],
            };
            let measured = measure::point(&planned, None, &records[first_record..]);
            progress(Progress::Point(&measured));
            points.push(measured);
            let plan = ScorePlan {
                model: model.name.clone(),
                tasks: place as u32,
                precision: settings.engine.precision.clone(),
                reference: comparison.map(|c| c.reference.clone()),
                divergence_absent: comparison.is_none().then(|| profile.not_compared.clone()),
            };
            let (records, answers): (Vec<_>, Vec<_>) = (
                records[first_record..].iter().collect(),
                answers[first_answer..].iter().collect(),
            );
            scores.push(figures::score(plan, &records, &answers));
        }
    }
    let measured = Measured {
        profile: Profile::Quality,
        workload: Workload {
            variants: None,
            input_tokens: None,
            output_tokens: None,
            ignore_eos: false,
            file: None,
            max_in_flight: None,
            timeout_s: settings.timeout.as_secs_f64(),
        },
        points,
        knee: None,
        quality: Some(Quality {
            max_tokens: profile.max_tokens,
            tasks: profile.tasks.iter().map(|set| set.file.clone()).collect(),
            scores,
        }),
        records,
        answers,
    };
    session.finish(measured).await
}

/// Requests of a finished run that were answered.
pub fn answered(finished: &Finished) -> u64 {
    let scores = finished.run.quality.iter().flat_map(|quality| &quality.scores);
    scores.map(|score| score.answered).sum()
}

fn check(settings: &Settings, profile: &QualityProfile) -> Result<(), BenchError> {
    let refuse = |what: &str| Err(BenchError::Settings(what.into()));
    if settings.api != Api::Chat {
        return refuse("tasks are chat messages; they go to the chat endpoint");
    }
    if profile.tasks.is_empty() {
        return refuse("--tasks names no file");
    }
    if profile.concurrency == 0 {
        return refuse("--concurrency is 0; nothing could be sent");
    }
    if profile.max_tokens == 0 {
        return refuse("--max-tokens is 0; an answer needs at least 1");
    }
    for (i, set) in profile.tasks.iter().enumerate() {
        let own = &set.file;
        let models = |other: &TaskFile| other.model.is_none() || own.model.is_none() || other.model == own.model;
        if profile.tasks[..i]
            .iter()
            .any(|other| other.file.sha256 == own.sha256 && models(&other.file))
        {
            return Err(BenchError::Settings(format!(
                "--tasks: {} would be asked twice, as another file is the same",
                set.file.name
            )));
        }
    }
    Ok(())
}

/// The models that tasks are for: those that were named, which must all have some, or those of the server's that do.
fn asked(settings: &Settings, profile: &QualityProfile, models: Vec<Model>) -> Result<Vec<Model>, BenchError> {
    for name in profile.tasks.iter().filter_map(|set| set.file.model.as_deref()) {
        if models.iter().all(|m| m.name != name) {
            let listed: Vec<&str> = models.iter().map(|m| m.name.as_str()).collect();
            return Err(BenchError::Settings(format!(
                "--tasks {name}=…: `{name}` is not among the models that are asked: {}",
                listed.join(", ")
            )));
        }
    }
    let (with, without): (Vec<Model>, Vec<Model>) = models
        .into_iter()
        .partition(|model| profile.tasks.iter().any(|set| set.is_for(&model.name)));
    match without.first() {
        Some(model) if !settings.models.is_empty() => Err(BenchError::Settings(format!(
            "no --tasks are for `{}`; name a file for it, or leave it out",
            model.name
        ))),
        _ => Ok(with),
    }
}

fn plan(model: &str, set: &TaskSet, max_tokens: u32) -> Vec<PlannedRequest> {
    set.tasks
        .iter()
        .map(|task| PlannedRequest {
            due_s: None,
            model: model.to_owned(),
            prompt: Prompt::Messages(task.messages.clone()),
            min_tokens: None,
            max_tokens: Some(max_tokens),
            ignore_eos: false,
        })
        .collect()
}

fn answer(
    record: &RequestRecord,
    file: &TaskFile,
    task: &Task,
    text: String,
    divergence: Option<DivergenceSums>,
) -> AnswerRecord {
    let answer = record.completed().then_some(text);
    let messages = serde_json::Value::Array(task.messages.clone()).to_string();
    AnswerRecord {
        point: record.point,
        request: record.request,
        model: record.model.clone(),
        tasks_sha256: file.sha256.clone(),
        line: task.line as u64,
        prompt_sha256: hex::encode(Sha256::digest(messages)),
        expected: task.answer.clone(),
        outcome: record.outcome.name().to_owned(),
        matches: answer.as_deref().map(|answer| matches(answer, &task.answer)),
        answer,
        prompt_tokens: record.prompt_tokens,
        completion_tokens: record.completion_tokens,
        divergence,
    }
}
