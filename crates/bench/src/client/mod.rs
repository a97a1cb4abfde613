//! A client of any OpenAI-compatible server that notes when every byte of a request goes and every chunk comes.

pub mod sse;
pub mod stream;

use std::sync::Arc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::{Value, json};

use crate::bundle::{Api, Chunk, ChunkKind, Outcome};
use crate::plan::PlannedRequest;
use sse::SseParser;
use stream::Usage;

/// Why a client could not be made, or why the server gave no answer outside of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL cannot be used.
    #[error("--url {url}: {what}; expected e.g. http://127.0.0.1:8080")]
    Url {
        /// As it was given.
        url: String,
        /// What is wrong.
        what: String,
    },
    /// The API key holds characters that a header cannot.
    #[error("the API key holds characters that no HTTP header may hold")]
    Key,
    /// The HTTP client could not be built.
    #[error("HTTP client: {0}")]
    Build(String),
    /// No answer.
    #[error("{url} is not reachable: {what}; is the server running?")]
    Unreachable {
        /// What was asked.
        url: String,
        /// What was seen.
        what: String,
    },
    /// An answer that was not wanted.
    #[error("{url} answered {status}: {what}")]
    Status {
        /// What was asked.
        url: String,
        /// HTTP status.
        status: u16,
        /// The server's message.
        what: String,
    },
}

/// The monotonic clock of a run: nanoseconds since it began.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that begins now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds since it began.
    pub fn ns(&self) -> i64 {
        i64::try_from(self.0.elapsed().as_nanos()).unwrap_or(i64::MAX)
    }

    /// The instant `ns` nanoseconds after it began.
    pub fn at(&self, ns: i64) -> Instant {
        self.0 + Duration::from_nanos(u64::try_from(ns).unwrap_or(0))
    }
}

/// What came back for one request.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// When its first byte was handed to the socket; `None` when it never was.
    pub t_send_ns: Option<i64>,
    /// When its stream ended or it failed.
    pub t_done_ns: i64,
    /// Token counts, from the server.
    pub usage: Option<Usage>,
    /// Why the answer ended, from the server.
    pub finish_reason: Option<String>,
    /// Completed, or why not.
    pub outcome: Outcome,
    /// Chunks in order of arrival.
    pub chunks: Vec<Chunk>,
    /// The answer's text, from a client that keeps it ([`Client::keeping_text`]).
    pub text: String,
}

/// The client.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: reqwest::Url,
    api: Api,
    timeout: Duration,
    clock: Clock,
    keep_text: bool,
}

/// Idle connections are dropped before common servers drop them (uvicorn: 5 s), so that none dies under a request.
const IDLE: Duration = Duration::from_secs(4);
/// Time to read what follows the done event, so that the connection can be used again.
const AFTER_DONE: Duration = Duration::from_millis(250);
/// Longest answer that is kept, in bytes: far above what any `max_tokens` of a task gives.
const MAX_ANSWER: usize = 1 << 20;
/// Of the body of a refusal, bytes that are read.
const MAX_REFUSAL: usize = 64 << 10;
/// Time for a question outside of a measurement.
const QUESTION: Duration = Duration::from_secs(10);

