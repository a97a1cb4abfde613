//! A server on a free port over an engine that says what a test wants it to say.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod engine;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use deltamux_engine::{
    EngineStats, Event, FinishReason, LogProb, ModelText, Request, SubmitError, TokenLogProbs, Usage, VariantInfo,
    VariantState,
};
use deltamux_model::{ChatTemplate, GenerationConfig, Tokenizer};
use deltamux_server::{App, Events, Inference, ServerConfig, serve_app};
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// The tiny family that the repository carries.
pub fn tiny(model: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/tiny")
        .join(model)
}

/// What a scripted engine does with a request.
type Script = Box<dyn Fn(&Request) -> Result<Vec<Step>, SubmitError> + Send + Sync>;

/// A part of a scripted answer.
#[derive(Debug, Clone)]
pub enum Step {
    /// An event.
    Say(Event),
    /// Nothing until the test goes on.
    Wait(Arc<tokio::sync::Notify>),
    /// Nothing more, ever: the request runs until it is cancelled.
    Hang,
}

/// An engine whose answers are given.
pub struct Scripted {
    script: Script,
    models: Vec<VariantInfo>,
    text: Arc<ModelText>,
    requests: Arc<Mutex<Vec<Request>>>,
    open: Arc<AtomicUsize>,
}

impl Scripted {
    /// `base` with the tiny family's tokenizer and template, one good variant `sql` and one refused variant `broken`.
    pub fn new(script: impl Fn(&Request) -> Result<Vec<Step>, SubmitError> + Send + Sync + 'static) -> Self {
        let info = |name: &str, parent: Option<&str>, state| VariantInfo {
            name: name.to_owned(),
            parent: parent.map(str::to_owned),
            root: tiny(name),
            generation: format!("digest-of-{name}"),
            state,
            bytes: 1,
        };
        let refused = VariantState::Refused {
            why: "digest differs".to_owned(),
        };
        Self {
            script: Box::new(script),
            models: vec![
                info("base", None, VariantState::Resident),
                info("sql", Some("base"), VariantState::Registered),
                info("broken", Some("base"), refused),
            ],
            text: Arc::new(ModelText {
                tokenizer: Tokenizer::from_dir(&tiny("base")).unwrap(),
                template: ChatTemplate::from_dir(&tiny("base")).unwrap(),
                generation: GenerationConfig::default(),
            }),
            requests: Arc::default(),
            open: Arc::default(),
        }
    }

    /// An engine that answers every request with these pieces of text.
    pub fn saying(pieces: &'static [&'static str]) -> Self {
        Self::new(|_| Ok(say(pieces)))
    }

    /// The requests that arrive.
    pub fn requests(&self) -> Arc<Mutex<Vec<Request>>> {
        self.requests.clone()
    }

    /// How many streams are open.
    pub fn open(&self) -> Arc<AtomicUsize> {
        self.open.clone()
    }
}

/// Counts a stream for as long as it exists.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Inference for Scripted {
    fn submit(&self, request: Request) -> Result<Events, SubmitError> {
        let steps = (self.script)(&request)?;
        self.requests.lock().unwrap().push(request);
        self.open.fetch_add(1, Ordering::SeqCst);
        let open = Open(self.open.clone());
        Ok(
            futures::stream::unfold((steps.into_iter(), open), |(mut steps, open)| async {
                loop {
                    match steps.next()? {
                        Step::Say(event) => return Some((event, (steps, open))),
                        Step::Wait(go_on) => go_on.notified().await,
                        Step::Hang => std::future::pending().await,
                    }
                }
            })
            .boxed(),
        )
    }

    fn variants(&self) -> Vec<VariantInfo> {
        self.models.clone()
    }

    fn text(&self, _model: &str) -> Option<Arc<ModelText>> {
        Some(self.text.clone())
    }

    fn max_model_len(&self) -> usize {
        512
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            running: self.open.load(Ordering::SeqCst),
            waiting: 7,
            kv_pages_used: 1,
            kv_pages_total: 4,
            generation_tokens: 11,
            ..EngineStats::default()
        }
    }
}

/// A token event with some text.
pub fn token(text: &str) -> Step {
    let prob = |text: &str, logprob| LogProb {
        id: 5,
        text: text.to_owned(),
        logprob,
    };
    Step::Say(Event::Token {
        id: 5,
        text: text.to_owned(),
        logprobs: Some(TokenLogProbs {
            chosen: prob(text, -0.5),
            top: vec![prob(text, -0.5), prob("other", f32::NEG_INFINITY)],
        }),
    })
}

