//! `deltamux report` with the real binary.

#[path = "../../report/tests/synthetic/mod.rs"]
mod synthetic;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use synthetic::Identity;

fn deltamux(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deltamux"))
        .args(args)
        .output()
        .unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn bundle(dir: &Path, id: &str) -> PathBuf {
    let identity = Identity {
        id,
        label: "PrinMix",
        models: &["route"],
        started_at: "2026-11-30T09:15:00Z",
    };
    let bundle = match id {
        "concurrency" => synthetic::concurrency(&identity, &[1, 2]),
        _ => synthetic::arrivals(&identity, &[1.0, 2.0], 8),
    };
    bundle.write(dir).unwrap()
}

/// One line on stderr, exit code 2.
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    error
}

#[test]
fn a_site_is_built_and_described_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let bundles = ["arrivals", "concurrency"].map(|id| bundle(dir.path(), id));
    let out = dir.path().join("site");
    let output = deltamux(&[
        "report",
        "build",
        text(&bundles[0]),
        text(&bundles[1]),
        "--out",
        text(&out),
        "--json",
    ]);
    assert!(output.status.success(), "{output:?}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["ok"], true);
    assert_eq!(answer["languages"], serde_json::json!(["en", "de"]));
    assert_eq!(answer["runs"][0]["status"], "validated");
    for page in [&answer["site"], &answer["runs"][0]["page"], &answer["runs"][1]["page"]] {
        assert!(Path::new(page.as_str().unwrap()).is_file(), "{page}");
    }
}

#[test]
fn a_folder_that_is_no_bundle_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let good = bundle(dir.path(), "arrivals");
    let out = dir.path().join("site");
    let broken = dir.path().join("broken");
    fs_err::create_dir_all(&broken).unwrap();
    for (summary, says) in [(None, "no run.json"), (Some("{\"schema_version\": 1,"), "run.json")] {
        if let Some(summary) = summary {
            fs_err::write(broken.join("run.json"), summary).unwrap();
        }
        let error = refused(&deltamux(&[
            "report",
            "build",
            text(&good),
            text(&broken),
            "--out",
            text(&out),
        ]));
        assert!(error.contains("broken") && error.contains(says), "{error}");
        assert!(!out.exists());
    }
}

#[test]
fn a_folder_of_somebody_else_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let good = bundle(dir.path(), "arrivals");
    let out = dir.path().join("thesis");
    fs_err::create_dir_all(&out).unwrap();
    fs_err::write(out.join("chapter-1.tex"), "x").unwrap();
    let error = refused(&deltamux(&["report", "build", text(&good), "--out", text(&out)]));
    assert!(error.contains("thesis"), "{error}");
    assert_eq!(fs_err::read_dir(&out).unwrap().count(), 1);
}

#[test]
fn only_a_site_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let error = refused(&deltamux(&["report", "serve", text(dir.path()), "--port", "0"]));
    assert!(error.contains("index.html"), "{error}");
}
