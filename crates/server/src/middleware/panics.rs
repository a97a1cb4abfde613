//! A handler that panics answers 500 in the usual form; the server goes on.

use std::any::Any;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};

use crate::errors::ApiError;

/// The answer for a panic.
pub fn answer(panic: Box<dyn Any + Send + 'static>) -> Response<Body> {
    let what = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    ApiError::internal(format_args!("a handler panicked: {what}")).into_response()
}