impl Client {
    /// A client of the server at `url` (with or without `/v1`). Requests that take longer than `timeout` fail.
    pub fn new(
        url: &str,
        api: Api,
        api_key: Option<&str>,
        timeout: Duration,
        clock: Clock,
    ) -> Result<Self, ClientError> {
        let refused = |what: &str| ClientError::Url {
            url: url.into(),
            what: what.into(),
        };
        let mut base = reqwest::Url::parse(url).map_err(|e| refused(&e.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || base.host().is_none() {
            return Err(refused("not an http or https address"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(refused(
                "holds credentials, which would end up in the bundle (use --api-key)",
            ));
        }
        base.set_query(None);
        base.set_fragment(None);
        let path = base
            .path()
            .trim_end_matches('/')
            .trim_end_matches("/v1")
            .trim_end_matches('/')
            .to_owned();
        base.set_path(&path);

        let mut headers = HeaderMap::new();
        if let Some(key) = api_key {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| ClientError::Key)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let mut builder = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("deltamux/", env!("CARGO_PKG_VERSION")))
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(usize::MAX)
            .redirect(reqwest::redirect::Policy::none());
        if is_loopback(&base) {
            // A proxy between the client and its own machine would be measured with the server.
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|e| ClientError::Build(reason(&e)))?;
        Ok(Self {
            http,
            base,
            api,
            timeout,
            clock,
            keep_text: false,
        })
    }

    /// The same client, keeping the text of answers.
    #[must_use]
    pub fn keeping_text(self) -> Self {
        Self {
            keep_text: true,
            ..self
        }
    }

    /// The base URL, without `/v1`.
    pub fn url(&self) -> String {
        self.base.as_str().trim_end_matches('/').to_owned()
    }

    /// The clock that this client's times are of.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    fn endpoint(&self, path: &str) -> String {
        format!("{}{path}", self.url())
    }

    /// GETs a path; the status and the text.
    pub async fn get(&self, path: &str) -> Result<(u16, String), ClientError> {
        let url = self.endpoint(path);
        let unreachable = |e: reqwest::Error| ClientError::Unreachable {
            url: url.clone(),
            what: reason(&e),
        };
        let response = self
            .http
            .get(&url)
            .timeout(QUESTION)
            .send()
            .await
            .map_err(unreachable)?;
        let status = response.status().as_u16();
        Ok((status, response.text().await.map_err(unreachable)?))
    }

    /// Sends a request and follows its stream to the end. Never fails: what goes wrong is the reply's outcome.
    pub async fn send(&self, request: &PlannedRequest) -> Reply {
        let sent = Arc::new(OnceLock::new());
        let mut reply = Reply {
            t_send_ns: None,
            t_done_ns: 0,
            usage: None,
            finish_reason: None,
            outcome: Outcome::Completed,
            chunks: Vec::new(),
            text: String::new(),
        };
        let followed = tokio::time::timeout(self.timeout, self.follow(request, sent.clone(), &mut reply)).await;
        let failed = match followed {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => Some(failure),
            Err(_) => Some(Failure::new(
                "timeout",
                format!("no end within {} s", self.timeout.as_secs_f64()),
            )),
        };
        if let Some(Failure { kind, error }) = failed {
            reply.t_done_ns = self.clock.ns();
            reply.outcome = Outcome::Failed { kind, error };
        }
        reply.t_send_ns = sent.get().copied();
        reply
    }

    async fn follow(
        &self,
        request: &PlannedRequest,
        sent: Arc<OnceLock<i64>>,
        reply: &mut Reply,
    ) -> Result<(), Failure> {
        let path = match self.api {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
        };
        let body = Bytes::from(self.body(request)?.to_string());
        let length = body.len();
        let clock = self.clock;
        // The connection asks for the body when it has written the head into its buffer and before it flushes that to
        // the socket: the closest that one can come to "first byte handed to the socket" from here.
        let stamped = futures::stream::once(async move {
            let _ = sent.set(clock.ns());
            Ok::<_, std::convert::Infallible>(body)
        });
        let mut response = self
            .http
            .post(self.endpoint(path))
            .header(CONTENT_TYPE, "application/json")
            .header(CONTENT_LENGTH, length)
            .body(reqwest::Body::wrap_stream(stamped))
            .send()
            .await
            .map_err(|e| Failure::new(if e.is_connect() { "connect" } else { "disconnected" }, reason(&e)))?;

        let status = response.status();
        if !status.is_success() {
            return Err(Failure::new(
                format!("http_{}", status.as_u16()),
                refusal(response).await,
            ));
        }
        let content = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default();
        if !content.starts_with("text/event-stream") {
            return Err(malformed(format!(
                "the answer is `{content}`, expected text/event-stream"
            )));
        }

        let mut parser = SseParser::default();
        loop {
            let bytes = match response.chunk().await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => break,
                Err(e) => return Err(Failure::new("disconnected", reason(&e))),
            };
            let now = self.clock.ns();
            let events = parser
                .push(&bytes)
                .ok_or_else(|| malformed("an event does not end".into()))?;
            for event in events {
                let parsed = stream::parse(&event).map_err(malformed)?;
                reply.chunks.push(Chunk {
                    t_ns: now,
                    kind: parsed.kind,
                    chars: parsed.chars,
                });
                if self.keep_text {
                    if reply.text.len() + parsed.text.len() > MAX_ANSWER {
                        return Err(Failure::new(
                            "malformed",
                            format!("the answer is longer than {MAX_ANSWER} bytes"),
                        ));
                    }
                    reply.text.push_str(&parsed.text);
                }
                reply.usage = parsed.usage.or(reply.usage);
                reply.finish_reason = parsed.finish_reason.or_else(|| reply.finish_reason.take());
                match parsed.kind {
                    ChunkKind::Error => return Err(Failure::new("error_event", parsed.error.unwrap_or_default())),
                    ChunkKind::Done => {
                        reply.t_done_ns = now;
                        let _ = tokio::time::timeout(AFTER_DONE, async {
                            while let Ok(Some(_)) = response.chunk().await {}
                        })
                        .await;
                        return Ok(());
                    }
                    _ => {}
                }
            }
        }
        if reply.finish_reason.is_none() {
            return Err(Failure::new(
                "truncated",
                "the stream ended without a finish reason or [DONE]",
            ));
        }
        // Some servers close instead of sending [DONE].
        reply.t_done_ns = self.clock.ns();
        Ok(())
    }

    fn body(&self, request: &PlannedRequest) -> Result<Value, Failure> {
        let mut body = json!({
            "model": request.model,
            "stream": true,
            "stream_options": { "include_usage": true },
            "temperature": 0,
        });
        match (self.api, &request.prompt) {
            (Api::Chat, prompt) => body["messages"] = prompt.messages(),
            (Api::Completions, crate::prompts::Prompt::Text(text)) => body["prompt"] = json!(text),
            (Api::Completions, crate::prompts::Prompt::Messages(_)) => {
                return Err(malformed("messages cannot be sent to /v1/completions".into()));
            }
        }
        if let Some(n) = request.max_tokens {
            body["max_tokens"] = json!(n);
        }
        if let Some(n) = request.min_tokens {
            body["min_tokens"] = json!(n);
        }
        if request.ignore_eos {
            body["ignore_eos"] = json!(true);
        }
        Ok(body)
    }
}

struct Failure {
    kind: String,
    error: String,
}

impl Failure {
    fn new(kind: impl Into<String>, error: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            error: error.into(),
        }
    }
}

