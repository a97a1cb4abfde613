//! Ready, serving, draining, stopped; models and metrics.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use deltamux_server::ServerConfig;
use serde_json::{Value, json};
use support::{Scripted, Server, Step, chat_body, token};

#[tokio::test]
async fn health_is_200_only_when_requests_are_answered() {
    let server = Server::without_engine(ServerConfig::default()).await;
    assert_eq!(
        server.get("/health").await,
        (503, "{\"status\":\"loading\"}".to_owned())
    );
    let (status, body) = server.chat("base", json!({})).await;
    assert_eq!((status, &body["error"]["code"]), (503, &json!("not_ready")));
    assert_eq!(server.get("/metrics").await.0, 200);
    server.app.set_engine(Arc::new(Scripted::saying(&["a"])));
    assert_eq!(server.get("/health").await, (200, "{\"status\":\"ok\"}".to_owned()));
    assert_eq!(server.chat("base", json!({})).await.0, 200);
}

#[tokio::test]
async fn models_are_listed_with_their_parents() {
    let server = Server::start(Scripted::saying(&["a"])).await;
    let (status, body) = server.get("/v1/models").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["object"]), (200, &json!("list")));
    let find = |id: &str| {
        let models = body["data"].as_array().unwrap();
        models.iter().find(|model| model["id"] == id).cloned().unwrap()
    };
    assert_eq!(find("base")["parent"], Value::Null);
    assert_eq!(find("sql")["parent"], "base");
    assert_eq!(find("sql")["max_model_len"], 512);
    assert_eq!(find("broken")["state"], "refused");
    assert_eq!(find("broken")["why"], "digest differs");
    let (status, body) = server.get("/v1/models/sql").await;
    assert_eq!(status, 200);
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), find("sql"));
}

#[tokio::test]
async fn metrics_have_the_engines_figures_the_requests_and_the_latencies() {
    let server = Server::start(Scripted::saying(&["a", "b"])).await;
    server.chat("sql", json!({})).await;
    server.chat("nope", json!({})).await;
    let (status, text) = server.get("/metrics").await;
    assert_eq!(status, 200);
    for line in [
        "deltamux_requests_running 0",
        "deltamux_requests_waiting 7",
        "deltamux_kv_usage_ratio 0.25",
        "deltamux_generation_tokens_total 11",
        "deltamux_variant_state{model=\"sql\",state=\"registered\"} 1",
        "deltamux_variant_state{model=\"sql\",state=\"resident\"} 0",
        "deltamux_variant_state{model=\"broken\",state=\"refused\"} 1",
        "deltamux_http_requests_total{endpoint=\"/v1/chat/completions\",status=\"200\"} 1",
        "deltamux_http_requests_total{endpoint=\"/v1/chat/completions\",status=\"404\"} 1",
        "deltamux_completions_total{model=\"sql\",outcome=\"stop\"} 1",
        "deltamux_time_to_first_token_seconds_count{model=\"sql\"} 1",
        "deltamux_time_per_output_token_seconds_count{model=\"sql\"} 1",
        "deltamux_request_duration_seconds_count{model=\"sql\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "no line {line:?} in\n{text}");
    }
}

#[tokio::test]
async fn every_response_has_a_request_id_the_clients_own_if_it_sent_one() {
    let server = Server::start(Scripted::saying(&["a"])).await;
    let response = server
        .request("GET", "/health")
        .header("x-request-id", "mine")
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()["x-request-id"], "mine");
    let response = server
        .request("GET", "/nowhere")
        .header("x-request-id", "x".repeat(200))
        .send()
        .await
        .unwrap();
    assert!(response.headers()["x-request-id"].to_str().unwrap().starts_with("req-"));
}

#[tokio::test]
async fn a_running_answer_finishes_while_the_server_drains_and_new_connections_are_refused() {
    let go_on = Arc::new(tokio::sync::Notify::new());
    let gate = go_on.clone();
    let engine = Scripted::new(move |_| {
        let mut steps = vec![token("early"), Step::Wait(gate.clone())];
        steps.extend(support::say(&[" late"]));
        Ok(steps)
    });
    let open = engine.open();
    let mut server = Server::start(engine).await;
    let body = chat_body("base", json!({}));
    let running = tokio::spawn(server.request("POST", "/v1/chat/completions").json(&body).send());
    support::eventually(|| open.load(Ordering::SeqCst) == 1).await;
    server.stop();
    while tokio::net::TcpStream::connect(server.address()).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    go_on.notify_one();
    let body: Value = running.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(body["choices"][0]["message"]["content"], "early late");
    server.stopped().await;
}

#[tokio::test]
async fn what_still_runs_at_the_end_of_the_drain_ends_with_an_error() {
    let config = ServerConfig {
        drain: Duration::from_millis(50),
        ..ServerConfig::default()
    };
    let engine = Scripted::new(|_| Ok(vec![token("a"), Step::Hang]));
    let open = engine.open();
    let mut server = Server::with(engine, config).await;
    let whole = tokio::spawn(
        server
            .request("POST", "/v1/chat/completions")
            .json(&chat_body("base", json!({})))
            .send(),
    );
    let streamed = tokio::spawn(
        server
            .request("POST", "/v1/chat/completions")
            .json(&chat_body("base", json!({"stream": true})))
            .send(),
    );
    support::eventually(|| open.load(Ordering::SeqCst) == 2).await;
    server.stop();
    let whole = whole.await.unwrap().unwrap();
    assert_eq!(whole.status(), 503);
    let body: Value = whole.json().await.unwrap();
    assert_eq!(body["error"]["code"], "shutting_down");
    let text = streamed.await.unwrap().unwrap().text().await.unwrap();
    let chunks = support::chunks(&support::data_lines(&text));
    assert_eq!(chunks.last().unwrap()["error"]["code"], "shutting_down");
    server.stopped().await;
    assert!(tokio::net::TcpStream::connect(server.address()).await.is_err());
}
