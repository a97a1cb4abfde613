//! `bench verify`: recomputes every figure of a bundle from its raw events and checks its digests.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::bundle::{
    ANSWERS_FILE, AnswerRecord, DIGESTS_FILE, ENVIRONMENT_FILE, EVENTS_FILE, Environment, Profile, RUN_FILE,
    RequestRecord, Run, SERVER_FILE, ServerReport, digests, json, parse_json, read_answers, read_events, write_answers,
};
use crate::knee;
use crate::measure::{self, PointPlan};
use crate::quality::{figures, rows};

/// What verification found.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Verification {
    /// The folder.
    pub bundle: String,
    /// Validated or not.
    pub status: Status,
    /// Why not; empty when validated.
    pub reasons: Vec<String>,
}

/// Whether a bundle can be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Every digest is right and every figure follows from the raw events.
    Validated,
    /// Anything else.
    Unvalidated,
}

/// Files whose digests are kept, in the order of `SHA256SUMS`. All but the first are in every bundle.
const FILES: [&str; 5] = [ANSWERS_FILE, ENVIRONMENT_FILE, EVENTS_FILE, RUN_FILE, SERVER_FILE];

/// Verifies the bundle in the folder `path`. An error only when the folder itself cannot be read.
pub fn verify(path: &Path) -> std::io::Result<Verification> {
    let reasons = match read_files(path)? {
        Ok(files) => check(&files),
        Err(reasons) => reasons,
    };
    let status = if reasons.is_empty() {
        Status::Validated
    } else {
        Status::Unvalidated
    };
    Ok(Verification {
        bundle: path.display().to_string(),
        status,
        reasons,
    })
}

type Files = BTreeMap<String, Vec<u8>>;

/// The bytes of the folder's files, if it holds those of a bundle and nothing else.
fn read_files(path: &Path) -> std::io::Result<Result<Files, Vec<String>>> {
    let mut files = Files::new();
    let mut reasons = Vec::new();
    for entry in fs_err::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !FILES.contains(&name.as_str()) && name != DIGESTS_FILE {
            reasons.push(format!("{name}: is no file of a bundle"));
        } else if !entry.file_type()?.is_file() {
            reasons.push(format!("{name}: is no regular file"));
        } else {
            match fs_err::read(entry.path()) {
                Ok(bytes) => {
                    files.insert(name, bytes);
                }
                Err(e) => reasons.push(e.to_string()),
            }
        }
    }
    for name in FILES.into_iter().chain([DIGESTS_FILE]) {
        // Whether there must be answers, run.json says.
        if name != ANSWERS_FILE && !files.contains_key(name) && !reasons.iter().any(|reason| reason.starts_with(name)) {
            reasons.push(format!("{name}: is missing"));
        }
    }
    reasons.sort();
    Ok(if reasons.is_empty() { Ok(files) } else { Err(reasons) })
}

fn check(files: &Files) -> Vec<String> {
    let bytes = |name: &str| files.get(name).map(Vec::as_slice).unwrap_or_default();
    let mut reasons = Vec::new();
    check_digests(files, &mut reasons);

    let run = Run::parse(bytes(RUN_FILE), Path::new(RUN_FILE)).map_err(|e| e.to_string());
    // Events that are not those that were written prove nothing, and need not be a file that can be read at all.
    let events_intact = !reasons.iter().any(|reason| reason.starts_with(EVENTS_FILE));
    let records = match events_intact {
        true => read_events(bytes(EVENTS_FILE).to_vec()).map_err(|e| Some(e.to_string())),
        false => Err(None),
    };
    let environment = parse_json::<Environment>(bytes(ENVIRONMENT_FILE), Path::new(ENVIRONMENT_FILE));
    let server = parse_json::<ServerReport>(bytes(SERVER_FILE), Path::new(SERVER_FILE));
    let ids = [
        (ENVIRONMENT_FILE, environment.map(|e| e.run).map_err(|e| e.to_string())),
        (SERVER_FILE, server.map(|s| s.run).map_err(|e| e.to_string())),
    ];
    let answers = files.get(ANSWERS_FILE).map(|bytes| parse_answers(bytes));
    match (&run, &records) {
        (Ok(run), Ok(records)) => {
            let before = reasons.len();
            check_rows(run, records, &mut reasons);
            let answers = check_answers(run, records, answers, &mut reasons);
            // Only complete rows make figures that can be compared.
            if reasons.len() == before {
                check_figures(run, bytes(RUN_FILE), records, &answers, &mut reasons);
            }
            for (file, id) in ids {
                match id {
                    Ok(id) if id == run.id => {}
                    Ok(id) => reasons.push(format!("{file}: belongs to the run {id}, not to {}", run.id)),
                    Err(e) => reasons.push(e),
                }
            }
        }
        _ => {
            reasons.extend(run.err());
            reasons.extend(records.err().flatten());
            reasons.extend(ids.into_iter().filter_map(|(_, id)| id.err()));
        }
    }
    reasons
}

