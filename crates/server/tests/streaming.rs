//! Answers in server-sent events and whole, over an engine whose words are given.

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use deltamux_engine::{Event, FinishReason, SubmitError};
use deltamux_server::ServerConfig;
use serde_json::{Value, json};
use support::{Scripted, Server, Step, chat_body, chunks, completion_body, done, say, text_of, token};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn a_chat_streams_role_text_and_reason_in_this_order() {
    let server = Server::start(Scripted::saying(&["SELECT", " count(*)"])).await;
    let chunks = chunks(&server.events(CHAT, chat_body("sql", json!({"stream": true}))).await);
    assert_eq!(
        chunks[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    assert_eq!(text_of(&chunks, 0), "SELECT count(*)");
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["model"], "sql");
        assert_eq!(chunk["system_fingerprint"], "digest-of-sql");
        assert!(chunk["id"].as_str().unwrap().starts_with("chatcmpl-"));
        assert_eq!(chunk["id"], chunks[0]["id"]);
    }
    let (last, before) = chunks.split_last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert!(
        before
            .iter()
            .all(|chunk| chunk["choices"][0]["finish_reason"].is_null())
    );
}

#[tokio::test]
async fn a_completion_streams_text_and_reason() {
    let server = Server::start(Scripted::new(|_| {
        Ok(vec![token("a"), token("b"), done(FinishReason::Length, "c", 3)])
    }))
    .await;
    let chunks = chunks(
        &server
            .events(COMPLETIONS, completion_body("base", json!({"stream": true})))
            .await,
    );
    assert_eq!(
        text_of(&chunks, 0),
        "abc",
        "the text that was held back comes with the end"
    );
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert!(chunks.iter().all(|chunk| chunk["object"] == "text_completion"));
}

#[tokio::test]
async fn a_whole_chat_answer_has_text_reason_and_usage() {
    let server = Server::start(Scripted::saying(&["Hel", "lo"])).await;
    let (status, body) = server.chat("base", json!({})).await;
    assert_eq!(status, 200);
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["choices"][0]["message"]["role"], "assistant");
    assert_eq!(body["choices"][0]["message"]["content"], "Hello");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["choices"][0]["logprobs"], Value::Null);
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12,
               "prompt_tokens_details": {"cached_tokens": 4}})
    );
}

/// <https://github.com/openai/openai-python/issues/1230>
#[tokio::test]
async fn o4_a_line_separator_in_a_delta_does_not_end_the_event() {
    const TEXT: &[&str] = &["a\u{2028}b", "\u{2029}", "c\u{85}d\r\n\ne"];
    let server = Server::start(Scripted::saying(TEXT)).await;
    for (path, body) in [
        (CHAT, chat_body("base", json!({"stream": true}))),
        (COMPLETIONS, completion_body("base", json!({"stream": true}))),
    ] {
        let raw = server
            .request("POST", path)
            .json(&body)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        assert!(
            !raw.contains(['\u{2028}', '\u{2029}', '\u{85}', '\r']),
            "a client may split lines there"
        );
        let chunks = chunks(&support::data_lines(&raw));
        assert_eq!(text_of(&chunks, 0), TEXT.concat());
    }
}

/// <https://github.com/Arthur-Ficial/apfel/issues/100>
#[tokio::test]
async fn o9_the_usage_chunk_comes_only_when_asked_for_and_has_no_choices() {
    let server = Server::start(Scripted::saying(&["a", "b"])).await;
    for (path, body) in [
        (CHAT, chat_body("base", json!({"stream": true}))),
        (COMPLETIONS, completion_body("base", json!({"stream": true}))),
    ] {
        for chunk in chunks(&server.events(path, body.clone()).await) {
            assert!(chunk.get("usage").is_none());
            assert_eq!(chunk["choices"].as_array().unwrap().len(), 1);
        }
        let mut body = body;
        body["stream_options"] = json!({"include_usage": true});
        let chunks = chunks(&server.events(path, body).await);
        let (last, before) = chunks.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["total_tokens"], 12);
        assert!(
            before
                .iter()
                .all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some())
        );
    }
}

