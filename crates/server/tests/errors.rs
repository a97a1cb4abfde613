//! Every error has OpenAI's form, a stable code and the field that is wrong.

mod support;

use std::time::Duration;

use deltamux_engine::SubmitError;
use deltamux_server::{ApiKeys, ServerConfig};
use serde_json::{Value, json};
use support::{Scripted, Server, Step, chat_body};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Checks the form and gives back `(code, param)`.
fn parts(body: &Value) -> (&str, Option<&str>) {
    let error = body["error"].as_object().expect("an error object");
    let members: Vec<&str> = error.keys().map(String::as_str).collect();
    assert_eq!(members, ["message", "type", "param", "code"]);
    assert!(!error["message"].as_str().unwrap().is_empty());
    (error["code"].as_str().unwrap(), error["param"].as_str())
}

#[tokio::test]
async fn malformed_json_is_400() {
    let server = Server::start(Scripted::saying(&["a"])).await;
    for path in ["/v1/chat/completions", "/v1/completions"] {
        for body in [
            "",
            "{\"model\": \"base\"",
            "{'model': 'base'}",
            "\u{0}",
            "{\"model\": \"\\ud800\"}",
        ] {
            let response = server.request("POST", path).body(body).send().await.unwrap();
            assert_eq!(response.status(), 400, "{body:?}");
            let body: Value = response.json().await.unwrap();
            assert_eq!(parts(&body), ("invalid_json", None));
        }
    }
}

#[tokio::test]
async fn wrong_types_are_400_and_name_the_field() {
    let server = Server::start(Scripted::saying(&["a"])).await;
    for (fields, param) in [
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"messages": "hi"}), "messages"),
        (
            json!({"messages": [{"role": "user", "content": 5}]}),
            "messages[0].content",
        ),
        (json!({"max_tokens": "many"}), "max_tokens"),
        (json!({"stop": {"a": 1}}), "stop"),
        (json!({"stream": 1}), "stream"),
        (json!({"model": 5}), "model"),
    ] {
        let (status, body) = server.chat("base", fields).await;
        assert_eq!((status, parts(&body)), (400, ("invalid_type", Some(param))), "{body}");
    }
    let (status, body) = server.complete("base", json!({"prompt": {"a": 1}})).await;
    assert_eq!((status, parts(&body)), (400, ("invalid_type", Some("prompt"))));
}

#[tokio::test]
async fn unknown_fields_are_ignored() {
    let server = Server::start(Scripted::saying(&["a"])).await;
    let (status, body) = server
        .chat("base", json!({"flavour": "vanilla", "user": "u", "metadata": {}}))
        .await;
    assert_eq!(status, 200, "{body}");
}

#[tokio::test]
async fn fields_that_would_change_the_answer_are_refused_by_name() {
    let server = Server::start(Scripted::saying(&["a"])).await;
    for (fields, param) in [
        (
            json!({"tools": [{"type": "function", "function": {"name": "f"}}]}),
            "tools",
        ),
        (
            json!({"response_format": {"type": "json_object"}}),
            "response_format.type",
        ),
    ] {
        let (status, body) = server.chat("base", fields).await;
        assert_eq!((status, parts(&body)), (400, ("unsupported_parameter", Some(param))));
    }
    let (status, body) = server.complete("base", json!({"echo": true})).await;
    assert_eq!((status, parts(&body)), (400, ("unsupported_parameter", Some("echo"))));
}

#[tokio::test]
async fn token_ids_beyond_the_vocabulary_are_refused_by_name() {
    let server = Server::start(Scripted::saying(&["a"])).await;
    let (status, body) = server
        .complete("base", json!({"prompt": [[1, 2], [3, 99_999_999]]}))
        .await;
    assert_eq!((status, parts(&body)), (400, ("invalid_value", Some("prompt[1][1]"))));
    let (status, body) = server.complete("base", json!({"logit_bias": {"99999999": 1}})).await;
    assert_eq!(
        (status, parts(&body)),
        (400, ("invalid_value", Some("logit_bias.99999999")))
    );
}

/// <https://github.com/ai-dynamo/dynamo/pull/13068>
#[tokio::test]
async fn v16_an_unknown_model_is_404_and_never_the_base() {
    let engine = Scripted::saying(&["from the base"]);
    let requests = engine.requests();
    let server = Server::start(engine).await;
    for (status, body) in [
        server.chat("nope", json!({})).await,
        server.chat("nope", json!({"stream": true})).await,
        server.complete("nope", json!({})).await,
        server.complete("SQL", json!({})).await,
    ] {
        assert_eq!(
            (status, parts(&body)),
            (404, ("model_not_found", Some("model"))),
            "{body}"
        );
    }
    assert!(requests.lock().unwrap().is_empty());
    let (status, body) = server.get("/v1/models/nope").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, parts(&body)), (404, ("model_not_found", Some("model"))));
}

