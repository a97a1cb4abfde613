//! `deltamux bench quality` as a user runs it: the real binary against a real server, and against a base of its own.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Server, deltamux, json, refusal, tiny};
use serde_json::Value;

fn quality(args: &[&str], out: &Path) -> Command {
    let mut command = deltamux(&["bench", "quality", "--limit", "20", "--max-tokens", "60"]);
    command.args(args).arg("--out").arg(out);
    command
}

fn tasks(name: &str) -> String {
    tiny(&format!("data/{name}.heldout.jsonl")).to_str().unwrap().to_owned()
}

/// The scores of a run whose bundle verifies.
fn scores(result: &Value) -> Vec<Value> {
    let bundle = result["bundle"].as_str().unwrap();
    let output = deltamux(&["bench", "verify", bundle]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    result["run"]["quality"]["scores"].as_array().unwrap().clone()
}

fn eval(args: &[&str]) -> Value {
    let mut command = deltamux(&["eval", "--limit", "20", "--max-tokens", "60"]);
    command
        .arg("--base")
        .arg(tiny("base"))
        .arg("--tasks")
        .arg(tasks("sql"))
        .args(args);
    json(&mut command)
}

#[test]
fn a_server_is_judged_as_eval_judges_the_model() {
    let server = Server::of(
        deltamux(&["serve", "--threads", "1", "--kv-memory", "16MiB"])
            .arg("--base")
            .arg(tiny("sql")),
    );
    let out = tempfile::tempdir().unwrap();
    let (sql, date) = (tasks("sql"), tasks("date"));
    let args = ["--url", &server.url, "--precision", "bf16", "--tasks", &sql, &date];
    let result = json(&mut quality(&args, out.path()));
    let scores = scores(&result);
    let expected = eval(&["--full", tiny("sql").to_str().unwrap()]);
    assert_eq!(scores[0]["correct"], expected["correct"]);
    assert_eq!(scores[0]["completion_tokens"], expected["completion_tokens"]);
    assert_eq!(
        (&scores[0]["precision"], &scores[0]["failed"]),
        (&"bf16".into(), &0.into())
    );
    // Answers to another task than it was tuned for.
    assert_eq!(scores[1]["correct"], 0);
    let reason = scores[0]["divergence_absent"].as_str().unwrap();
    assert!(
        scores[0]["divergence"].is_null() && reason.contains("--full NAME=DIR"),
        "{reason}"
    );
    assert!(result["run"]["models"][0]["bytes"].as_u64() > Some(0));

    let output = quality(&args, out.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for expected in [
        "exact match",
        "sql.heldout.jsonl",
        "not compared with a full fine-tune",
        "bundle: ",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn variants_of_a_base_are_compared_with_their_fine_tunes_as_eval_does() {
    let out = tempfile::tempdir().unwrap();
    let variants = out.path().join("variants");
    let artifact = variants.join("sql");
    json(
        deltamux(&["compress", "--method", "low-rank", "--ratio", "1/8", "--base"])
            .arg(tiny("base"))
            .arg("--finetuned")
            .arg(tiny("sql"))
            .arg("--out")
            .arg(&artifact),
    );
    let (base, full) = (tiny("base"), tiny("sql"));
    let bound = format!("sql={}", tasks("sql"));
    let against = [format!("sql={}", full.display()), format!("base={}", full.display())];
    let args = [
        "--base",
        base.to_str().unwrap(),
        "--variants",
        variants.to_str().unwrap(),
        "--models",
        "sql,base",
        "--base-dtype",
        "q8",
        "--tasks",
        &bound,
        &tasks("date"),
        "--full",
        &against[0],
        "--full",
        &against[1],
    ];
    let scores = scores(&json(&mut quality(&args, &out.path().join("runs"))));
    let pairs: Vec<_> = scores
        .iter()
        .map(|s| (s["model"].as_str().unwrap(), s["tasks"].as_u64().unwrap()))
        .collect();
    assert_eq!(pairs, [("sql", 0), ("sql", 1), ("base", 1)]);
    let expected = eval(&[
        "--base-dtype",
        "q8",
        "--variant",
        artifact.to_str().unwrap(),
        "--against",
        full.to_str().unwrap(),
    ]);
    assert_eq!(
        (&scores[0]["correct"], &scores[0]["precision"]),
        (&expected["correct"], &"q8".into())
    );
    let (found, expected) = (&scores[0]["divergence"], &expected["agreement"]);
    assert_eq!(found["positions"], expected["positions"]);
    for (figure, of_eval) in [
        ("mean_kl_nats", "mean_kl"),
        ("top1_agreement", "top1_agreement"),
        ("perplexity", "perplexity"),
        ("reference_perplexity", "reference_perplexity"),
    ] {
        let (found, expected) = (found[figure].as_f64().unwrap(), expected[of_eval].as_f64().unwrap());
        assert!(
            (found - expected).abs() <= 1e-9 * expected.abs(),
            "{figure}: {found}, eval finds {expected}"
        );
    }
    assert_eq!(found["reference"]["name"], "sql");
    assert!(scores[2]["divergence"]["mean_kl_nats"].as_f64() > Some(0.0));
}

#[test]
fn when_no_request_is_answered_the_bundle_says_so_and_the_exit_code_is_1() {
    // Every prompt is longer than this.
    let server = Server::of(
        deltamux(&[
            "serve",
            "--threads",
            "1",
            "--kv-memory",
            "16MiB",
            "--max-model-len",
            "4",
        ])
        .arg("--base")
        .arg(tiny("base")),
    );
    let out = tempfile::tempdir().unwrap();
    let output = quality(&["--json", "--url", &server.url, "--tasks", &tasks("sql")], out.path())
        .output()
        .unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(
        line.starts_with("error: no request was answered (http_400)") && line.lines().count() == 1,
        "{line}"
    );
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let scores = scores(&result);
    assert_eq!(
        (&scores[0]["failed"], &scores[0]["exact_match"]),
        (&20.into(), &Value::Null)
    );
}

#[test]
fn a_users_error_is_one_line_and_leaves_nothing() {
    let server = Server::start();
    let out = tempfile::tempdir().unwrap();
    let runs = out.path().join("runs");
    let file = |name: &str, text: &str| -> String {
        let path: PathBuf = out.path().join(name);
        fs_err::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"answer\": \"y\"}\n";
    let bad = file("bad.jsonl", &format!("{good}{{\"answer\": \"y\"}}\n"));
    let empty = file("empty.jsonl", "\n");
    let fine = file("fine.jsonl", good);
    let none = out.path().join("none.jsonl").to_str().unwrap().to_owned();
    let (url, base, full) = (server.url.clone(), tiny("base"), tiny("sql"));
    let base = base.to_str().unwrap();
    let bound = format!("sql={fine}");
    let swapped = format!("json={}", full.display());
    let nowhere = format!("base={none}");
    for (args, expected) in [
        (vec!["--url", url.as_str(), "--tasks", none.as_str()], "none.jsonl"),
        (
            vec!["--url", &url, "--tasks", &bad],
            "bad.jsonl:2: missing field `messages`",
        ),
        (vec!["--url", &url, "--tasks", &empty], "empty.jsonl: holds no task"),
        (
            vec!["--url", &url, "--tasks", &fine, "--variants", "sql"],
            "the server has no model `sql`; it lists: base",
        ),
        (
            vec!["--url", &url, "--tasks", &bound],
            "`sql` is not among the models that are asked: base",
        ),
        (
            vec!["--url", "http://127.0.0.1:1", "--tasks", &fine],
            "http://127.0.0.1:1/v1/models is not reachable",
        ),
        (vec!["--url", &url], "--tasks"),
        (vec!["--tasks", &fine], "--url"),
        (vec!["--url", &url, "--tasks", &fine, "--limit", "0"], "--limit"),
        (vec!["--url", &url, "--tasks", &fine, "--full", "base=x"], "--url"),
        (
            vec!["--url", &url, "--tasks", &fine, "--base-dtype", "q8"],
            "--precision",
        ),
        (vec!["--url", &url, "--tasks", &fine, &fine], "would be asked twice"),
        (
            vec!["--base", base, "--tasks", &fine, "--models", "json"],
            "there is no model `json`; there are: base",
        ),
        (
            vec!["--base", base, "--tasks", &fine, "--full", &swapped],
            "`json` is not asked; asked are: base",
        ),
        (
            vec!["--base", base, "--tasks", &fine, "--full", "base"],
            "--full base: expected NAME=DIR",
        ),
        (vec!["--base", base, "--tasks", &fine, "--full", &nowhere], "none.jsonl"),
        (
            vec!["--base", base, "--tasks", &fine, "--variants", base],
            "holds no artifact",
        ),
    ] {
        let mut command = deltamux(&["bench", "quality"]);
        let output = command.args(&args).arg("--out").arg(&runs).output().unwrap();
        let line = refusal(&output);
        assert!(line.contains(expected), "{args:?}: {line}");
    }
    assert!(!runs.exists());
}
