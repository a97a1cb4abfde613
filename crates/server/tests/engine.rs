//! The server over the real engine with the tiny family: answers, stops, limits, variants.

mod support;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use deltamux_delta::{CompressOptions, Method, compress};
use deltamux_engine::{Engine, EngineConfig};
use serde_json::{Value, json};
use support::{Server, chunks, completion_body, text_of, tiny};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const END: &str = "<|im_end|>";

/// An engine that takes little of the machine, because tests run side by side.
fn engine(base: PathBuf, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let mut config = EngineConfig::new(base);
    config.threads = 1;
    config.kv_memory = Some(16 << 20);
    config.variant_memory = Some(64 << 20);
    change(&mut config);
    Engine::start(config).unwrap()
}

/// The base alone.
fn base_engine() -> Engine {
    engine(tiny("base"), |_| {})
}

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
        ratio: 0.25,
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

/// Prompts and greedy continuations that transformers computed.
fn golden(model: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../models/golden/tiny-{model}.json"));
    let mut golden: Value = serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap();
    serde_json::from_value(golden["cases"].take()).unwrap()
}

/// The text of a golden case without the token that ended it.
fn golden_text(case: &Value) -> &str {
    let text = case["greedy_text"].as_str().unwrap();
    text.strip_suffix(END).unwrap()
}

fn length(list: &Value) -> usize {
    list.as_array().unwrap().len()
}

#[tokio::test]
async fn the_base_answers_as_transformers_does_at_both_endpoints() {
    let server = Server::start(base_engine()).await;
    for case in golden("base") {
        let fields = json!({"messages": case["messages"], "temperature": 0, "max_tokens": 32});
        let (status, body) = server.chat("base", fields).await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(body["choices"][0]["message"]["content"], golden_text(&case));
        assert_eq!(body["choices"][0]["finish_reason"], "stop");
        assert_eq!(body["usage"]["prompt_tokens"], length(&case["input_ids"]));
        assert_eq!(body["usage"]["completion_tokens"], length(&case["greedy_ids"]));
        for prompt in [&case["prompt"], &case["input_ids"]] {
            let fields = json!({"prompt": prompt, "temperature": 0, "max_tokens": 32});
            let (_, body) = server.complete("base", fields).await;
            assert_eq!(body["choices"][0]["text"], golden_text(&case));
        }
    }
}

/// <https://github.com/vllm-project/vllm/issues/3574>
#[tokio::test]
async fn o5_nothing_of_a_stop_string_that_spans_tokens_is_sent() {
    let server = Server::start(base_engine()).await;
    for case in golden("base") {
        let text = golden_text(&case);
        // Begins and ends inside words, so inside tokens.
        let stop = &text[7..14];
        let before = &text[..text.find(stop).unwrap()];
        for (path, prompt) in [(CHAT, "messages"), (COMPLETIONS, "prompt")] {
            let mut body = json!({"model": "base", "temperature": 0, "max_tokens": 32, "stop": stop});
            body[prompt] = case[prompt].clone();
            let (_, whole) = server.post(path, body.clone()).await;
            let choice = &whole["choices"][0];
            let whole = choice["text"].as_str().or(choice["message"]["content"].as_str());
            assert_eq!((whole, &choice["finish_reason"]), (Some(before), &json!("stop")));
            body["stream"] = json!(true);
            let chunks = chunks(&server.events(path, body).await);
            assert_eq!(text_of(&chunks, 0), before);
            assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
        }
    }
}

/// <https://github.com/QwenLM/Qwen3/issues/927>
#[tokio::test]
async fn o7_either_end_of_sequence_id_ends_an_answer_and_each_variant_has_its_own() {
    let base_case = &golden("base")[0];
    let sql_case = &golden("sql")[0];
    let (base_id, sql_id) = (&base_case["greedy_ids"][5], &sql_case["greedy_ids"][2]);
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
    // The base's second id ends its answer at the sixth token; that token is counted and not shown.
    let (text, tokens) = ask("base", base_case).await;
    assert_eq!(tokens, 6);
    assert!(
        golden_text(base_case).starts_with(&text) && text != golden_text(base_case),
        "{text}"
    );
    // The variant's own id ends its answer at the third token.
    let (text, tokens) = ask("own", sql_case).await;
    assert_eq!(tokens, 3);
    assert!(golden_text(sql_case).starts_with(&text), "{text}");
    // The other id still ends an answer of the model that does not have the first one in its text.
    let (text, _) = ask("sql", sql_case).await;
    assert!(text.ends_with(';'), "{text}");
}

