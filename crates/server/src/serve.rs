//! Sockets: accepting, answering, draining.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::app::{Phase, Shared};
use crate::{App, Inference, ServerConfig, metrics};

/// How long responses that were ended by force may take to reach their clients.
const FLUSH: Duration = Duration::from_secs(2);

/// Answers on `listener` with `engine` until `shutdown` resolves, then drains: no new connections, running requests
/// finish within [`ServerConfig::drain`], later ones end with an error. The engine stays the caller's, who stops it
/// afterwards.
pub async fn serve(
    listener: TcpListener,
    engine: impl Inference,
    config: ServerConfig,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let app = App::new(config);
    app.set_engine(Arc::new(engine));
    serve_app(listener, app, shutdown).await
}

/// As [`serve`], for an application that may get its engine later ([`App::set_engine`]).
pub async fn serve_app(listener: TcpListener, app: App, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    let router = app.router();
    let shared = &app.shared;
    let mut connections = JoinSet::new();
    let mut upkeep = tokio::time::interval(metrics::UPKEEP);
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(answer(stream, router.clone(), shared.clone()));
                }
                Err(error) => {
                    // Out of descriptors, or a client that left early: neither is a reason to stop, but the first
                    // would spin without a pause.
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
            _ = upkeep.tick() => shared.metrics.upkeep(),
        }
    }
    drop(listener);
    app.enter(Phase::Draining);
    if timeout(shared.config.drain, all_done(&mut connections)).await.is_err() {
        app.enter(Phase::Stopped);
        let _ = timeout(FLUSH, all_done(&mut connections)).await;
    }
    app.enter(Phase::Stopped);
    connections.shutdown().await;
    Ok(())
}

async fn all_done(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

/// One connection. When the client closes it, the handler's future is dropped, and its requests with it.
async fn answer(stream: TcpStream, router: Router, shared: Arc<Shared>) {
    // A token is a packet; waiting to fill one would delay each by a round trip.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("cannot set TCP_NODELAY: {error}");
    }
    let mut stopping = pin!(shared.reached(Phase::Draining));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.config.header_timeout)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stopping.as_mut() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!("connection: {error}");
    }
}
