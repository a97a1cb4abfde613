//! The quality profile: what is asked, what is counted, and that no change to what was answered goes unseen.

mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Script, end, mock, settings, text};
use deltamux_bench::bundle::{
    ANSWERS_FILE, Bundle, DIGESTS_FILE, DivergenceSums, EVENTS_FILE, Outcome, RUN_FILE, Reference, read_answers,
    write_answers, write_events,
};
use deltamux_bench::profile::{Finished, Settings};
use deltamux_bench::quality::{Comparison, QualityProfile, TaskSet, answered, quality};
use deltamux_bench::verify::verify;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Ten tasks whose answer is the doubled number; a blank line among them.
fn tasks(folder: &Path, name: &str) -> PathBuf {
    let line = |i: u32| {
        let task =
            json!({ "messages": [{ "role": "user", "content": format!("twice {i}") }], "answer": (2 * i).to_string() });
        format!("{task}\n")
    };
    let path = folder.join(name);
    let lines: Vec<String> = (0..10).map(line).collect();
    fs_err::write(&path, format!("{}\n{}", lines[..5].concat(), lines[5..].concat())).unwrap();
    path
}

fn stream(answer: &str, finish: &str) -> Script {
    // In two pieces, as tokens come, one of them with white space that is forgiven.
    let (a, b) = answer.split_at(answer.len() / 2);
    let pieces = [text(&format!(" {a}"), None), text(b, Some(finish)), end(7, 3)];
    Script::Stream(pieces.into_iter().map(|piece| (Duration::ZERO, piece)).collect())
}

/// `sql` is right but for 3 (wrong), 4 (refused) and 9 (cut off); `date` always answers in the same wrong way.
fn behave(_: usize, body: &Value) -> Script {
    assert_eq!((&body["temperature"], &body["max_tokens"]), (&0.into(), &16.into()));
    let asked = body["messages"][0]["content"].as_str().unwrap();
    let number: u32 = asked.rsplit(' ').next().unwrap().parse().unwrap();
    match (body["model"].as_str().unwrap(), number) {
        ("date", _) => stream("nö", "stop"),
        (_, 3) => stream("seven", "stop"),
        (_, 4) => Script::Refuse(503, json!({ "error": { "message": "no room" } })),
        (_, 9) => stream("1", "length"),
        _ => stream(&(2 * number).to_string(), "stop"),
    }
}

fn profile(sets: Vec<TaskSet>) -> QualityProfile {
    QualityProfile {
        tasks: sets,
        concurrency: 3,
        max_tokens: 16,
        comparisons: Vec::new(),
        not_compared: "no fine-tune was named".into(),
    }
}

fn comparison() -> Comparison {
    let sums = |i: u64| DivergenceSums {
        positions: 2,
        kl_nats: 0.25 * i as f64,
        same: 1,
        loss_nats: 1.0,
        reference_loss_nats: 0.5,
    };
    Comparison {
        model: "sql".into(),
        tasks: 0,
        reference: Reference {
            name: "sql-full".into(),
            digest: "sha256:ab".into(),
        },
        sums: (0..10).map(|i| Some(sums(i))).collect(),
    }
}

async fn run(out: &tempfile::TempDir, change: impl FnOnce(&mut Settings, &mut QualityProfile)) -> Finished {
    let url = mock(behave).await;
    let mut settings = settings(&url, out);
    settings.engine.precision = Some("q8".into());
    let mut profile = profile(vec![
        TaskSet::read(&tasks(out.path(), "twice.jsonl"), None, None).unwrap(),
    ]);
    profile.comparisons.push(comparison());
    change(&mut settings, &mut profile);
    let finished = quality(&settings, &profile, |_| {}).await.unwrap();
    assert_eq!(reasons(&finished.bundle), Vec::<String>::new());
    finished
}

