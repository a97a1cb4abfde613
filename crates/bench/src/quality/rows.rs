//! Whether the answers of a bundle are those of its requests and of its files of tasks: what verification checks before
//! it recomputes any figure.

use std::collections::BTreeMap;

use crate::bundle::{
    ANSWERS_FILE, AnswerRecord, ChunkKind, DivergenceSums, Quality, RUN_FILE, RequestRecord, Run, TaskFile,
};
use crate::tasks::matches;

/// Reasons that are given at most: one mistake often shows in every line.
const NAMED: usize = 20;

/// What is wrong with the answers, if anything is.
pub fn check(run: &Run, quality: &Quality, records: &[RequestRecord], answers: &[AnswerRecord]) -> Vec<String> {
    let mut reasons = points(run, quality);
    if reasons.is_empty() && answers.len() != records.len() {
        reasons.push(format!(
            "{ANSWERS_FILE}: {} answers to {} requests",
            answers.len(),
            records.len()
        ));
    }
    if !reasons.is_empty() {
        return reasons;
    }
    // (file, place in it) → the line that was first seen there.
    let mut seen: BTreeMap<(&str, u32), &AnswerRecord> = BTreeMap::new();
    let mut before: Option<&AnswerRecord> = None;
    for (i, (record, answer)) in records.iter().zip(answers).enumerate() {
        let first = *seen.entry((&answer.tasks_sha256, answer.request)).or_insert(answer);
        let what = task(quality, record, answer)
            .or_else(|| outcome(quality, record, answer))
            .or_else(|| answer.divergence.and_then(|sums| divergence(&sums)))
            .or_else(|| order(first, before, answer));
        if let Some(what) = what {
            reasons.push(format!("{ANSWERS_FILE}: line {}: {what}", i + 1));
        }
        if reasons.len() >= NAMED {
            break;
        }
        before = Some(answer);
    }
    reasons
}

/// There is a score for every model and every file that is for it, each stands for one point, and for all tasks that its
/// file is said to have given.
fn points(run: &Run, quality: &Quality) -> Vec<String> {
    let due = run.models.iter().flat_map(|model| {
        let files = (0u32..)
            .zip(&quality.tasks)
            .filter(|(_, file)| file.is_for(&model.name));
        files.map(|(place, _)| (model.name.as_str(), place))
    });
    let found = quality.scores.iter().map(|score| (score.model.as_str(), score.tasks));
    if !due.eq(found) {
        return vec![format!(
            "{RUN_FILE}: quality.scores are not one for each model and file of tasks that is for it"
        )];
    }
    if quality.scores.len() != run.points.len() {
        let (scores, points) = (quality.scores.len(), run.points.len());
        return vec![format!("{RUN_FILE}: {scores} scores for {points} points")];
    }
    let mut reasons = Vec::new();
    for (k, (score, point)) in quality.scores.iter().zip(&run.points).enumerate() {
        let what = match file(quality, score.tasks) {
            None => Some(format!("tasks is {}, of {}", score.tasks, quality.tasks.len())),
            Some(file) if file.items != point.requests => Some(format!(
                "{} gave {} tasks, the point has {} requests",
                file.name, file.items, point.requests
            )),
            Some(_) if point.warmup != 0 || point.repeats.len() != 1 => {
                Some("its point has warm-up requests or repeats".to_owned())
            }
            Some(_) if score.precision != run.engine.precision => {
                Some("precision is not that of the engine".to_owned())
            }
            Some(_) if score.divergence.is_none() && score.divergence_absent.as_deref().is_none_or(str::is_empty) => {
                Some("divergence is null without a reason".to_owned())
            }
            Some(_) => None,
        };
        reasons.extend(what.map(|what| format!("{RUN_FILE}: quality.scores[{k}]: {what}")));
    }
    reasons
}

fn file(quality: &Quality, place: u32) -> Option<&TaskFile> {
    quality.tasks.get(place as usize)
}

