//! `GET /health` and `GET /metrics`.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::app::{Phase, SharedState};
use crate::errors::ApiError;

/// 200 when requests are answered; 503 while the model is loaded, while the server stops and once the engine has failed.
pub async fn health(State(shared): SharedState) -> Response {
    let status = match (shared.phase(), shared.loaded_engine()) {
        (Phase::Serving, Some(engine)) if engine.failure().is_some() => "failed",
        (Phase::Serving, Some(_)) => "ok",
        (Phase::Serving, None) => "loading",
        (Phase::Draining | Phase::Stopped, _) => "stopping",
    };
    let code = if status == "ok" {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, Json(json!({"status": status}))).into_response()
}

/// Prometheus' text format.
pub async fn metrics(State(shared): SharedState) -> Result<Response, ApiError> {
    let engine = shared.loaded_engine().map(AsRef::as_ref);
    let text = shared.metrics.render(engine);
    Ok((
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
        .into_response())
}
