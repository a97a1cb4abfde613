//! The server over the real engine with the tiny family: answers, stops, limits.

mod support;

use serde_json::{Value, json};
use support::engine::{base_engine, engine, golden, golden_text};
use support::{Server, chunks, completion_body, text_of, tiny};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

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
