//! A server of this process, for profiles that are given a base instead of a URL: they ask it as they would any other.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use deltamux_engine::{Engine, EngineConfig};
use deltamux_server::{App, ServerConfig, serve_app};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::progress;

/// Threads that move bytes: the client has its own.
const SERVER_THREADS: usize = 2;

/// A running server; dropping it stops it.
pub struct LocalServer {
    engine: Engine,
    /// Runs the server for as long as it is there.
    runtime: Option<Runtime>,
    /// Base URL.
    pub url: String,
}

impl LocalServer {
    /// Loads the model and serves it on a free port of the loopback interface.
    pub fn start(config: EngineConfig) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(SERVER_THREADS)
            .enable_all()
            .build()
            .context("cannot start the server's threads")?;
        let listener = runtime
            .block_on(TcpListener::bind(("127.0.0.1", 0)))
            .context("cannot listen on 127.0.0.1")?;
        let address = listener.local_addr().context("cannot read the listening address")?;
        let engine = progress::loading(|report| Engine::start_with(config, report))?;
        let app = App::new(ServerConfig::default());
        app.set_engine(Arc::new(engine.clone()));
        runtime.spawn(serve_app(listener, app, std::future::pending()));
        Ok(Self {
            engine,
            runtime: Some(runtime),
            url: format!("http://{address}"),
        })
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.engine.shutdown(Duration::ZERO);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
