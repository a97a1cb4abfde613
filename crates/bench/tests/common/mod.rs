//! A mock of an OpenAI-compatible server whose answers a test writes down.
#![allow(dead_code)] // Each test binary uses its own part.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use deltamux_bench::profile::{ArrivalsProfile, Finished, Settings};
use deltamux_bench::{arrival::Arrivals, bundle::Bundle, profile, verify};
use futures::StreamExt as _;
use serde_json::{Value, json};

/// What the mock does with one request.
pub enum Script {
    /// Refuses it.
    Refuse(u16, Value),
    /// Streams these pieces, each after its pause.
    Stream(Vec<(Duration, String)>),
}

type Behaviour = Arc<dyn Fn(usize, &Value) -> Script + Send + Sync>;

#[derive(Clone)]
struct Mock {
    behaviour: Behaviour,
    seen: Arc<AtomicUsize>,
}

/// Starts the mock with the models `base`, `sql` and `date`; `behaviour` gets the number of the request, counted from
/// 0, and its body. Gives the URL.
pub async fn mock(behaviour: impl Fn(usize, &Value) -> Script + Send + Sync + 'static) -> String {
    let state = Mock {
        behaviour: Arc::new(behaviour),
        seen: Arc::default(),
    };
    let app = Router::new()
        .route("/v1/models", get(models))
        .route("/metrics", get(|| async { "mock_requests_total 1\n" }))
        .route("/v1/chat/completions", post(answer))
        .route("/v1/completions", post(answer))
        .with_state(state);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    url
}

async fn models() -> Response {
    let model = |id: &str, parent: Option<&str>| json!({ "id": id, "object": "model", "parent": parent });
    let data = [
        model("base", None),
        model("sql", Some("base")),
        model("date", Some("base")),
    ];
    axum::Json(json!({ "object": "list", "data": data })).into_response()
}

async fn answer(State(mock): State<Mock>, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let number = mock.seen.fetch_add(1, Ordering::SeqCst);
    match (mock.behaviour)(number, &body) {
        Script::Refuse(status, body) => (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response(),
        Script::Stream(pieces) => {
            let stream = futures::stream::iter(pieces).then(|(pause, piece)| async move {
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
                Ok::<_, Infallible>(piece)
            });
            ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream)).into_response()
        }
    }
}

/// One event.
pub fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// A chunk with text, and the reason why the answer ended if it did.
pub fn text(text: &str, finish: Option<&str>) -> String {
    event(&json!({ "choices": [{ "index": 0, "delta": { "content": text }, "finish_reason": finish }] }))
}

/// The chunk with the token counts, and the done event.
pub fn end(prompt_tokens: u32, completion_tokens: u32) -> String {
    let usage = json!({ "prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens });
    event(&json!({ "choices": [], "usage": usage })) + "data: [DONE]\n\n"
}

/// An answer of `chunks` chunks, `pause` apart, that holds as many tokens as `tokens` says.
pub fn stream(chunks: usize, piece: &str, pause: Duration, tokens: u32) -> Script {
    let role = event(&json!({ "choices": [{ "index": 0, "delta": { "role": "assistant", "content": "" } }] }));
    let mut pieces = vec![(Duration::ZERO, role)];
    for i in 0..chunks {
        pieces.push((pause, text(piece, (i + 1 == chunks).then_some("length"))));
    }
    pieces.push((Duration::ZERO, end(20, tokens)));
    Script::Stream(pieces)
}

/// Settings for one quick repeat without warm-up.
pub fn settings(url: &str, out: &tempfile::TempDir) -> Settings {
    let mut settings = Settings::new(url, out.path());
    settings.repeats = 1;
    settings.warmup = Some(0);
    settings.timeout = Duration::from_secs(60);
    settings
}

/// A constant open loop.
pub fn constant(rate: f64, requests: u32) -> ArrivalsProfile {
    ArrivalsProfile {
        process: Arrivals::Constant,
        rates: vec![rate],
        requests,
        find_knee: false,
        max_in_flight: None,
    }
}

/// Runs arrivals and reads the bundle back, which must verify.
pub async fn arrivals(settings: &Settings, profile: &ArrivalsProfile) -> (Finished, Bundle) {
    let finished = profile::arrivals(settings, profile, |_| {}).await.unwrap();
    let verification = verify::verify(&finished.bundle).unwrap();
    assert_eq!(verification.reasons, Vec::<String>::new());
    let bundle = Bundle::read(&finished.bundle).unwrap();
    assert_eq!(bundle.run, finished.run);
    (finished, bundle)
}
