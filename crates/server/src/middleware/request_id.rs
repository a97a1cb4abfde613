//! `x-request-id`: the client's, or a new one, on every response.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument as _;

use crate::ids;

static HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Longest identifier that is taken over from a client.
const MAX_LENGTH: usize = 128;

/// Puts the identifier on the response and on every log line of the request.
pub async fn assign(request: Request, next: Next) -> Response {
    let id = request
        .headers()
        .get(&HEADER)
        .and_then(|value| value.to_str().ok())
        .filter(|id| !id.is_empty() && id.len() <= MAX_LENGTH)
        .map_or_else(|| format!("req-{}", ids::unique()), str::to_owned);
    let span = tracing::info_span!("request", id = %id, method = %request.method(), path = %request.uri().path());
    let mut response = async {
        let response = next.run(request).await;
        tracing::info!(status = response.status().as_u16(), "answered");
        response
    }
    .instrument(span)
    .await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HEADER.clone(), value);
    }
    response
}
