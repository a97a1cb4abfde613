//! The figures of a run: statistics, latencies, rates and counts, each present only when its samples exist.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A two-sided interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// A distribution of raw samples. It exists only if at least one sample exists. Quantiles are by nearest rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Statistic {
    /// Number of samples; at least 1.
    pub n: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest sample.
    pub max: f64,
    /// Sample standard deviation (n − 1); absent for one sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stddev: Option<f64>,
    /// 95 % bootstrap interval of the mean over the repeats' means; only where repeats are pooled and at least three
    /// have samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ci95: Option<Interval>,
}

/// One scalar figure over the repeats of a point.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Estimate {
    /// Repeats that have the figure; at least 1.
    pub n: u64,
    /// Mean over those repeats.
    pub mean: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Sample standard deviation; absent for one repeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stddev: Option<f64>,
    /// 95 % bootstrap interval of the mean; absent below three repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
}

/// Distributions over requests. Failed and warm-up requests are in none of them, but for `schedule_delay_ms`, which
/// describes the client and holds every measured request that was sent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latencies {
    /// First chunk with any token (reasoning included) after the request was sent, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<Statistic>,
    /// The same from the moment the request was due, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_from_schedule_ms: Option<Statistic>,
    /// Done event after the request was sent, s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2e_s: Option<Statistic>,
    /// The same from the moment the request was due, s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2e_from_schedule_s: Option<Statistic>,
    /// Time per output token after the first, by the server's own token count, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpot_ms: Option<Statistic>,
    /// Gaps between chunks that carry tokens, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub itl_ms: Option<Statistic>,
    /// Tokens a chunk carries on average, where that is not 1: the label of `itl_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub itl_tokens_per_chunk: Option<f64>,
    /// Decode speed of each request, tokens/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_tok_per_s: Option<Statistic>,
    /// Prompt tokens of each request, by the server's count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<Statistic>,
    /// Prompt tokens found in the server's prefix cache, by the server's count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_prompt_tokens: Option<Statistic>,
    /// Completion tokens of each request, by the server's count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<Statistic>,
    /// Sent after due: the client's own lateness, ms. A p99 above 10 ms makes the point invalid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_delay_ms: Option<Statistic>,
}

/// Rates of one repeat. Generic over what stands for one figure: `f64` for a repeat, [`Estimate`] for a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Rates_of_{T}")]
pub struct Rates<T> {
    /// What the schedule really offered: (requests − 1) / (last due − first due), requests/s; open loop only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_req_per_s: Option<T>,
    /// Completed / (last done − first due), requests/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_throughput_req_per_s: Option<T>,
    /// Request throughput / offered rate; open loop only. The drain tail is in its window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_per_offered: Option<T>,
    /// (completed − 1) / (last done − first done), over the offered rate: the same share without the tail, which is
    /// what the knee is judged by; open loop only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_per_offered_steady: Option<T>,
    /// From the last request's due time to the last done, s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_tail_s: Option<T>,
    /// From the first request's due time to the last done, s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_s: Option<T>,
    /// Σ completion tokens / (last token − first send), tokens/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_throughput_tok_per_s: Option<T>,
    /// Σ (completion tokens − 1) / (last token − first token), tokens/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate_decode_tok_per_s: Option<T>,
    /// Completed requests that met the stated limits / the window, requests/s; only when limits were stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput_req_per_s: Option<T>,
    /// Requests due and not done, mean over the arrivals of the first third; open loop only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight_first_third: Option<T>,
    /// Requests due and not done, mean over the arrivals of the last third; open loop only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight_last_third: Option<T>,
}

impl<T> Default for Rates<T> {
    fn default() -> Self {
        Self {
            offered_req_per_s: None,
            request_throughput_req_per_s: None,
            completed_per_offered: None,
            completed_per_offered_steady: None,
            drain_tail_s: None,
            window_s: None,
            output_throughput_tok_per_s: None,
            aggregate_decode_tok_per_s: None,
            goodput_req_per_s: None,
            in_flight_first_third: None,
            in_flight_last_third: None,
        }
    }
}

/// Requests by what became of them; warm-up requests are only in `warmup`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Measured requests that were due.
    pub requests: u64,
    /// Of these, completed.
    pub completed: u64,
    /// Of these, failed.
    pub failed: u64,
    /// Failed ones by kind: `connect`, `timeout`, `http_503`, `error_event`, `truncated`, `malformed`, ….
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u64>,
    /// Completed ones whose stream had no usage: they are in no figure that counts tokens.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub without_usage: u64,
    /// Warm-up requests, sent and recorded but in no figure.
    pub warmup: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}
