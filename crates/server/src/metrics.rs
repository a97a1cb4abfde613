//! What the server counts and measures, in Prometheus' terms.
//!
//! Each server has its own recorder, so that several can live in one process. Latencies are the server's view, from
//! the parsed request to the event; a client measures its own.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use deltamux_engine::{FinishReason, VariantState};
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::Inference;

const TTFT: &str = "deltamux_time_to_first_token_seconds";
const TPOT: &str = "deltamux_time_per_output_token_seconds";
const E2E: &str = "deltamux_request_duration_seconds";

/// Upper bounds in seconds, about three a decade.
const LATENCY_BUCKETS: [f64; 17] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0,
];
const STATES: [&str; 4] = ["registered", "loading", "resident", "refused"];

/// How often samples are folded into their buckets when nobody reads `/metrics`, so that they do not pile up.
pub const UPKEEP: Duration = Duration::from_secs(5);

/// A server's metrics.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    /// Models that had a state when `/metrics` was last read, so that those that are gone since leave it.
    models: Mutex<BTreeSet<String>>,
}

impl Metrics {
    /// Nothing counted yet.
    pub fn new() -> Self {
        let mut builder = PrometheusBuilder::new();
        for name in [TTFT, TPOT, E2E] {
            builder = builder
                .set_buckets_for_metric(Matcher::Full(name.to_owned()), &LATENCY_BUCKETS)
                .expect("the buckets are a constant and not empty");
        }
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, describe);
        Self {
            recorder,
            handle,
            models: Mutex::default(),
        }
    }

    fn record(&self, record: impl FnOnce()) {
        metrics::with_local_recorder(&self.recorder, record);
    }

    /// An answered HTTP request.
    pub fn http_request(&self, endpoint: &str, status: u16) {
        self.record(|| {
            let labels = [("endpoint", endpoint.to_owned()), ("status", status.to_string())];
            counter!("deltamux_http_requests_total", &labels).increment(1);
        });
    }

    /// The first token of a completion, `since` its request.
    pub fn first_token(&self, model: &str, since: Duration) {
        self.record(|| histogram!(TTFT, "model" => model.to_owned()).record(since));
    }

    /// A completion that ended by itself.
    pub fn finished(&self, model: &str, reason: FinishReason, times: &CompletionTimes) {
        let reason = match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        };
        self.ended(model, reason);
        self.record(|| {
            histogram!(E2E, "model" => model.to_owned()).record(times.end - times.start);
            // One token has no time between tokens: no sample, rather than a zero.
            if let (Some(first), 2..) = (times.first, times.tokens) {
                let each = (times.end - first).as_secs_f64() / (times.tokens - 1) as f64;
                histogram!(TPOT, "model" => model.to_owned()).record(each);
            }
        });
    }

    /// A completion that ended, and how: `stop`, `length`, `cancelled` or `failed`.
    pub fn ended(&self, model: &str, outcome: &'static str) {
        self.record(|| {
            let labels = [("model", model.to_owned()), ("outcome", outcome.to_owned())];
            counter!("deltamux_completions_total", &labels).increment(1);
        });
    }

    /// Folds samples into their buckets.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// The text that Prometheus reads; with the engine's figures when there is an engine.
    pub fn render(&self, engine: Option<&dyn Inference>) -> String {
        if let Some(engine) = engine {
            let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
            self.record(|| {
                read_stats(engine);
                *models = read_states(engine, &models);
            });
        }
        self.handle.render()
    }
}

/// When things happened to one completion.
#[derive(Debug, Clone, Copy)]
pub struct CompletionTimes {
    /// Its request was parsed.
    pub start: Instant,
    /// Its first token came.
    pub first: Option<Instant>,
    /// It ended.
    pub end: Instant,
    /// Its tokens.
    pub tokens: usize,
}

/// Sets gauges and counters to what the engine says now.
fn read_stats(engine: &dyn Inference) {
    let stats = engine.stats();
    gauge!("deltamux_requests_running").set(stats.running as f64);
    gauge!("deltamux_requests_waiting").set(stats.waiting as f64);
    gauge!("deltamux_kv_pages_used").set(stats.kv_pages_used as f64);
    gauge!("deltamux_kv_pages").set(stats.kv_pages_total as f64);
    if stats.kv_pages_total > 0 {
        gauge!("deltamux_kv_usage_ratio").set(stats.kv_pages_used as f64 / stats.kv_pages_total as f64);
    }
    gauge!("deltamux_kv_page_bytes").set(stats.kv_page_bytes as f64);
    gauge!("deltamux_base_bytes").set(stats.base_bytes as f64);
    gauge!("deltamux_variant_bytes").set(stats.variant_bytes as f64);
    counter!("deltamux_steps_total").absolute(stats.steps);
    counter!("deltamux_prompt_tokens_total").absolute(stats.prompt_tokens);
    counter!("deltamux_generation_tokens_total").absolute(stats.generation_tokens);
    counter!("deltamux_requests_finished_total").absolute(stats.finished);
    counter!("deltamux_requests_cancelled_total").absolute(stats.cancelled);
    counter!("deltamux_preemptions_total").absolute(stats.preemptions);
    counter!("deltamux_variant_loads_total").absolute(stats.variant_loads);
    counter!("deltamux_variant_evictions_total").absolute(stats.variant_evictions);
}

