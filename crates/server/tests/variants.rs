//! Variants behind the server, over the real engine with the tiny family.

mod support;

use std::path::Path;
use std::sync::OnceLock;

use deltamux_delta::{CompressOptions, Method, compress};
use serde_json::{Value, json};
use support::engine::{base_engine, engine, golden, golden_text};
use support::{Server, tiny};

/// Artifacts of two fine-tunes, made once for this test binary. Low-rank at a quarter: these tests ask whether answers
/// are the same, not whether they are good.
fn artifacts() -> &'static Path {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        for name in ["route", "sql"] {
            make_artifact(&tiny(name), &dir.path().join(name));
        }
        dir
    })
    .path()
}

fn make_artifact(finetuned: &Path, out: &Path) {
    let options = CompressOptions {
        method: Method::LowRank,
        ratio: Some(0.25),
        threads: 1,
        ..CompressOptions::new()
    };
    compress(&tiny("base"), finetuned, out, &options, &|_, _, _| {}).unwrap();
}

/// A copy of a tiny model whose `generation_config.json` has these end-of-sequence ids (its `config.json` keeps one).
fn with_eos(model: &str, ids: &[u64]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs_err::read_dir(tiny(model)).unwrap() {
        let path = entry.unwrap().path();
        fs_err::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let config = json!({"eos_token_id": ids, "pad_token_id": 0});
    fs_err::write(dir.path().join("generation_config.json"), config.to_string()).unwrap();
    dir
}

/// <https://github.com/QwenLM/Qwen3/issues/927>
#[tokio::test]
async fn o7_either_end_of_sequence_id_ends_an_answer_and_each_variant_has_its_own() {
    let base_case = &golden("base")[0];
    let sql_case = &golden("sql")[0];
    let (base_id, sql_id) = (&base_case["greedy_ids"][4], &sql_case["greedy_ids"][2]);
    let base = with_eos("base", &[2, base_id.as_u64().unwrap()]);
    let sql = with_eos("sql", &[2, sql_id.as_u64().unwrap()]);
    let variants = tempfile::tempdir().unwrap();
    make_artifact(sql.path(), &variants.path().join("own"));
    make_artifact(&tiny("sql"), &variants.path().join("sql"));
    let engine = engine(base.path().to_owned(), |config| {
        config.base_name = Some("base".to_owned());
        config.variants = Some(variants.path().to_owned());
    });
    let server = Server::start(engine).await;
    let ask = async |model: &str, case: &Value| {
        let fields = json!({"messages": case["messages"], "temperature": 0, "max_tokens": 32});
        let (status, body) = server.chat(model, fields).await;
        assert_eq!(
            (status, &body["choices"][0]["finish_reason"]),
            (200, &json!("stop")),
            "{body}"
        );
        let content = body["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        (content, body["usage"]["completion_tokens"].as_u64().unwrap())
    };
    // The base's second id ends its answer at the fifth token; that token is counted and not shown.
    let (text, tokens) = ask("base", base_case).await;
    assert_eq!(tokens, 5);
    assert!(
        golden_text(base_case).starts_with(&text) && text != golden_text(base_case),
        "{text}"
    );
    // The variant's own id ends its answer at the third token.
    let (text, tokens) = ask("own", sql_case).await;
    assert_eq!(tokens, 3);
    assert!(golden_text(sql_case).starts_with(&text), "{text}");
    // A variant without an id of its own has the base's: its answer runs to the first of them that comes.
    let (text, _) = ask("sql", sql_case).await;
    assert!(text.ends_with(';'), "{text}");
}

/// <https://github.com/vllm-project/vllm/issues/10784>
#[tokio::test]
async fn v15_a_variant_registered_at_run_time_is_listed_with_its_parent_and_answers() {
    let engine = base_engine();
    let server = Server::start(engine.clone()).await;
    assert_eq!(server.chat("sql", json!({})).await.0, 404);
    let artifact = artifacts().join("sql");
    tokio::task::spawn_blocking(move || engine.register("sql", artifact).unwrap())
        .await
        .unwrap();
    let (_, body) = server.get("/v1/models").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    let listed: Vec<(&str, Option<&str>)> = body["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| (model["id"].as_str().unwrap(), model["parent"].as_str()))
        .collect();
    assert_eq!(listed, [("base", None), ("sql", Some("base"))]);
    let (status, answer) = server.chat("sql", json!({"temperature": 0})).await;
    assert_eq!(status, 200, "{answer}");
    // What answered can be told apart from any other generation of the same name.
    assert_eq!(answer["system_fingerprint"], body["data"][1]["generation"]);
    assert!(answer["system_fingerprint"].as_str().unwrap().len() >= 16);
}

#[tokio::test]
async fn two_variants_and_the_base_asked_together_answer_as_each_does_alone() {
    let engine = engine(tiny("base"), |config| config.variants = Some(artifacts().to_owned()));
    let server = Server::start(engine).await;
    let mut requests = Vec::new();
    for case in golden("base").iter().chain(&golden("sql")).chain(&golden("route")) {
        for model in ["base", "route", "sql"] {
            for (temperature, seed) in [(0.0, 0), (1.0, 7)] {
                requests.push((
                    model,
                    json!({"messages": case["messages"], "temperature": temperature, "seed": seed, "max_tokens": 24,
                           "logprobs": true, "top_logprobs": 3}),
                ));
            }
        }
    }
    let ask = async |(model, fields): &(&str, Value)| {
        let (status, mut body) = server.chat(model, fields.clone()).await;
        assert_eq!(status, 200, "{body}");
        // The choices carry text, reason and every log-probability: all of it must be the same.
        body["choices"].take()
    };
    let mut alone = Vec::new();
    for request in &requests {
        alone.push(ask(request).await);
    }
    let together = futures::future::join_all(requests.iter().map(&ask)).await;
    for ((request, alone), together) in requests.iter().zip(&alone).zip(&together) {
        assert_eq!(alone, together, "{request:?}");
    }
    let answers: std::collections::HashSet<String> = alone.iter().map(Value::to_string).collect();
    assert!(answers.len() > requests.len() / 4, "the models do answer differently");
}

#[tokio::test]
async fn a_damaged_artifact_is_listed_as_refused_and_the_others_answer() {
    let variants = tempfile::tempdir().unwrap();
    for name in ["good", "damaged"] {
        let to = variants.path().join(name);
        fs_err::create_dir_all(&to).unwrap();
        for entry in fs_err::read_dir(artifacts().join("route")).unwrap() {
            let path = entry.unwrap().path();
            fs_err::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
    for entry in fs_err::read_dir(variants.path().join("damaged")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let mut bytes = fs_err::read(&path).unwrap();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            fs_err::write(&path, bytes).unwrap();
        }
    }
    let engine = engine(tiny("base"), |config| {
        config.variants = Some(variants.path().to_owned())
    });
    let server = Server::start(engine).await;
    for stream in [false, true] {
        let (status, body) = server.chat("damaged", json!({"stream": stream})).await;
        assert_eq!(
            (status, &body["error"]["code"]),
            (422, &json!("variant_refused")),
            "{body}"
        );
    }
    let (_, model) = server.get("/v1/models/damaged").await;
    let model: Value = serde_json::from_str(&model).unwrap();
    assert_eq!(model["state"], "refused", "{model}");
    let (status, body) = server.chat("good", json!({"temperature": 0, "max_tokens": 4})).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(server.chat("base", json!({"max_tokens": 4})).await.0, 200);
}