/// The answers, if their bytes are those that would be written.
fn parse_answers(bytes: &[u8]) -> Result<Vec<AnswerRecord>, String> {
    let answers = read_answers(bytes).map_err(|e| format!("{ANSWERS_FILE}: {e}"))?;
    match write_answers(&answers) {
        Ok(again) if again == bytes => Ok(answers),
        _ => Err(format!("{ANSWERS_FILE}: is not in the form in which it is written")),
    }
}

/// A bundle of the quality profile has answers and quality figures, any other has neither; and the answers fit the
/// requests.
fn check_answers(
    run: &Run,
    records: &[RequestRecord],
    answers: Option<Result<Vec<AnswerRecord>, String>>,
    reasons: &mut Vec<String>,
) -> Vec<AnswerRecord> {
    let profile = run.profile == Profile::Quality;
    match (&run.quality, answers) {
        (None, None) if !profile => Vec::new(),
        (Some(quality), Some(Ok(answers))) if profile => {
            reasons.extend(rows::check(run, quality, records, &answers));
            answers
        }
        (Some(_), Some(Err(why))) if profile => {
            reasons.push(why);
            Vec::new()
        }
        (Some(_), None) if profile => {
            reasons.push(format!("{ANSWERS_FILE}: is missing"));
            Vec::new()
        }
        (None, _) if profile => {
            reasons.push(format!(
                "{RUN_FILE}: quality is absent from a run of the quality profile"
            ));
            Vec::new()
        }
        (Some(_), _) => {
            reasons.push(format!(
                "{RUN_FILE}: quality does not belong to the profile {}",
                run.profile
            ));
            Vec::new()
        }
        (None, _) => {
            reasons.push(format!(
                "{ANSWERS_FILE}: does not belong to the profile {}",
                run.profile
            ));
            Vec::new()
        }
    }
}

fn check_digests(files: &Files, reasons: &mut Vec<String>) {
    let written = files
        .get(DIGESTS_FILE)
        .map(|b| String::from_utf8_lossy(b))
        .unwrap_or_default();
    let expected = digests(
        FILES
            .iter()
            .filter_map(|name| Some((*name, files.get(*name)?.as_slice()))),
    );
    if written == expected {
        return;
    }
    let before = reasons.len();
    let present = FILES.iter().filter(|name| files.contains_key(**name));
    for (name, line) in present.zip(expected.lines()) {
        if !written.lines().any(|found| found == line) {
            reasons.push(format!("{name}: is not what its digest in {DIGESTS_FILE} says"));
        }
    }
    if reasons.len() == before {
        reasons.push(format!(
            "{DIGESTS_FILE}: holds more than the digests of the bundle's files, or in another form"
        ));
    }
}

