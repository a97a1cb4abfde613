//! `deltamux synth`: what it makes is what every other command takes.

mod common;

use std::path::Path;

use common::{Server, deltamux, json, refusal};
use serde_json::{Value, json};

/// Makes the tiny shape with two variants, and the first one's checkpoint.
fn synth(out: &Path) -> Value {
    json(
        deltamux(&[
            "synth",
            "--shape",
            "tiny",
            "--variants",
            "2",
            "--full",
            "1",
            "--seed",
            "5",
        ])
        .arg("--out")
        .arg(out),
    )
}

/// A model's answer, drawn with one seed, with log-probabilities.
fn generate(base: &Path, variant: Option<&Path>) -> Value {
    let mut command = deltamux(&["generate", "--prompt", "Once upon a time", "--max-tokens", "16"]);
    command
        .args(["--temperature", "1", "--seed", "3", "--logprobs", "1", "--base"])
        .arg(base);
    if let Some(variant) = variant {
        command.arg("--variant").arg(variant);
    }
    json(&mut command)
}

/// The same question to a server.
async fn ask(url: &str, model: &str) -> Value {
    let body = json!({
        "model": model, "messages": [{ "role": "user", "content": "Once upon a time" }],
        "temperature": 1, "seed": 3, "max_tokens": 16,
    });
    let answer = reqwest::Client::new()
        .post(format!("{url}/v1/chat/completions"))
        .json(&body);
    answer.send().await.unwrap().json().await.unwrap()
}

#[test]
fn a_made_family_is_inspected_restored_and_answers_each_as_itself() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("family");
    let made = synth(&out);
    assert_eq!(made["variants"].as_array().unwrap().len(), 2);
    let (base, variant, full) = (out.join("base"), out.join("variants/v000"), out.join("full/v000"));

    let inspected = json(deltamux(&["inspect"]).arg(&variant));
    assert_eq!(inspected["generation"], made["variants"][0]["generation"]);
    assert_eq!(inspected["base"]["digest"], made["base_digest"]);
    assert_eq!(inspected["method"], "synth");
    assert!(inspected["linear_ratio"].as_f64().unwrap() <= 0.0625);
    assert_eq!(
        inspected["rel_output_error"]["heldout"],
        Value::Null,
        "nothing was measured"
    );

    let restored = dir.path().join("restored");
    json(
        deltamux(&["restore", "--base"])
            .arg(&base)
            .arg("--variant")
            .arg(&variant)
            .arg("--out")
            .arg(&restored),
    );
    let weights = |dir: &Path| fs_err::read(dir.join("model.safetensors")).unwrap();
    assert!(weights(&full) == weights(&restored));

    let answers = [
        generate(&base, None),
        generate(&base, Some(&variant)),
        generate(&base, Some(&out.join("variants/v001"))),
    ];
    for (i, answer) in answers.iter().enumerate() {
        let ids = answer["token_ids"].as_array().unwrap();
        assert_eq!(ids.len(), 16, "{answer}");
        assert!(
            answers[..i]
                .iter()
                .all(|other| other["token_ids"] != answer["token_ids"])
        );
    }
    // The checkpoint's weights are the sum rounded to bf16; the first token shows only that rounding.
    let rounded = generate(&full, None);
    assert_eq!(rounded["token_ids"][0], answers[1]["token_ids"][0]);
    let first = |answer: &Value| answer["logprobs"][0]["logprob"].as_f64().unwrap();
    assert!(
        (first(&rounded) - first(&answers[1])).abs() < 0.02,
        "{rounded} {}",
        answers[1]
    );

    let server = Server::of(
        deltamux(&["serve", "--threads", "1", "--kv-memory", "16MiB", "--base"])
            .arg(&base)
            .arg("--variants")
            .arg(out.join("variants")),
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        for (model, expected) in [("base", &answers[0]), ("v000", &answers[1]), ("v001", &answers[2])] {
            let answer = ask(&server.url, model).await;
            assert_eq!(
                answer["choices"][0]["message"]["content"], expected["text"],
                "{model}: {answer}"
            );
        }
    });
}

#[test]
fn two_runs_give_the_same_bytes_whatever_the_threads() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let first = synth(&one);
    let second = json(
        deltamux(&[
            "synth",
            "--shape",
            "tiny",
            "--variants",
            "2",
            "--full",
            "1",
            "--seed",
            "5",
            "--threads",
            "1",
        ])
        .arg("--out")
        .arg(&two),
    );
    assert_eq!(first["base_digest"], second["base_digest"]);
    for file in [
        "base/model.safetensors",
        "base/tokenizer.json",
        "variants/v001/manifest.json",
        "synth.json",
    ] {
        assert!(
            fs_err::read(one.join(file)).unwrap() == fs_err::read(two.join(file)).unwrap(),
            "{file}"
        );
    }
}

#[test]
fn mistakes_are_one_line_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("family");
    let run = |args: &[&str]| deltamux(&["synth", "--out"]).arg(&out).args(args).output().unwrap();
    let unknown = refusal(&run(&["--shape", "qwen9-1t"]));
    assert!(unknown.contains("qwen2.5-0.5b"), "{unknown}");
    let more = refusal(&run(&["--shape", "tiny", "--variants", "1", "--full", "2"]));
    assert!(more.contains("lower --full or raise --variants"), "{more}");
    let tight = refusal(&run(&["--shape", "tiny", "--ratio", "0.000001"]));
    assert!(tight.contains("raise --ratio"), "{tight}");
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 0);

    let made = run(&["--shape", "tiny", "--variants", "1"]);
    assert!(made.status.success());
    let again = refusal(&run(&["--shape", "tiny", "--variants", "1"]));
    assert!(
        again.contains("choose another --out or replace it with --force"),
        "{again}"
    );
    assert!(run(&["--shape", "tiny", "--variants", "0", "--force"]).status.success());
    assert_eq!(fs_err::read_dir(out.join("variants")).unwrap().count(), 0);
}