/// <https://github.com/vllm-project/vllm/issues/765>
#[tokio::test]
async fn o12_max_tokens_is_clamped_a_longer_prompt_refused_and_the_next_request_is_fine() {
    let server = Server::start(engine(tiny("base"), |config| config.max_model_len = Some(128))).await;
    let fields = json!({"prompt": "Hello", "max_tokens": 10_000, "ignore_eos": true, "temperature": 0});
    let (status, body) = server.complete("base", fields).await;
    assert_eq!(
        (status, &body["choices"][0]["finish_reason"]),
        (200, &json!("length")),
        "{body}"
    );
    assert_eq!(body["usage"]["total_tokens"], 128);

    for (path, fields, param) in [
        (COMPLETIONS, json!({"prompt": vec![5; 5000]}), "prompt"),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "Hello ".repeat(5000)}]}),
            "messages",
        ),
    ] {
        let mut body = fields;
        body["model"] = json!("base");
        body["max_tokens"] = json!(1);
        let (status, body) = server.post(path, body).await;
        assert_eq!(
            (status, &body["error"]["code"]),
            (400, &json!("context_length_exceeded")),
            "{body}"
        );
        assert_eq!(body["error"]["param"], param);
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("128"), "{message}");
        assert!(param == "messages" || message.contains("5000"), "{message}");
    }
    assert_eq!(server.complete("base", json!({"max_tokens": 4})).await.0, 200);
}

/// <https://github.com/vllm-project/vllm/pull/32439>
#[tokio::test]
async fn o13_a_closed_socket_frees_its_pages_streamed_or_not() {
    let engine = base_engine();
    let server = Server::start(engine.clone()).await;
    for (round, stream) in [true, false].into_iter().enumerate() {
        let fields = json!({"stream": stream, "max_tokens": 500, "ignore_eos": true});
        let body = completion_body("base", fields).to_string();
        let mut socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        let head = format!(
            "POST {COMPLETIONS} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.write_all(body.as_bytes()).await.unwrap();
        if stream {
            let mut seen = String::new();
            while seen.matches("data: ").count() < 2 {
                let mut buffer = [0; 256];
                let read = socket.read(&mut buffer).await.unwrap();
                seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
        } else {
            support::eventually(|| engine.stats().kv_pages_used > 0).await;
        }
        drop(socket);
        support::eventually(|| engine.stats().cancelled == round as u64 + 1).await;
        support::eventually(|| engine.stats().kv_pages_used == 0 && engine.stats().running == 0).await;
    }
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

/// <https://github.com/ai-dynamo/dynamo/pull/13068>
#[tokio::test]
async fn v16_an_unknown_model_is_404_and_never_the_base() {
    let engine = base_engine();
    let server = Server::start(engine.clone()).await;
    for (status, body) in [
        server.chat("nope", json!({})).await,
        server.complete("nope", json!({})).await,
    ] {
        assert_eq!((status, &body["error"]["code"]), (404, &json!("model_not_found")));
    }
    assert_eq!(engine.stats().prompt_tokens, 0, "nothing was computed");
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

#[tokio::test]
async fn one_seed_gives_one_answer_and_the_choices_of_one_request_differ() {
    let server = Server::start(base_engine()).await;
    let ask = async |seed: u64, n: u64| {
        let fields = json!({"temperature": 2.0, "seed": seed, "n": n, "max_tokens": 24});
        let (_, body) = server.complete("base", fields).await;
        let choices = body["choices"].as_array().unwrap().clone();
        choices
            .iter()
            .map(|choice| choice["text"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let three = ask(5, 3).await;
    assert_eq!(three, ask(5, 3).await);
    assert_eq!(three[1], ask(6, 1).await[0]);
    assert!(three[0] != three[1] || three[1] != three[2]);
}
