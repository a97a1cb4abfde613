//! What a server is told at its start.

use std::time::Duration;

use crate::ApiKeys;

/// Limits and keys of a server. The defaults suit a machine behind no proxy.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Keys of which a request to `/v1/…` must carry one; `None`: no key is asked for.
    pub api_keys: Option<ApiKeys>,
    /// Bytes of a request body at most.
    pub max_body_bytes: usize,
    /// A request's head must be complete, or an idle connection used again, within this time.
    pub header_timeout: Duration,
    /// A request's body must be complete within this time.
    pub body_timeout: Duration,
    /// A streamed response starts with the first token, so that a refusal still has its own status, but after this
    /// time at the latest, so that proxies see a living connection.
    pub stream_start: Duration,
    /// Comments keep an idle stream alive at this interval.
    pub keep_alive: Duration,
    /// Running requests may finish for this long once the server is told to stop.
    pub drain: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            api_keys: None,
            max_body_bytes: 8 << 20,
            header_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(60),
            stream_start: Duration::from_secs(10),
            keep_alive: Duration::from_secs(15),
            drain: Duration::from_secs(30),
        }
    }
}