#[tokio::test]
async fn each_of_n_choices_streams_under_its_index_and_the_prompt_counts_once() {
    let server = Server::start(Scripted::saying(&["x", "y"])).await;
    let body = chat_body(
        "base",
        json!({"stream": true, "n": 3, "stream_options": {"include_usage": true}}),
    );
    let chunks = chunks(&server.events(CHAT, body).await);
    for index in 0..3 {
        assert_eq!(text_of(&chunks, index), "xy");
        let of_choice: Vec<&Value> = chunks.iter().filter(|c| c["choices"][0]["index"] == index).collect();
        assert_eq!(of_choice[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(of_choice.last().unwrap()["choices"][0]["finish_reason"], "stop");
    }
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&json!(10), &json!(6))
    );
}

#[tokio::test]
async fn many_prompts_are_answered_in_their_order() {
    let server = Server::start(Scripted::new(|request| {
        let text = request.prompt.len().to_string();
        Ok(vec![token(&text), done(FinishReason::Stop, "", 1)])
    }))
    .await;
    let (status, body) = server
        .complete("base", json!({"prompt": [[1, 2, 3], [4]], "n": 2}))
        .await;
    assert_eq!(status, 200);
    let texts: Vec<&str> = body["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["3", "3", "1", "1"]);
    assert_eq!(body["usage"]["prompt_tokens"], 20);
}

#[tokio::test]
async fn log_probabilities_have_openais_two_forms() {
    let server = Server::start(Scripted::saying(&["a", "é"])).await;
    let (_, body) = server.chat("base", json!({"logprobs": true, "top_logprobs": 2})).await;
    let content = body["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 2);
    assert_eq!(content[1]["token"], "é");
    assert_eq!(content[1]["bytes"], json!([0xc3, 0xa9]));
    assert_eq!(content[1]["logprob"], -0.5);
    assert_eq!(
        content[1]["top_logprobs"][1]["logprob"], -9999.0,
        "JSON has no minus infinity"
    );

    let fields = json!({"logprobs": 2, "stream": true});
    let chunks = chunks(&server.events(COMPLETIONS, completion_body("base", fields)).await);
    assert_eq!(chunks[0]["choices"][0]["logprobs"]["text_offset"], json!([0]));
    assert_eq!(chunks[1]["choices"][0]["logprobs"]["text_offset"], json!([1]));
    assert_eq!(chunks[1]["choices"][0]["logprobs"]["tokens"], json!(["é"]));
    assert_eq!(chunks[1]["choices"][0]["logprobs"]["top_logprobs"][0]["é"], -0.5);
}

#[tokio::test]
async fn parameters_reach_the_engine() {
    let engine = Scripted::saying(&["a"]);
    let requests = engine.requests();
    let server = Server::start(engine).await;
    let fields = json!({
        "max_completion_tokens": 9, "min_tokens": 2, "ignore_eos": true, "stop": ["x", "y"], "temperature": 0.25,
        "top_p": 0.5, "top_k": 7, "min_p": 0.125, "seed": 3, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "repetition_penalty": 1.5, "logit_bias": {"7": -100}, "logprobs": true, "top_logprobs": 4,
    });
    assert_eq!(server.chat("sql", fields).await.0, 200);
    let request = requests.lock().unwrap().pop().unwrap();
    assert_eq!(
        (request.model.as_str(), request.max_tokens, request.min_tokens),
        ("sql", Some(9), 2)
    );
    assert!(request.ignore_eos);
    assert_eq!(request.stop, ["x", "y"]);
    let sampling = request.sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p),
        (0.25, 0.5, 7, 0.125)
    );
    assert_eq!((sampling.seed, sampling.logprobs), (Some(3), Some(4)));
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty), (0.5, -0.5));
    assert_eq!((sampling.repetition_penalty, sampling.logit_bias[&7]), (1.5, -100.0));
}