/// Sets the gauges of the models' states, clears those of models that are gone, and returns the models there are.
fn read_states(engine: &dyn Inference, before: &BTreeSet<String>) -> BTreeSet<String> {
    let set = |model: &str, now: Option<&str>| {
        for state in STATES {
            let labels = [("model", model.to_owned()), ("state", state.to_owned())];
            gauge!("deltamux_variant_state", &labels).set(f64::from(u8::from(now == Some(state))));
        }
    };
    let mut models = BTreeSet::new();
    for variant in engine.variants() {
        let now = match variant.state {
            VariantState::Registered => "registered",
            VariantState::Loading => "loading",
            VariantState::Resident => "resident",
            VariantState::Refused { .. } => "refused",
        };
        set(&variant.name, Some(now));
        models.insert(variant.name);
    }
    for gone in before.difference(&models) {
        set(gone, None);
    }
    models
}

fn describe() {
    describe_counter!("deltamux_http_requests_total", "HTTP requests, by endpoint and status");
    describe_counter!(
        "deltamux_completions_total",
        "Completions that ended, by model and outcome"
    );
    describe_histogram!(TTFT, "From the parsed request to the first token");
    describe_histogram!(TPOT, "Mean time between the tokens of a completion of two or more");
    describe_histogram!(E2E, "From the parsed request to the end of the completion");
    describe_gauge!("deltamux_requests_running", "Sequences in the running batch");
    describe_gauge!("deltamux_requests_waiting", "Sequences waiting for the batch");
    describe_gauge!("deltamux_kv_pages_used", "KV pages in use");
    describe_gauge!("deltamux_kv_pages", "KV pages in all");
    describe_gauge!("deltamux_kv_usage_ratio", "Share of the KV pages in use");
    describe_gauge!("deltamux_kv_page_bytes", "Bytes of one KV page");
    describe_gauge!("deltamux_base_bytes", "Bytes of the base's weights");
    describe_gauge!("deltamux_variant_bytes", "Bytes of resident variants");
    describe_gauge!(
        "deltamux_variant_state",
        "1 for the state a model is in, 0 for the others"
    );
    describe_counter!("deltamux_steps_total", "Steps of the engine");
    describe_counter!("deltamux_prompt_tokens_total", "Prompt tokens computed");
    describe_counter!("deltamux_generation_tokens_total", "Tokens generated");
    describe_counter!("deltamux_requests_finished_total", "Sequences finished");
    describe_counter!("deltamux_requests_cancelled_total", "Sequences cancelled");
    describe_counter!("deltamux_preemptions_total", "Sequences preempted and recomputed");
    describe_counter!(
        "deltamux_variant_loads_total",
        "Loads of variants (swap mode: of checkpoints)"
    );
    describe_counter!("deltamux_variant_evictions_total", "Evictions of variants");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_of_one_token_has_no_time_per_output_token() {
        let metrics = Metrics::new();
        let start = Instant::now();
        let mut times = CompletionTimes {
            start,
            first: Some(start),
            end: start + Duration::from_secs(1),
            tokens: 1,
        };
        metrics.finished("sql", FinishReason::Stop, &times);
        assert!(!metrics.render(None).contains(&format!("{TPOT}_count")));
        times.tokens = 3;
        metrics.finished("sql", FinishReason::Stop, &times);
        let text = metrics.render(None);
        assert!(text.contains(&format!("{TPOT}_sum{{model=\"sql\"}} 0.5")), "{text}");
        assert!(text.contains(&format!("{E2E}_count{{model=\"sql\"}} 2")), "{text}");
        assert!(
            text.contains("deltamux_completions_total{model=\"sql\",outcome=\"stop\"} 2"),
            "{text}"
        );
    }

    #[test]
    fn servers_in_one_process_count_apart() {
        let (a, b) = (Metrics::new(), Metrics::new());
        a.http_request("/health", 200);
        assert!(
            a.render(None)
                .contains("deltamux_http_requests_total{endpoint=\"/health\",status=\"200\"} 1")
        );
        assert!(!b.render(None).contains("endpoint="));
    }
}