/// The end of an answer of `tokens` tokens, with text that was held back.
pub fn done(reason: FinishReason, text: &str, tokens: usize) -> Step {
    Step::Say(Event::Done {
        reason,
        text: text.to_owned(),
        usage: Usage {
            prompt_tokens: 10,
            cached_tokens: 4,
            completion_tokens: tokens,
        },
        queued: Duration::ZERO,
        prefill: Duration::ZERO,
        decode: Duration::ZERO,
    })
}

/// A whole answer.
pub fn say(pieces: &[&str]) -> Vec<Step> {
    let mut steps: Vec<Step> = pieces.iter().map(|piece| token(piece)).collect();
    steps.push(done(FinishReason::Stop, "", pieces.len()));
    steps
}

/// A running server.
pub struct Server {
    /// Where it listens.
    pub url: String,
    /// The application.
    pub app: App,
    client: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    task: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
}

impl Server {
    /// Starts a server with an engine.
    pub async fn start(engine: impl Inference) -> Self {
        Self::with(engine, ServerConfig::default()).await
    }

    /// Starts a server with an engine and a configuration.
    pub async fn with(engine: impl Inference, config: ServerConfig) -> Self {
        let server = Self::without_engine(config).await;
        server.app.set_engine(Arc::new(engine));
        server
    }

    /// Starts a server that has no engine yet.
    pub async fn without_engine(config: ServerConfig) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = App::new(config);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve_app(listener, app.clone(), async {
            let _ = stopped.await;
        }));
        Self {
            url,
            app,
            client: reqwest::Client::new(),
            stop: Some(stop),
            task: Some(task),
        }
    }

    /// Tells the server to stop.
    pub fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits until it has stopped.
    pub async fn stopped(&mut self) {
        self.task.take().unwrap().await.unwrap().unwrap();
    }

    /// The address without the scheme.
    pub fn address(&self) -> &str {
        self.url.strip_prefix("http://").unwrap()
    }

    /// A request to a path.
    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        self.client
            .request(method.parse().unwrap(), format!("{}{path}", self.url))
    }

    /// GET; status and body.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let response = self.request("GET", path).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// POST of JSON; status and JSON.
    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let response = self.request("POST", path).json(&body).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// POST of JSON to the chat endpoint with one message and these further fields.
    pub async fn chat(&self, model: &str, fields: Value) -> (u16, Value) {
        self.post("/v1/chat/completions", chat_body(model, fields)).await
    }

    /// POST of JSON to the completions endpoint with these further fields.
    pub async fn complete(&self, model: &str, fields: Value) -> (u16, Value) {
        self.post("/v1/completions", completion_body(model, fields)).await
    }

    /// The data of the events that a streamed request answers with.
    pub async fn events(&self, path: &str, body: Value) -> Vec<String> {
        let response = self.request("POST", path).json(&body).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        data_lines(&response.text().await.unwrap())
    }
}

/// A chat with one message; `fields` replace or add.
pub fn chat_body(model: &str, fields: Value) -> Value {
    merged(
        json!({"model": model, "messages": [{"role": "user", "content": "Count the rows of orders."}]}),
        fields,
    )
}

/// A completion of one prompt; `fields` replace or add.
pub fn completion_body(model: &str, fields: Value) -> Value {
    merged(json!({"model": model, "prompt": "Count the rows of orders."}), fields)
}

fn merged(mut body: Value, fields: Value) -> Value {
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

/// The data of each event: exactly one `data:` line an event, comments left out.
pub fn data_lines(stream: &str) -> Vec<String> {
    assert!(stream.ends_with("\n\n"), "the last event is not ended: {stream:?}");
    stream
        .split("\n\n")
        .filter(|event| !event.is_empty() && !event.starts_with(':'))
        .map(|event| {
            let data = event.strip_prefix("data: ").expect("an event begins with `data: `");
            assert!(!data.contains('\n'), "more than one line in an event: {event:?}");
            data.to_owned()
        })
        .collect()
}

/// The chunks of a stream, whose last event must be `[DONE]`.
pub fn chunks(events: &[String]) -> Vec<Value> {
    let (last, chunks) = events.split_last().unwrap();
    assert_eq!(last, "[DONE]");
    chunks
        .iter()
        .map(|chunk| serde_json::from_str(chunk).unwrap())
        .collect()
}

/// The text that the chunks of choice `index` make together, of either endpoint.
pub fn text_of(chunks: &[Value], index: u64) -> String {
    chunks
        .iter()
        .flat_map(|chunk| chunk["choices"].as_array().unwrap())
        .filter(|choice| choice["index"] == index)
        .filter_map(|choice| choice["delta"]["content"].as_str().or(choice["text"].as_str()))
        .collect()
}

/// Waits until `condition` holds; the test's own time limit is the harness's.
pub async fn eventually(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