#[tokio::test]
async fn a_failure_after_the_first_token_is_an_error_event_in_the_stream() {
    let server = Server::start(Scripted::new(|_| {
        Ok(vec![token("a"), Step::Say(Event::Failed(SubmitError::ShuttingDown))])
    }))
    .await;
    let chunks = chunks(&server.events(CHAT, chat_body("base", json!({"stream": true}))).await);
    assert_eq!(text_of(&chunks[..chunks.len() - 1], 0), "a");
    assert_eq!(chunks.last().unwrap()["error"]["code"], "shutting_down");
}

#[tokio::test]
async fn an_engine_that_breaks_off_is_an_error_and_never_a_short_answer() {
    let server = Server::start(Scripted::new(|_| Ok(vec![token("a")]))).await;
    let (status, body) = server.chat("base", json!({})).await;
    assert_eq!((status, &body["error"]["code"]), (500, &json!("internal_error")));
    let chunks = chunks(&server.events(CHAT, chat_body("base", json!({"stream": true}))).await);
    assert_eq!(chunks.last().unwrap()["error"]["code"], "internal_error");
}

#[tokio::test]
async fn a_stream_whose_first_token_is_late_starts_anyway_and_is_kept_alive() {
    let config = ServerConfig {
        stream_start: Duration::from_millis(10),
        keep_alive: Duration::from_millis(10),
        ..ServerConfig::default()
    };
    let server = Server::with(Scripted::new(|_| Ok(vec![Step::Hang])), config).await;
    let mut response = server
        .request("POST", CHAT)
        .json(&chat_body("base", json!({"stream": true})))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    let chunk = response.chunk().await.unwrap().unwrap();
    assert!(chunk.starts_with(b":"), "{chunk:?}");
}

/// <https://github.com/vllm-project/vllm/pull/32439>
#[tokio::test]
async fn o13_a_closed_socket_cancels_its_request_streamed_or_not() {
    let engine = Scripted::new(|_| Ok(vec![token("a"), token("b"), Step::Hang]));
    let open = engine.open();
    let server = Server::start(engine).await;
    for stream in [true, false] {
        for (path, body) in [
            (CHAT, chat_body("base", json!({"stream": stream, "n": 2}))),
            (COMPLETIONS, completion_body("base", json!({"stream": stream, "n": 2}))),
        ] {
            let body = body.to_string();
            let mut socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            socket.write_all(head.as_bytes()).await.unwrap();
            socket.write_all(body.as_bytes()).await.unwrap();
            support::eventually(|| open.load(Ordering::SeqCst) == 2).await;
            if stream {
                let mut seen = String::new();
                while seen.matches("data: ").count() < 2 {
                    let mut buffer = [0; 1024];
                    let read = socket.read(&mut buffer).await.unwrap();
                    seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
                }
            }
            drop(socket);
            support::eventually(|| open.load(Ordering::SeqCst) == 0).await;
        }
    }
    let (_, metrics) = server.get("/metrics").await;
    assert!(
        metrics.contains("deltamux_completions_total{model=\"base\",outcome=\"cancelled\"} 8"),
        "{metrics}"
    );
}

#[tokio::test]
async fn answers_of_concurrent_clients_do_not_mix() {
    let server = Server::start(Scripted::new(|request| {
        let text = format!("{:?}", request.prompt);
        Ok(say(&[&text]))
    }))
    .await;
    let answers = futures::future::join_all((1..50_usize).map(|count| {
        let server = &server;
        async move {
            let prompt = vec![count; count % 7 + 1];
            let (_, body) = server.complete("base", json!({"prompt": prompt})).await;
            (
                format!("{prompt:?}"),
                body["choices"][0]["text"].as_str().unwrap().to_owned(),
            )
        }
    }))
    .await;
    for (expected, found) in answers {
        assert_eq!(expected, found);
    }
}
