//! One middleware a file.

pub mod auth;
pub mod body;
pub mod http_metrics;
pub mod panics;
pub mod request_id;
