//! The body is read whole, up to a limit of bytes and of time, before anything looks at it.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt as _;

use crate::app::Shared;
use crate::errors::{ApiError, codes};

/// How many bytes beyond the limit are read and thrown away, so that a client that is still sending sees the refusal
/// rather than a reset connection.
const DISCARD: usize = 64 << 20;

/// Reads the body; 413 beyond the limit, 408 when it comes too slowly, 400 when the client stops half-way.
pub async fn read(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let declared = parts
        .headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let limit = shared.config.max_body_bytes;
    let timeout = shared.config.body_timeout;
    let bytes = tokio::time::timeout(timeout, collect(body, declared, limit))
        .await
        .map_err(|_| {
            ApiError::new(
                StatusCode::REQUEST_TIMEOUT,
                codes::REQUEST_TIMEOUT,
                format!("the body was not complete after {} s", timeout.as_secs_f64()),
            )
        })??;
    Ok(next.run(Request::from_parts(parts, Body::from(bytes))).await)
}

async fn collect(body: Body, declared: Option<u64>, limit: usize) -> Result<Bytes, ApiError> {
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::new();
    let mut total = 0;
    let mut too_large = declared.is_some_and(|declared| declared > limit as u64);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| {
            ApiError::new(
                StatusCode::BAD_REQUEST,
                codes::INVALID_JSON,
                format!("the body ended early: {error}"),
            )
        })?;
        total += chunk.len();
        too_large |= total > limit;
        if too_large {
            bytes = Vec::new();
            if total > limit + DISCARD {
                break;
            }
        } else {
            bytes.extend_from_slice(&chunk);
        }
    }
    if too_large {
        return Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            codes::REQUEST_TOO_LARGE,
            format!("the body has more than {limit} bytes, the most that this server reads"),
        ));
    }
    Ok(bytes.into())
}