fn malformed(what: String) -> Failure {
    Failure::new("malformed", what)
}

/// The innermost cause: reqwest's own message is only "error sending request".
fn reason(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

async fn refusal(mut response: reqwest::Response) -> String {
    let mut body = Vec::new();
    while let Ok(Some(bytes)) = response.chunk().await {
        body.extend_from_slice(&bytes);
        if body.len() > MAX_REFUSAL {
            break;
        }
    }
    refusal_text(&String::from_utf8_lossy(&body))
}

/// The message of an error body, or its text.
pub(crate) fn refusal_text(body: &str) -> String {
    serde_json::from_str::<Value>(body).map_or_else(|_| body.trim().to_owned(), |value| stream::message(&value))
}

fn is_loopback(url: &reqwest::Url) -> bool {
    url.host_str().is_some_and(|host| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Result<Client, ClientError> {
        Client::new(url, Api::Chat, None, Duration::from_secs(1), Clock::start())
    }

    #[test]
    fn an_address_is_taken_with_and_without_v1() {
        for url in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/?x=1#y"] {
            assert_eq!(client(url).unwrap().url(), "http://h:1", "{url}");
        }
        assert_eq!(client("https://h/llm/v1").unwrap().url(), "https://h/llm");
    }

    #[test]
    fn an_address_that_cannot_be_used_is_refused() {
        for url in ["h:1", "ftp://h", "", "http://user:secret@h"] {
            assert!(matches!(client(url), Err(ClientError::Url { .. })), "{url}");
        }
    }
}
