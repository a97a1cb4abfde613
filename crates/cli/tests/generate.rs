//! `deltamux generate` through the real binary, held against continuations of transformers.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A smallest margin between first and second choice below this may legitimately go the other way.
const DECIDED: f64 = 0.05;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn generate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deltamux"))
        .arg("generate")
        .args(args)
        .output()
        .expect("the binary runs")
}

fn json(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

/// One line on stderr, exit code 2, nothing on stdout.
fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

/// The golden's cases whose continuation is decided, as many as wanted.
fn cases(golden: &Path, count: usize) -> Vec<Value> {
    let golden: Value = serde_json::from_slice(&fs_err::read(golden).expect("golden")).expect("JSON");
    let cases = golden["cases"].as_array().expect("cases");
    let decided = cases
        .iter()
        .filter(|case| case["greedy_min_margin"].as_f64().expect("margin") > DECIDED);
    decided.take(count).cloned().collect()
}

fn assert_continues_as_transformers(model: &Path, golden: &Path, count: usize) {
    let cases = cases(golden, count);
    assert!(!cases.is_empty());
    for case in cases {
        let messages = tempfile::NamedTempFile::new().expect("temporary file");
        fs_err::write(messages.path(), case["messages"].to_string()).expect("written");
        let tokens = case["greedy_ids"].as_array().expect("ids").len().to_string();
        let answer = json(&generate(&[
            "--base",
            &model.to_string_lossy(),
            "--messages",
            &messages.path().to_string_lossy(),
            "--temperature",
            "0",
            "--max-tokens",
            &tokens,
            "--json",
        ]));
        assert_eq!(answer["prompt_token_ids"], case["input_ids"]);
        assert_eq!(answer["token_ids"], case["greedy_ids"]);
        let text = case["greedy_text"].as_str().expect("text");
        assert_eq!(answer["text"].as_str(), Some(text.trim_end_matches("<|im_end|>")));
    }
}

#[test]
fn the_tiny_family_continues_as_in_transformers() {
    for model in ["base", "route", "date", "json", "sql"] {
        let golden = repository().join(format!("models/golden/tiny-{model}.json"));
        assert_continues_as_transformers(&repository().join("models/tiny").join(model), &golden, 2);
    }
}

#[test]
fn smollm2_continues_as_in_transformers() {
    let Some(dir) = std::env::var_os("DELTAMUX_SMOLLM2").map(PathBuf::from) else {
        println!("not run: DELTAMUX_SMOLLM2 is not set");
        return;
    };
    assert_continues_as_transformers(&dir, &repository().join("models/golden/base.json"), 2);
}

#[test]
fn full_fine_tunes_of_smollm2_continue_as_in_transformers() {
    let Some(dir) = std::env::var_os("DELTAMUX_TESTBED").map(PathBuf::from) else {
        println!("not run: DELTAMUX_TESTBED is not set");
        return;
    };
    for variant in ["route", "sql", "multi"] {
        let golden = dir.join(format!("golden/{variant}.json"));
        assert_continues_as_transformers(&dir.join("variants").join(variant), &golden, 1);
    }
}

fn tiny() -> String {
    repository().join("models/tiny/base").to_string_lossy().into_owned()
}

#[test]
fn text_comes_without_json_and_the_prompt_goes_through_the_template() {
    let plain = generate(&[
        "--base",
        &tiny(),
        "--prompt",
        "Hello there",
        "--temperature",
        "0",
        "--max-tokens",
        "5",
    ]);
    assert!(plain.status.success());
    let common = [
        "--base",
        &tiny(),
        "--prompt",
        "Hello there",
        "--temperature",
        "0",
        "--max-tokens",
        "5",
        "--json",
    ];
    let answer = json(&generate(&common));
    let text = answer["text"].as_str().expect("text");
    assert_eq!(String::from_utf8_lossy(&plain.stdout), format!("{text}\n"));
    assert_eq!(answer["logprobs"], Value::Null);

    let raw = json(&generate(&[&common[..], &["--raw"]].concat()));
    let (templated, raw) = (&answer["prompt_token_ids"], &raw["prompt_token_ids"]);
    let length = |ids: &Value| ids.as_array().expect("ids").len();
    assert!(length(raw) < length(templated), "{raw} {templated}");
}

#[test]
fn log_probabilities_and_seeds_are_honoured() {
    let ask = |extra: &[&str]| {
        let common = [
            "--base",
            &tiny(),
            "--prompt",
            "Hello",
            "--raw",
            "--max-tokens",
            "8",
            "--json",
        ];
        json(&generate(&[&common[..], extra].concat()))
    };
    let greedy = ask(&["--temperature", "0", "--logprobs", "3"]);
    for (entry, id) in greedy["logprobs"]
        .as_array()
        .expect("list")
        .iter()
        .zip(greedy["token_ids"].as_array().expect("ids"))
    {
        assert_eq!(&entry["id"], id);
        assert_eq!(entry["top"].as_array().map(Vec::len), Some(3));
        assert_eq!(entry["top"][0]["id"], *id, "greedy takes the most likely one");
    }
    let one = ask(&["--temperature", "1.5", "--seed", "1"]);
    assert_eq!(
        one["token_ids"],
        ask(&["--temperature", "1.5", "--seed", "1"])["token_ids"]
    );
    assert_ne!(
        one["token_ids"],
        ask(&["--temperature", "1.5", "--seed", "2"])["token_ids"]
    );
}

#[test]
fn mistakes_are_named_in_one_line() {
    let missing = refusal(&generate(&["--base", "no/such/model", "--prompt", "x"]));
    assert!(missing.contains("no/such/model"), "{missing}");
    let variant = refusal(&generate(&["--base", &tiny(), "--variant", "nope", "--prompt", "x"]));
    assert!(
        variant.contains("nope") && variant.contains("manifest.json"),
        "{variant}"
    );
    let long = "word ".repeat(2000);
    let long = refusal(&generate(&["--base", &tiny(), "--prompt", &long]));
    assert!(long.contains("512"), "{long}");
    let hot = refusal(&generate(&["--base", &tiny(), "--prompt", "x", "--temperature", "-1"]));
    assert!(hot.contains("--temperature"), "{hot}");
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    fs_err::write(file.path(), "{\"messages\": 3}").expect("written");
    let shape = refusal(&generate(&[
        "--base",
        &tiny(),
        "--messages",
        &file.path().to_string_lossy(),
    ]));
    assert!(shape.contains("messages"), "{shape}");
}
