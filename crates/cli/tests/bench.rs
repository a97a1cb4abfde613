//! `deltamux bench` as a user runs it: the real binary against a real server.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Server, deltamux, json, refusal};
use serde_json::Value;

const QUICK: [&str; 6] = [
    "--input-tokens",
    "20",
    "--output-tokens",
    "5",
    "--ignore-eos",
    "--repeats=2",
];

fn bench(profile: &str, url: &str, out: &Path) -> Command {
    let mut command = deltamux(&["bench", profile, "--url", url]);
    command.arg("--out").arg(out);
    command
}

fn verify(bundle: &Path) -> std::process::Output {
    deltamux(&["bench", "verify", "--json"]).arg(bundle).output().unwrap()
}

#[test]
fn profiles_give_bundles_that_verify_until_a_byte_changes() {
    let server = Server::start();
    let out = tempfile::tempdir().unwrap();
    let mut arrivals = bench("arrivals", &server.url, out.path());
    arrivals.args(QUICK).args([
        "--rates",
        "20,40",
        "--requests",
        "8",
        "--slo-ttft-ms",
        "5000",
        "--label",
        "PrinMix",
    ]);
    let mut concurrency = bench("concurrency", &server.url, out.path());
    concurrency
        .args(QUICK)
        .args(["--levels", "1,3", "--requests", "6", "--api", "completions"]);

    for (mut command, requests) in [(arrivals, 16), (concurrency, 12)] {
        let result = json(&mut command);
        let points = result["run"]["points"].as_array().unwrap();
        assert_eq!(points.len(), 2);
        for point in points {
            assert_eq!(point["counts"]["completed"], requests, "{}", point["counts"]);
            assert_eq!(point["latency"]["completion_tokens"]["mean"], 5.0);
            // The server's own count of a prompt of about twenty tokens.
            let prompt = point["latency"]["prompt_tokens"]["mean"].as_f64().unwrap();
            assert!((12.0..40.0).contains(&prompt), "{prompt}");
        }
        assert_eq!(result["run"]["models"][0]["name"], "base");

        let bundle = PathBuf::from(result["bundle"].as_str().unwrap());
        let verification = verify(&bundle);
        assert!(verification.status.success());
        let document: Value = serde_json::from_slice(&verification.stdout).unwrap();
        assert_eq!(document["status"], "validated");
        let server: Value = serde_json::from_slice(&fs_err::read(bundle.join("server.json")).unwrap()).unwrap();
        assert!(server["metrics_after"]["text"].as_str().unwrap().contains("deltamux_"));

        let file = bundle.join("events.parquet");
        let mut bytes = fs_err::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs_err::write(&file, bytes).unwrap();
        let verification = verify(&bundle);
        assert_eq!(verification.status.code(), Some(2));
        let document: Value = serde_json::from_slice(&verification.stdout).unwrap();
        assert_eq!(document["status"], "unvalidated");
        assert!(
            document["bundles"][0]["reasons"][0]
                .as_str()
                .unwrap()
                .starts_with("events.parquet: ")
        );
    }
}

#[test]
fn a_run_prints_its_points_as_a_table_and_where_its_bundle_is() {
    let server = Server::start();
    let out = tempfile::tempdir().unwrap();
    let output = bench("concurrency", &server.url, out.path())
        .args(QUICK)
        .args(["--levels=2"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.contains("in flight") && text.contains("0/32"),
        "{text}"
    );
    let bundle = text.lines().find_map(|line| line.strip_prefix("bundle: ")).unwrap();
    let output = deltamux(&["bench", "verify", bundle]).output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("{bundle}: validated\n")
    );
}

#[test]
fn a_trace_is_replayed_with_its_models_renamed() {
    let server = Server::start();
    let out = tempfile::tempdir().unwrap();
    let trace = out.path().join("trace.jsonl");
    let line = |id: u32, timestamp: f64| {
        format!(
            r#"{{"id": {id}, "prompt": "Hello {id}", "timestamp": {timestamp}, "model": "delta-{id}", "min_tokens": 3, "max_tokens": 3, "ignore_eos": true}}"#
        )
    };
    fs_err::write(&trace, [line(1, 0.01), line(2, 0.05)].join("\n")).unwrap();
    let runs = out.path().join("runs");
    let mut command = bench("arrivals", &server.url, &runs);
    command
        .args(["--repeats=1", "--model-map", "delta-1=base,delta-2=base", "--workload"])
        .arg(&trace);
    let run = &json(&mut command)["run"];
    let point = &run["points"][0];
    assert_eq!(
        (&point["load"]["arrivals"], &point["counts"]["completed"]),
        (&"trace".into(), &2.into())
    );
    assert_eq!(point["rates"]["offered_req_per_s"]["mean"], 25.0);
    assert_eq!(run["workload"]["file"]["name"], "trace.jsonl");

    // A model that the server does not have is named before anything is sent.
    let mut command = bench("arrivals", &server.url, &runs);
    command.args(["--model-map", "delta-1=base", "--workload"]).arg(&trace);
    assert!(refusal(&command.output().unwrap()).contains("the server has no model `delta-2`; it lists: base"));
}

#[test]
fn a_users_error_is_one_line_and_leaves_nothing() {
    let server = Server::start();
    let out = tempfile::tempdir().unwrap();
    let runs = out.path().join("runs");
    let bad = out.path().join("bad.jsonl");
    fs_err::write(&bad, r#"{"prompt": "x", "timestamp": 0, "temprature": 1}"#).unwrap();
    let bad = bad.to_str().unwrap();
    let closed = "http://127.0.0.1:1";
    for (url, args, expected) in [
        (
            closed,
            &["--rates", "1"] as &[&str],
            "http://127.0.0.1:1/v1/models is not reachable",
        ),
        ("127.0.0.1:1", &["--rates", "1"], "--url 127.0.0.1:1"),
        (&server.url, &["--rates", "0"], "--rates needs rates above 0"),
        (&server.url, &[], "--rates needs rates above 0"),
        (&server.url, &["--rates", "1", "--requests", "0"], "--requests is 0"),
        (&server.url, &["--rates", "1", "--repeats", "0"], "--repeats is 0"),
        (&server.url, &["--rates", "1", "--timeout", "0"], "--timeout 0"),
        (
            &server.url,
            &["--rates", "1", "--variants", "normal"],
            "--variants normal: expected uniform",
        ),
        (
            &server.url,
            &["--rates", "1", "--models", "sql"],
            "the server has no model `sql`; it lists: base",
        ),
        (
            &server.url,
            &["--workload", bad],
            "bad.jsonl:1: unknown field `temprature`",
        ),
        (
            &server.url,
            &["--arrivals", "trace"],
            "needs the timestamps of --workload",
        ),
    ] {
        let output = bench("arrivals", url, &runs).args(args).output().unwrap();
        let line = refusal(&output);
        assert!(line.contains(expected), "{args:?}: {line}");
    }
    let output = bench("concurrency", &server.url, &runs)
        .args(["--levels", "1,0"])
        .output()
        .unwrap();
    assert!(refusal(&output).contains("--levels needs numbers"));
    let output = deltamux(&["bench", "verify", "no/such/bundle"]).output().unwrap();
    assert!(refusal(&output).contains("no/such/bundle"));
    assert!(!runs.exists());
}