fn reasons(bundle: &Path) -> Vec<String> {
    verify(bundle).unwrap().reasons
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn right_wrong_and_failed_are_counted_apart() {
    let out = tempfile::tempdir().unwrap();
    let finished = run(&out, |_, _| {}).await;
    let figures = finished.run.quality.clone().unwrap();
    assert_eq!((figures.tasks[0].items, figures.max_tokens), (10, 16));
    let sql = &figures.scores[0];
    assert_eq!((sql.model.as_str(), sql.precision.as_deref()), ("sql", Some("q8")));
    assert_eq!(
        (sql.items, sql.answered, sql.correct, sql.failed, sql.cut),
        (10, 9, 7, 1, 1)
    );
    let share = sql.exact_match.unwrap();
    assert!((share.share - 7.0 / 9.0).abs() < 1e-9 && share.low > 0.4 && share.high < 0.95);
    assert_eq!(sql.completion_tokens, Some(27));
    assert!(sql.duration_s.is_some_and(|s| s > 0.0));
    let near = sql.divergence.clone().unwrap();
    assert_eq!((near.items, near.positions, near.top1_agreement), (10, 20, 0.5));
    assert_eq!((near.mean_kl_nats, near.perplexity), (0.5625, 1.648721270700));

    let date = &figures.scores[1];
    assert_eq!((date.model.as_str(), date.correct, date.answered), ("date", 0, 10));
    assert_eq!(date.exact_match.unwrap().share, 0.0);
    assert_eq!(
        (&date.divergence, date.divergence_absent.as_deref()),
        (&None, Some("no fine-tune was named"))
    );
    assert_eq!(answered(&finished), 19);

    let answers = Bundle::read(&finished.bundle).unwrap().answers;
    assert_eq!(answers.len(), 20);
    // The blank line is counted, and the answer is as it came.
    assert_eq!((answers[5].line, answers[5].answer.as_deref()), (7, Some(" 10")));
    let failed = &answers[4];
    assert_eq!(
        (failed.outcome.as_str(), &failed.answer, failed.matches),
        ("http_503", &None, None)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_measured_is_null_with_a_reason() {
    let url = mock(|_, _| Script::Refuse(500, json!({ "error": { "message": "broken" } }))).await;
    let out = tempfile::tempdir().unwrap();
    let mut settings = settings(&url, &out);
    settings.models = vec!["sql".into()];
    let set = TaskSet::read(&tasks(out.path(), "twice.jsonl"), Some(2), None).unwrap();
    let finished = quality(&settings, &profile(vec![set]), |_| {}).await.unwrap();
    assert_eq!((answered(&finished), reasons(&finished.bundle)), (0, Vec::new()));
    let document: Value = serde_json::from_slice(&fs_err::read(finished.bundle.join(RUN_FILE)).unwrap()).unwrap();
    let score = &document["quality"]["scores"][0];
    for (figure, reason) in [
        ("exact_match", "no request was answered"),
        ("divergence", "no fine-tune was named"),
    ] {
        assert_eq!(score[figure], Value::Null);
        assert_eq!(score[format!("{figure}_absent")], reason);
    }
    assert_eq!(
        (&score["completion_tokens"], &score["failed"]),
        (&Value::Null, &2.into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_may_be_for_one_model_only() {
    let out = tempfile::tempdir().unwrap();
    let finished = run(&out, |_, profile| {
        let other = out.path().join("other.jsonl");
        let text = "{\"messages\": [{\"role\": \"user\", \"content\": \"twice 1\"}], \"answer\": \"nö\"}\n";
        fs_err::write(&other, text).unwrap();
        profile
            .tasks
            .push(TaskSet::read(&other, None, Some("date".into())).unwrap());
    })
    .await;
    let scores = finished.run.quality.unwrap().scores;
    let pairs: Vec<_> = scores.iter().map(|s| (s.model.as_str(), s.tasks, s.correct)).collect();
    assert_eq!(pairs, [("sql", 0, 7), ("date", 0, 0), ("date", 1, 1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_asked_is_refused_before_anything_is_written() {
    let url = mock(behave).await;
    let out = tempfile::tempdir().unwrap();
    let path = tasks(out.path(), "twice.jsonl");
    let runs = out.path().join("runs");
    let set = |model: Option<&str>| TaskSet::read(&path, None, model.map(str::to_owned)).unwrap();
    for (models, sets, expected) in [
        (
            &["sql", "json"] as &[&str],
            vec![set(None)],
            "the server has no model `json`; it lists: base, sql, date",
        ),
        (
            &["sql"],
            vec![set(Some("date"))],
            "`date` is not among the models that are asked: sql",
        ),
        (&["sql", "date"], vec![set(Some("date"))], "no --tasks are for `sql`"),
        (
            &[],
            vec![set(None), set(Some("date"))],
            "twice.jsonl would be asked twice",
        ),
        (&[], vec![], "--tasks names no file"),
    ] {
        let mut settings = Settings::new(&url, &runs);
        settings.models = models.iter().map(|m| (*m).to_owned()).collect();
        let error = quality(&settings, &profile(sets), |_| {})
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut settings = Settings::new("http://127.0.0.1:1", &runs);
    settings.timeout = Duration::from_secs(5);
    let error = quality(&settings, &profile(vec![set(None)]), |_| {}).await.unwrap_err();
    assert!(error.to_string().contains("is not reachable"), "{error}");
    assert!(!runs.exists());
}

/// Writes the digests anew, as someone would who wants to hide a change.
fn forge_digests(path: &Path) {
    let names = [ANSWERS_FILE, "environment.json", EVENTS_FILE, RUN_FILE, "server.json"];
    let lines = names.map(|name| {
        let bytes = fs_err::read(path.join(name)).unwrap();
        format!("{}  {name}\n", hex::encode(Sha256::digest(bytes)))
    });
    fs_err::write(path.join(DIGESTS_FILE), lines.concat()).unwrap();
}

/// Changes the answers, makes the digests anew and gives what verification says.
fn forged(bundle: &Path, change: impl FnOnce(&mut Vec<deltamux_bench::bundle::AnswerRecord>)) -> Vec<String> {
    let file = bundle.join(ANSWERS_FILE);
    let original = fs_err::read(&file).unwrap();
    let mut answers = read_answers(&original).unwrap();
    change(&mut answers);
    fs_err::write(&file, write_answers(&answers).unwrap()).unwrap();
    forge_digests(bundle);
    let reasons = reasons(bundle);
    fs_err::write(&file, original).unwrap();
    forge_digests(bundle);
    reasons
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edited_answer_mark_or_task_is_found_even_with_digests_made_anew() {
    let out = tempfile::tempdir().unwrap();
    let bundle = run(&out, |_, _| {}).await.bundle;
    let line4 = |what: &str| vec![format!("answers.jsonl: line 4: {what}")];
    assert_eq!(
        forged(&bundle, |a| a[3].answer = Some("6".into())),
        line4("match is false, the answer makes it true")
    );
    assert_eq!(
        forged(&bundle, |a| a[3].matches = Some(true)),
        line4("match is true, the answer makes it false")
    );
    // Both: then the text is not what arrived.
    assert_eq!(
        forged(&bundle, |a| (a[3].answer, a[3].matches) =
            (Some("6".into()), Some(true))),
        line4("the answer has 1 characters, 6 arrived")
    );
    // Padded with what is forgiven, the counts are other ones.
    let padded = forged(&bundle, |a| {
        (a[3].answer, a[3].matches) = (Some("6     ".into()), Some(true))
    });
    assert_eq!(padded[0], "run.json: quality.scores[0].correct is 7, the events give 8");
    // The right answer made to fit the wrong one: other models were asked another task there.
    assert_eq!(
        forged(&bundle, |a| (a[3].expected, a[3].matches) =
            ("seven".into(), Some(true))),
        vec!["answers.jsonl: line 14: is another task than `sql` was asked there"]
    );
    assert_eq!(
        forged(&bundle, |a| {
            a.remove(3);
        }),
        ["answers.jsonl: 19 answers to 20 requests"]
    );
    assert!(forged(&bundle, |a| a.swap(2, 3))[0].contains("line 3: is of point 0, request 3"));
    // A failure turned into an answer, and a wrong answer into a failure.
    assert!(forged(&bundle, |a| a[4].outcome = "completed".into())[0].contains("the events say http_503"));
    assert!(
        forged(&bundle, |a| (a[3].answer, a[3].matches) = (None, None))[0]
            .contains("a completed request has no answer")
    );
    assert!(forged(&bundle, |a| a[0].completion_tokens = Some(1))[0].contains("tokens are not those of the events"));
    assert!(forged(&bundle, |a| a[0].tasks_sha256 = "0".into())[0].contains("is of another file than twice.jsonl"));
    // Sums of the comparison.
    let changed = forged(&bundle, |a| a[8].divergence.as_mut().unwrap().kl_nats = 0.0);
    assert!(
        changed[0].contains("quality.scores[0].divergence.mean_kl_nats is 0.5"),
        "{changed:?}"
    );
    assert!(forged(&bundle, |a| a[8].divergence.as_mut().unwrap().same = 3)[0].contains("its divergence cannot be"));
    assert!(forged(&bundle, |a| a[19].divergence = a[0].divergence)[0].contains("run.json says was not measured"));
    assert_eq!(reasons(&bundle), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_item_is_found_though_its_request_is_dropped_too() {
    let out = tempfile::tempdir().unwrap();
    let path = run(&out, |_, _| {}).await.bundle;
    let mut bundle = Bundle::read(&path).unwrap();
    // The last of the first model was wrong.
    bundle.records.remove(9);
    bundle.answers.remove(9);
    fs_err::write(path.join(ANSWERS_FILE), write_answers(&bundle.answers).unwrap()).unwrap();
    fs_err::write(path.join(EVENTS_FILE), write_events(&bundle.records).unwrap()).unwrap();
    forge_digests(&path);
    assert_eq!(
        reasons(&path),
        ["events.parquet: point 1, repeat 1: 9 requests, run.json says 10"]
    );
    // And from the point's own count: its file gave ten.
    let text = fs_err::read_to_string(path.join(RUN_FILE)).unwrap();
    fs_err::write(
        path.join(RUN_FILE),
        text.replacen("\"requests\": 10", "\"requests\": 9", 1),
    )
    .unwrap();
    forge_digests(&path);
    assert!(
        reasons(&path)
            .contains(&"run.json: quality.scores[0]: twice.jsonl gave 10 tasks, the point has 9 requests".to_owned())
    );
    // A model's bad score left out with its point and all that is in it.
    let mut run = bundle.run.clone();
    let mut figures = run.quality.clone().unwrap();
    (run.points, figures.scores) = (vec![run.points[0].clone()], vec![figures.scores[0].clone()]);
    run.quality = Some(figures);
    let text = serde_json::to_string_pretty(&run).unwrap() + "\n";
    fs_err::write(path.join(RUN_FILE), text).unwrap();
    forge_digests(&path);
    let left_out = "run.json: quality.scores are not one for each model and file of tasks that is for it";
    assert!(reasons(&path).contains(&left_out.to_owned()));
    // A failure passed off as a completed request.
    let mut records = Bundle::read(&path).unwrap().records;
    records[4].outcome = Outcome::Completed;
    fs_err::write(path.join(EVENTS_FILE), write_events(&records).unwrap()).unwrap();
    forge_digests(&path);
    assert!(!reasons(&path).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_edited_figure_is_found() {
    let out = tempfile::tempdir().unwrap();
    let path = run(&out, |_, _| {}).await.bundle;
    let file = path.join(RUN_FILE);
    let original = fs_err::read_to_string(&file).unwrap();
    let quality = original.find("\"quality\": {").unwrap();
    let mut tried = 0;
    for (at, _) in original.match_indices(": ").filter(|(at, _)| *at > quality) {
        let from = at + 2;
        let to = from + original[from..].find([',', '\n']).unwrap();
        let figure = &original[from..to];
        let other = match figure.parse::<f64>() {
            Ok(x) => format!("{}", x + 1.0),
            Err(_) if figure == "null" => "0.5".to_owned(),
            Err(_) => continue,
        };
        fs_err::write(&file, format!("{}{other}{}", &original[..from], &original[to..])).unwrap();
        forge_digests(&path);
        assert!(!reasons(&path).is_empty(), "{}", &original[at.saturating_sub(30)..to]);
        tried += 1;
    }
    assert!(tried > 30, "{tried}");
    fs_err::write(&file, &original).unwrap();
    forge_digests(&path);
    assert_eq!(reasons(&path), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_belong_to_the_quality_profile_and_only_there() {
    let out = tempfile::tempdir().unwrap();
    let path = run(&out, |_, _| {}).await.bundle;
    let answers = fs_err::read(path.join(ANSWERS_FILE)).unwrap();
    fs_err::remove_file(path.join(ANSWERS_FILE)).unwrap();
    assert!(reasons(&path).contains(&"answers.jsonl: is missing".to_owned()));
    fs_err::write(path.join(ANSWERS_FILE), &answers[..answers.len() - 1]).unwrap();
    assert_eq!(
        reasons(&path),
        [
            "answers.jsonl: is not what its digest in SHA256SUMS says",
            "answers.jsonl: line 20: does not end"
        ]
    );
    // In another form: spaces that no one wrote.
    let spaced = String::from_utf8(answers.clone()).unwrap().replacen("\":", "\": ", 1);
    fs_err::write(path.join(ANSWERS_FILE), spaced).unwrap();
    forge_digests(&path);
    assert_eq!(
        reasons(&path),
        ["answers.jsonl: is not in the form in which it is written"]
    );
    fs_err::write(path.join(ANSWERS_FILE), answers).unwrap();
    let text = fs_err::read_to_string(path.join(RUN_FILE)).unwrap();
    fs_err::write(path.join(RUN_FILE), text.replacen("\"quality\"", "\"concurrency\"", 1)).unwrap();
    forge_digests(&path);
    assert_eq!(
        reasons(&path),
        ["run.json: quality does not belong to the profile concurrency"]
    );
}
