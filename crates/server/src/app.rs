//! The application: its state and its routes.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use tokio::sync::watch;
use tower_http::catch_panic::CatchPanicLayer;

use crate::errors::{ApiError, codes};
use crate::metrics::Metrics;
use crate::openai::chat::Chat;
use crate::openai::completions::Completions;
use crate::openai::endpoint::handle;
use crate::{Inference, ServerConfig, health, ids, middleware, openai};

/// Where a server stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Requests are answered once the engine is there.
    Serving,
    /// Running requests may finish, new ones are refused.
    Draining,
    /// Running requests are ended with an error.
    Stopped,
}

/// A server without its sockets. Cheap to clone.
///
/// It may start without an engine: `/health` is then 503 and every request is refused with `not_ready` until
/// [`App::set_engine`].
#[derive(Clone)]
pub struct App {
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App")
            .field("phase", &self.shared.phase())
            .finish_non_exhaustive()
    }
}

/// What every handler sees.
pub(crate) struct Shared {
    pub config: ServerConfig,
    pub metrics: Metrics,
    /// When the server started, in seconds since 1970.
    pub created: u64,
    engine: OnceLock<Arc<dyn Inference>>,
    phase: watch::Sender<Phase>,
}

impl Shared {
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// The engine, or why there is none to ask.
    pub fn engine(&self) -> Result<&Arc<dyn Inference>, ApiError> {
        if self.phase() != Phase::Serving {
            return Err(ApiError::shutting_down());
        }
        self.loaded_engine().ok_or_else(|| ApiError {
            retry_after: Some(1),
            ..ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                codes::NOT_READY,
                "the model is still being loaded; GET /health is 200 when it is ready",
            )
        })
    }

    /// The engine if it has been loaded, also while draining.
    pub fn loaded_engine(&self) -> Option<&Arc<dyn Inference>> {
        self.engine.get()
    }

    /// Resolves when the server has come to `phase`.
    pub fn reached(&self, phase: Phase) -> impl Future<Output = ()> + Send + 'static {
        let mut now = self.phase.subscribe();
        async move {
            // An error means that the server is gone, which is as good as stopped.
            let _ = now.wait_for(|now| *now >= phase).await;
        }
    }
}

impl App {
    /// A server that waits for its engine.
    pub fn new(config: ServerConfig) -> Self {
        Self {
            shared: Arc::new(Shared {
                config,
                metrics: Metrics::new(),
                created: ids::unix_seconds(),
                engine: OnceLock::new(),
                phase: watch::Sender::new(Phase::Serving),
            }),
        }
    }

    /// Gives the server its engine: from now on it is ready. A second engine is ignored.
    pub fn set_engine(&self, engine: Arc<dyn Inference>) {
        let _ = self.shared.engine.set(engine);
    }

    /// Moves on to a later phase; never back.
    pub(crate) fn enter(&self, phase: Phase) {
        self.shared.phase.send_if_modified(|now| {
            let later = *now < phase;
            if later {
                *now = phase;
            }
            later
        });
    }

    /// The routes with their middleware.
    pub fn router(&self) -> Router {
        let shared = self.shared.clone();
        Router::new()
            .route("/v1/models", get(openai::models::list))
            .route("/v1/models/{*id}", get(openai::models::retrieve))
            .route("/v1/chat/completions", post(handle::<Chat>))
            .route("/v1/completions", post(handle::<Completions>))
            .route("/health", get(health::health))
            .route("/metrics", get(health::metrics))
            .fallback(not_found)
            .method_not_allowed_fallback(method_not_allowed)
            // The last layer is the outermost: an identifier first, the body only for those who may send one.
            .layer(DefaultBodyLimit::disable())
            .layer(from_fn_with_state(shared.clone(), middleware::body::read))
            .layer(from_fn_with_state(shared.clone(), middleware::auth::check))
            .layer(CatchPanicLayer::custom(middleware::panics::answer))
            .layer(from_fn_with_state(shared.clone(), middleware::http_metrics::count))
            .layer(from_fn(middleware::request_id::assign))
            .with_state(shared)
    }
}

/// The state as handlers extract it.
pub(crate) type SharedState = State<Arc<Shared>>;

async fn not_found(uri: Uri) -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        codes::NOT_FOUND,
        format!("there is nothing at {}", uri.path()),
    )
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        codes::METHOD_NOT_ALLOWED,
        format!("{} does not answer {method}", uri.path()),
    )
}
