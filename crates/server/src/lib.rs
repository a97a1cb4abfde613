//! The OpenAI-compatible HTTP server.
//!
//! [`serve`] answers on a listener until it is told to stop:
//!
//! * `GET /v1/models`, `GET /v1/models/{id}`: the base and every variant;
//! * `POST /v1/chat/completions` and `POST /v1/completions`, streamed (server-sent events) or whole;
//! * `GET /health`: 200 only when requests are answered; `GET /metrics`: Prometheus.
//!
//! Every error has OpenAI's form with a stable code (see [`ApiError`]). The server knows the engine through the small
//! trait [`Inference`] only: it never computes, and a client that goes away takes its request with it, because
//! dropping a response drops the engine's stream.

#![deny(missing_docs)]

mod app;
mod config;
mod errors;
mod fields;
mod health;
mod ids;
mod inference;
mod metrics;
mod middleware;
mod openai;
mod serve;

pub use app::App;
pub use config::ServerConfig;
pub use errors::{ApiError, codes};
pub use inference::{Events, Inference};
pub use middleware::auth::{ApiKeys, ApiKeysError};
pub use openai::chat::check as check_chat_request;
pub use serve::{serve, serve_app};