/// The task is that of the request, of the model and the file that its point's score names.
fn task(quality: &Quality, record: &RequestRecord, answer: &AnswerRecord) -> Option<String> {
    if (answer.point, answer.request) != (record.point, record.request) {
        return Some(format!(
            "is of point {}, request {}, where point {}, request {} is due",
            answer.point, answer.request, record.point, record.request
        ));
    }
    let score = quality.scores.get(record.point as usize)?;
    let file = file(quality, score.tasks)?;
    if answer.model != score.model || record.model != score.model {
        return Some(format!(
            "model is `{}`, the point is of `{}`",
            answer.model, score.model
        ));
    }
    if answer.tasks_sha256 != file.sha256 {
        return Some(format!("is of another file than {}", file.name));
    }
    if score.divergence.is_some() && answer.divergence.is_none() && !answer.expected.trim().is_empty() {
        return Some("has no divergence, which was measured for every task with an answer".to_owned());
    }
    if score.divergence.is_none() && answer.divergence.is_some() {
        return Some(format!("has a divergence, which {RUN_FILE} says was not measured"));
    }
    None
}

/// Outcome, tokens and text are those of the request, and the mark follows from the text.
fn outcome(quality: &Quality, record: &RequestRecord, answer: &AnswerRecord) -> Option<String> {
    if answer.outcome != record.outcome.name() {
        let found = record.outcome.name();
        return Some(format!("outcome is {}, the events say {found}", answer.outcome));
    }
    if (answer.prompt_tokens, answer.completion_tokens) != (record.prompt_tokens, record.completion_tokens) {
        return Some("its tokens are not those of the events".to_owned());
    }
    if record.max_tokens != Some(quality.max_tokens) {
        return Some(format!("was not asked for at most {} tokens", quality.max_tokens));
    }
    let text = match (&answer.answer, record.completed()) {
        (Some(text), true) => text,
        (None, false) if answer.matches.is_none() => return None,
        (None, false) => return Some("a failed request has a match".to_owned()),
        (None, true) => return Some("a completed request has no answer".to_owned()),
        (Some(_), false) => return Some("a failed request has an answer".to_owned()),
    };
    let right = matches(text, &answer.expected);
    if answer.matches != Some(right) {
        let stated = answer.matches.map_or("null", |m| if m { "true" } else { "false" });
        return Some(format!("match is {stated}, the answer makes it {right}"));
    }
    let chunks = record.chunks.iter().filter(|c| c.kind == ChunkKind::Text);
    let (found, arrived) = (
        text.chars().count() as u64,
        chunks.map(|c| u64::from(c.chars)).sum::<u64>(),
    );
    if found != arrived {
        return Some(format!("the answer has {found} characters, {arrived} arrived"));
    }
    None
}

/// Positions of one answer that no model has: sums over a bundle's lines stay far below what a number holds.
const MOST_POSITIONS: u64 = 1 << 32;

fn divergence(sums: &DivergenceSums) -> Option<String> {
    let figures = [sums.kl_nats, sums.loss_nats, sums.reference_loss_nats];
    let possible = (1..MOST_POSITIONS).contains(&sums.positions)
        && sums.same <= sums.positions
        && figures.iter().all(|x| x.is_finite() && *x >= 0.0);
    (!possible).then(|| "its divergence cannot be".to_owned())
}

/// A file's tasks come in the order of its lines, and every model gets the same.
fn order(first: &AnswerRecord, before: Option<&AnswerRecord>, answer: &AnswerRecord) -> Option<String> {
    let task = |a: &AnswerRecord| (a.line, a.prompt_sha256.clone(), a.expected.clone());
    if task(first) != task(answer) {
        return Some(format!("is another task than `{}` was asked there", first.model));
    }
    before
        .filter(|before| before.point == answer.point && before.line >= answer.line)
        .map(|before| format!("line {} of the tasks after line {}", answer.line, before.line))
}
