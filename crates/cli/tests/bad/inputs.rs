//! Files and flags other than models that are wrong: calibration, tasks, messages, ratios, bundles.

use std::ffi::OsString;
use std::path::Path;

use crate::support::{Broken, names, refused, tiny};
use serde_json::json;

/// `compress` of the route fine-tune with further arguments is refused, and leaves nothing behind.
#[track_caller]
fn compress_refused(finetuned: &Path, further: &[OsString], words: &[&str]) {
    let out = tempfile::tempdir().expect("a temporary folder");
    let mut args = Vec::from(args![
        "compress",
        "--base",
        tiny("base"),
        "--finetuned",
        finetuned,
        "--out",
        out.path().join("artifact"),
    ]);
    args.extend_from_slice(further);
    refused(args, words);
    assert_eq!(names(out.path()), Vec::<String>::new(), "nothing is left behind");
}

/// A file with this text, in a folder that lives as long as the value.
fn file(name: &str, text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join(name);
    fs_err::write(&path, text).expect("written");
    (dir, path)
}

#[test]
fn an_empty_calibration() {
    for text in ["", "\n\n"] {
        let (_dir, path) = file("calibration.jsonl", text);
        compress_refused(&tiny("route"), &args!["--calibration", &path], &["calibration.jsonl"]);
    }
}

#[test]
fn a_calibration_line_that_is_no_item_is_named_by_its_number() {
    let good = json!({"text": "hello"});
    for bad in ["{\"text\": ", "{\"txet\": \"hello\"}", "17"] {
        let (_dir, path) = file("calibration.jsonl", &format!("{good}\n{bad}\n"));
        compress_refused(
            &tiny("route"),
            &args!["--calibration", &path],
            &["calibration.jsonl", "2"],
        );
    }
}

#[test]
fn a_calibration_that_is_not_there() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("missing.jsonl");
    compress_refused(&tiny("route"), &args!["--calibration", &path], &["missing.jsonl"]);
    compress_refused(
        &tiny("route"),
        &args!["--calibration", dir.path()],
        &[&dir.path().display().to_string()],
    );
}

#[test]
fn a_ratio_that_is_none() {
    for ratio in ["0", "-1/16", "1/0", "2", "many", "NaN"] {
        let calibration = tiny("data").join("route.calibration.jsonl");
        let output = crate::support::deltamux(args![
            "compress",
            "--base",
            tiny("base"),
            "--finetuned",
            tiny("route"),
            "--out",
            "unused",
            "--calibration",
            calibration,
            format!("--ratio={ratio}"),
        ]);
        assert_eq!(output.status.code(), Some(2), "--ratio {ratio}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("ratio"),
            "--ratio {ratio}"
        );
    }
}

#[test]
fn a_fine_tune_of_another_shape_is_refused_with_both_shapes() {
    let model = Broken::copy("route").config("config.json", |config| config["intermediate_size"] = json!(256));
    let calibration = tiny("data").join("route.calibration.jsonl");
    compress_refused(model.path(), &args!["--calibration", calibration], &["512", "256"]);
}

#[test]
fn messages_that_are_none() {
    for text in ["", "{}", "[{\"role\": \"user\"}]", "[\"hello\"]", "[]"] {
        let (_dir, path) = file("messages.json", text);
        refused(args!["generate", "--base", tiny("base"), "--messages", &path], &[]);
    }
}

#[test]
fn a_task_that_is_none_is_named_by_its_line() {
    let good = json!({"messages": [{"role": "user", "content": "hello"}], "answer": "hello"});
    for bad in [
        "{",
        "{\"messages\": []}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
    ] {
        let (_dir, path) = file("tasks.jsonl", &format!("{good}\n{bad}\n"));
        refused(
            args!["eval", "--base", tiny("base"), "--tasks", &path],
            &["tasks.jsonl", "2"],
        );
    }
    let (_dir, path) = file("tasks.jsonl", "");
    refused(
        args!["eval", "--base", tiny("base"), "--tasks", &path],
        &["tasks.jsonl"],
    );
}

#[test]
fn a_prompt_beyond_the_context_is_refused_with_both_numbers() {
    let prompt = "hello ".repeat(2000);
    refused(
        args![
            "generate",
            "--base",
            tiny("base"),
            "--prompt",
            prompt,
            "--max-tokens",
            "1"
        ],
        &["512"],
    );
}

#[test]
fn a_folder_that_is_no_bundle() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let output = crate::support::deltamux(args!["bench", "verify", dir.path()]);
    assert_eq!(output.status.code(), Some(2));
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    for file in [
        "run.json",
        "events.parquet",
        "environment.json",
        "server.json",
        "SHA256SUMS",
    ] {
        assert!(report.contains(file), "{report}");
    }
    let site = dir.path().join("site");
    refused(args!["report", "build", dir.path(), "--out", &site], &[]);
    assert!(!site.exists(), "no half site");
}

#[test]
fn a_server_that_does_not_answer() {
    let out = tempfile::tempdir().expect("a temporary folder");
    // Port 9 (discard) of the loopback interface: nobody listens there.
    refused(
        args![
            "bench",
            "concurrency",
            "--url",
            "http://127.0.0.1:9/v1",
            "--out",
            out.path().join("run"),
        ],
        &["127.0.0.1:9"],
    );
    assert_eq!(names(out.path()), Vec::<String>::new(), "nothing is left behind");
}