#[tokio::test]
async fn a_refused_variant_is_422_whether_known_before_or_found_at_load() {
    let refused = || SubmitError::VariantRefused {
        name: "sql".to_owned(),
        why: "factors.safetensors: digest differs".to_owned(),
    };
    let server = Server::start(Scripted::new(move |_| {
        Ok(vec![Step::Say(deltamux_engine::Event::Failed(refused()))])
    }))
    .await;
    for (model, fields) in [
        ("broken", json!({})),
        ("sql", json!({})),
        ("sql", json!({"stream": true})),
    ] {
        let (status, body) = server.chat(model, fields).await;
        assert_eq!((status, parts(&body)), (422, ("variant_refused", Some("model"))));
        assert!(body["error"]["message"].as_str().unwrap().contains("digest differs"));
    }
}

#[tokio::test]
async fn a_full_queue_is_429_with_retry_after() {
    let server = Server::start(Scripted::new(|_| Err(SubmitError::QueueFull { waiting: 4096 }))).await;
    let response = server
        .request("POST", "/v1/chat/completions")
        .json(&chat_body("base", json!({"stream": true})))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "1");
    let body: Value = response.json().await.unwrap();
    assert_eq!(parts(&body), ("queue_full", None));
}

#[tokio::test]
async fn a_choice_that_finds_the_queue_full_takes_the_others_back() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let engine = Scripted::new(move |_| {
        if count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 2 {
            Ok(vec![Step::Hang])
        } else {
            Err(SubmitError::QueueFull { waiting: 2 })
        }
    });
    let open = engine.open();
    let server = Server::start(engine).await;
    let (status, _) = server.chat("base", json!({"n": 3})).await;
    assert_eq!(status, 429);
    support::eventually(|| open.load(std::sync::atomic::Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn unknown_paths_and_methods_have_the_same_form() {
    let server = Server::start(Scripted::saying(&["a"])).await;
    let (status, body) = server.get("/v2/models").await;
    assert_eq!(
        (status, parts(&serde_json::from_str(&body).unwrap())),
        (404, ("not_found", None))
    );
    let response = server.request("GET", "/v1/completions").send().await.unwrap();
    assert_eq!(response.status(), 405);
    assert_eq!(response.headers()["allow"], "POST");
    let body: Value = response.json().await.unwrap();
    assert_eq!(parts(&body), ("method_not_allowed", None));
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_413_and_the_next_request_is_fine() {
    let config = ServerConfig {
        max_body_bytes: 1000,
        ..ServerConfig::default()
    };
    let server = Server::with(Scripted::saying(&["a"]), config).await;
    let (status, body) = server.complete("base", json!({"prompt": "a".repeat(3 << 20)})).await;
    assert_eq!((status, parts(&body)), (413, ("request_too_large", None)));
    assert!(body["error"]["message"].as_str().unwrap().contains("1000"));
    let (status, _) = server.complete("base", json!({})).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_body_that_never_ends_is_408_and_a_head_that_never_ends_is_cut() {
    let config = ServerConfig {
        header_timeout: Duration::from_millis(100),
        body_timeout: Duration::from_millis(100),
        ..ServerConfig::default()
    };
    let server = Server::with(Scripted::saying(&["a"]), config).await;
    let mut socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    socket
        .write_all(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{")
        .await
        .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("request_timeout"), "{answer}");

    let mut socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    socket
        .write_all(b"POST /v1/completions HTTP/1.1\r\nhost:")
        .await
        .unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
}

#[tokio::test]
async fn with_a_key_file_the_api_asks_for_a_key_and_probes_do_not() {
    let config = ServerConfig {
        api_keys: Some(ApiKeys::new(["secret"])),
        ..ServerConfig::default()
    };
    let server = Server::with(Scripted::saying(&["a"]), config).await;
    for key in [None, Some("Bearer wrong"), Some("Bearer secre"), Some("secret")] {
        let mut request = server.request("GET", "/v1/models");
        if let Some(key) = key {
            request = request.header("authorization", key);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 401, "{key:?}");
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
        let body: Value = response.json().await.unwrap();
        assert_eq!(parts(&body), ("invalid_api_key", None));
    }
    let response = server
        .request("GET", "/v1/models")
        .bearer_auth("secret")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(server.get("/health").await.0, 200);
    assert_eq!(server.get("/metrics").await.0, 200);
}

#[tokio::test]
async fn a_panic_in_the_engine_is_500_and_the_server_goes_on() {
    let server = Server::start(Scripted::new(|request| {
        assert!(request.max_tokens != Some(3), "an invariant is broken");
        Ok(support::say(&["fine"]))
    }))
    .await;
    let (status, body) = server.complete("base", json!({"max_tokens": 3})).await;
    assert_eq!((status, parts(&body)), (500, ("internal_error", None)));
    assert!(!body.to_string().contains("invariant"), "internals are for the log");
    assert_eq!(server.complete("base", json!({})).await.0, 200);
}
