//! A site over HTTP.

use std::net::SocketAddr;
use std::path::Path;

use axum::Router;
use axum::http::{HeaderValue, header};
use tower_http::services::ServeDir;
use tower_http::set_header::SetResponseHeaderLayer;

use crate::error::ReportError;

/// A server that listens and is ready to run.
pub struct Server {
    listener: tokio::net::TcpListener,
    router: Router,
    address: SocketAddr,
}

/// Listens on `address` for the site in `dir`. Port 0 picks a free one.
pub async fn serve(dir: &Path, address: SocketAddr) -> Result<Server, ReportError> {
    if !dir.join("index.html").is_file() {
        return Err(ReportError::NoIndex { path: dir.to_owned() });
    }
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .map_err(|source| ReportError::Listen { address, source })?;
    let address = listener.local_addr()?;
    // A rebuilt site must show at once: browsers may keep files, but have to ask.
    let fresh = SetResponseHeaderLayer::overriding(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    let router = Router::new().fallback_service(ServeDir::new(dir)).layer(fresh);
    Ok(Server {
        listener,
        router,
        address,
    })
}

impl Server {
    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` is done.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<(), ReportError> {
        axum::serve(self.listener, self.router)
            .with_graceful_shutdown(stop)
            .await?;
        Ok(())
    }
}