/// Every request that was due must have its row: a figure could be made better by leaving some out.
fn check_rows(run: &Run, records: &[RequestRecord], reasons: &mut Vec<String>) {
    if run.points.is_empty() {
        reasons.push(format!("{RUN_FILE}: holds no point"));
    }
    // (point, repeat, warm-up) → the rows that are due.
    let mut due: BTreeMap<(u32, u32, bool), u64> = BTreeMap::new();
    for (p, point) in (0u32..).zip(&run.points) {
        if point.repeats.is_empty() {
            reasons.push(format!("{RUN_FILE}: point {} has no repeat", p + 1));
        }
        for (r, _) in (0u32..).zip(&point.repeats) {
            due.insert((p, r, false), point.requests);
        }
        if point.warmup > 0 {
            due.insert((p, 0, true), point.warmup);
        }
    }
    let mut found: BTreeMap<(u32, u32, bool), u64> = BTreeMap::new();
    for record in records {
        let key = (record.point, record.repeat, record.warmup);
        let next = found.entry(key).or_insert(0);
        if u64::from(record.request) != *next {
            let (p, r) = (record.point + 1, record.repeat + 1);
            reasons.push(format!(
                "{EVENTS_FILE}: point {p}, repeat {r}: request {} where {next} is due",
                record.request
            ));
            return;
        }
        *next += 1;
    }
    for key in due
        .keys()
        .chain(found.keys())
        .collect::<std::collections::BTreeSet<_>>()
    {
        let (due, found) = (due.get(key).copied().unwrap_or(0), found.get(key).copied().unwrap_or(0));
        if due != found {
            let (p, r) = (key.0 + 1, key.1 + 1);
            let kind = if key.2 { "warm-up requests" } else { "requests" };
            reasons.push(format!(
                "{EVENTS_FILE}: point {p}, repeat {r}: {found} {kind}, {RUN_FILE} says {due}"
            ));
        }
    }
}

/// Compares run.json with what the raw events give, byte for byte.
fn check_figures(
    run: &Run,
    written: &[u8],
    records: &[RequestRecord],
    answers: &[AnswerRecord],
    reasons: &mut Vec<String>,
) {
    let mut again = run.clone();
    again.points = (0u32..)
        .zip(&run.points)
        .map(|(p, point)| {
            let plan = PointPlan {
                load: point.load.clone(),
                requests: point.requests,
                warmup: point.warmup,
                seeds: point.repeats.iter().map(|r| r.seed).collect(),
            };
            let of_point: Vec<RequestRecord> = records.iter().filter(|r| r.point == p).cloned().collect();
            measure::point(&plan, run.limits, &of_point)
        })
        .collect();
    again.knee = run.knee.as_ref().map(|_| knee::knee(&again.points));
    again.quality = run
        .quality
        .as_ref()
        .map(|stated| figures::again(stated, records, answers));
    let Ok(expected) = json(&again, Path::new(RUN_FILE)) else {
        reasons.push(format!("{RUN_FILE}: cannot be written again"));
        return;
    };
    if expected == written {
        return;
    }
    let before = reasons.len();
    if let (Ok(found), Ok(expected)) = (
        serde_json::from_slice::<Value>(written),
        serde_json::from_slice::<Value>(&expected),
    ) {
        differences(String::new(), &found, &expected, reasons);
    }
    if reasons.len() == before {
        reasons.push(format!("{RUN_FILE}: is not in the form in which it is written"));
    }
}

/// Differences that are named at most.
const NAMED: usize = 20;

/// Names the figures in which two documents differ.
fn differences(at: String, found: &Value, expected: &Value, reasons: &mut Vec<String>) {
    if found == expected || reasons.len() >= NAMED {
        return;
    }
    match (found, expected) {
        (Value::Object(f), Value::Object(e)) => {
            let keys: std::collections::BTreeSet<&String> = f.keys().chain(e.keys()).collect();
            for key in keys {
                let missing = Value::Null;
                let at = if at.is_empty() {
                    key.clone()
                } else {
                    format!("{at}.{key}")
                };
                differences(
                    at,
                    f.get(key).unwrap_or(&missing),
                    e.get(key).unwrap_or(&missing),
                    reasons,
                );
            }
        }
        (Value::Array(f), Value::Array(e)) if f.len() == e.len() => {
            for (i, (f, e)) in f.iter().zip(e).enumerate() {
                differences(format!("{at}[{i}]"), f, e, reasons);
            }
        }
        _ => {
            let text = |v: &Value| {
                if v.is_null() {
                    "absent".to_owned()
                } else {
                    v.to_string()
                }
            };
            reasons.push(format!(
                "{RUN_FILE}: {at} is {}, the events give {}",
                text(found),
                text(expected)
            ));
        }
    }
}
