//! Counts answered requests by endpoint and status.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;

use crate::app::Shared;

/// Counts; paths that are no endpoint count together, so that strangers cannot make labels.
pub async fn count(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let endpoint = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let endpoint = endpoint.as_ref().map_or("other", MatchedPath::as_str);
    shared.metrics.http_request(endpoint, response.status().as_u16());
    response
}
