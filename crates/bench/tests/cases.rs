//! Public reports of benchmark tools that gave wrong numbers, each with the figure that is right.

mod common;

use std::time::Duration;

use common::{Script, arrivals, constant, event, mock, settings, stream, text};
use deltamux_bench::arrival::Arrivals;
use deltamux_bench::bundle::RequestRecord;
use serde_json::json;

fn out() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// https://github.com/vllm-project/guidellm/issues/1048: a client that may not have enough requests in flight falls
/// behind its schedule; latency from the send hides that, latency from the schedule shows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_latency_from_the_schedule_grows_when_the_client_holds_requests_back() {
    let url = mock(|_, _| stream(1, "x", Duration::from_millis(190), 1)).await;
    let out = out();
    let mut profile = constant(20.0, 20);
    profile.max_in_flight = Some(2);
    let (finished, bundle) = arrivals(&settings(&url, &out), &profile).await;

    let point = &finished.run.points[0];
    let (from_send, from_schedule) = (point.latency.e2e_s.unwrap(), point.latency.e2e_from_schedule_s.unwrap());
    assert_eq!((from_send.n, from_schedule.n), (20, 20));
    assert!(from_schedule.mean > from_send.mean);
    // Two at a time and at least 190 ms each: the last ends no sooner than 1.9 s after the first was sent, and was due
    // 0.95 s after the first was.
    assert!(from_schedule.max >= 0.9, "{}", from_schedule.max);
    let lateness = |r: &RequestRecord| r.t_done_ns - r.t_sched_ns;
    assert!(lateness(&bundle.records[19]) > 2 * lateness(&bundle.records[0]));
    assert!(
        !point.valid && point.invalid[0].contains("the client sent late"),
        "{:?}",
        point.invalid
    );
    assert_eq!(finished.run.workload.max_in_flight, Some(2));
}

/// https://github.com/vllm-project/guidellm/issues/444: failed requests were averaged into latency and throughput.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b2_failures_are_counted_by_kind_and_enter_no_figure() {
    let url = mock(|number, _| match number % 2 {
        0 => stream(4, "x", Duration::from_millis(2), 4),
        _ => Script::Refuse(500, json!({ "error": { "message": "no room" } })),
    })
    .await;
    let out = out();
    let (finished, bundle) = arrivals(&settings(&url, &out), &constant(100.0, 20)).await;

    let point = &finished.run.points[0];
    assert_eq!(
        (point.counts.requests, point.counts.completed, point.counts.failed),
        (20, 10, 10)
    );
    assert_eq!(point.counts.failures, [("http_500".to_owned(), 10)].into());
    assert_eq!(
        (point.latency.ttft_ms.unwrap().n, point.latency.e2e_s.unwrap().n),
        (10, 10)
    );
    assert_eq!(point.latency.schedule_delay_ms.unwrap().n, 20);

    let done: Vec<&RequestRecord> = bundle.records.iter().filter(|r| r.completed()).collect();
    let first_due = bundle.records.iter().map(|r| r.t_sched_ns).min().unwrap();
    let last_done = done.iter().map(|r| r.t_done_ns).max().unwrap();
    let expected = 10.0 / ((last_done - first_due) as f64 / 1e9);
    let throughput = point.rates.request_throughput_req_per_s.unwrap().mean;
    assert!(
        (throughput / expected - 1.0).abs() < 1e-9,
        "{throughput} for {expected}"
    );
}

/// https://github.com/vllm-project/vllm/pull/46652: with several tokens a chunk, the gap between chunks was taken for
/// the time per token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b4_time_per_token_is_by_tokens_and_gaps_say_how_many_tokens_they_are() {
    let url = mock(|_, _| stream(10, "one two three", Duration::from_millis(6), 30)).await;
    let out = out();
    let (finished, bundle) = arrivals(&settings(&url, &out), &constant(50.0, 6)).await;

    let latency = &finished.run.points[0].latency;
    assert_eq!(latency.itl_tokens_per_chunk, Some(3.0));
    assert_eq!((latency.itl_ms.unwrap().n, latency.tpot_ms.unwrap().n), (6 * 9, 6));
    let expected = bundle
        .records
        .iter()
        .map(|r| (r.t_last_ns().unwrap() - r.t_first_ns().unwrap()) as f64 / 1e6 / 29.0)
        .sum::<f64>()
        / 6.0;
    let tpot = latency.tpot_ms.unwrap().mean;
    assert!((tpot / expected - 1.0).abs() < 1e-9, "{tpot} for {expected}");
}

/// One token a chunk needs no label.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gaps_of_one_token_have_no_label() {
    let url = mock(|_, _| stream(10, "one ", Duration::from_millis(1), 10)).await;
    let out = out();
    let (finished, _) = arrivals(&settings(&url, &out), &constant(50.0, 4)).await;
    assert_eq!(finished.run.points[0].latency.itl_tokens_per_chunk, None);
}

/// https://github.com/CentML/flexible-inference-bench/pull/66: an answer of blanks was retokenised to a few tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b5_a_hundred_blanks_are_as_many_tokens_as_the_server_says() {
    let url = mock(|_, _| stream(20, "     ", Duration::from_millis(1), 100)).await;
    let out = out();
    let (finished, bundle) = arrivals(&settings(&url, &out), &constant(50.0, 4)).await;

    let latency = &finished.run.points[0].latency;
    let tokens = latency.completion_tokens.unwrap();
    assert_eq!((tokens.n, tokens.mean, tokens.max), (4, 100.0, 100.0));
    assert_eq!(latency.itl_tokens_per_chunk, Some(5.0));
    let chars: u32 = bundle.records[0].chunks.iter().map(|c| c.chars).sum();
    assert_eq!(chars, 100);
}

/// https://github.com/tugot17/tokenomics/pull/16: a stream that began with 200 and then broke counted as a success.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_an_error_event_inside_a_stream_is_a_failed_request() {
    let url = mock(|number, _| match number % 3 {
        0 => stream(3, "x", Duration::from_millis(1), 3),
        1 => Script::Stream(vec![
            (Duration::ZERO, text("x", None)),
            (
                Duration::from_millis(1),
                event(&json!({ "error": { "message": "the engine died", "code": 500 } })),
            ),
            (Duration::ZERO, "data: [DONE]\n\n".to_owned()),
        ]),
        _ => Script::Stream(vec![(Duration::ZERO, text("x", None))]),
    })
    .await;
    let out = out();
    let (finished, _) = arrivals(&settings(&url, &out), &constant(50.0, 9)).await;

    let counts = &finished.run.points[0].counts;
    assert_eq!((counts.completed, counts.failed), (3, 6));
    assert_eq!(
        counts.failures,
        [("error_event".to_owned(), 3), ("truncated".to_owned(), 3)].into()
    );
    assert_eq!(finished.run.points[0].latency.ttft_ms.unwrap().n, 3);
}

/// https://github.com/triton-inference-server/server/issues/4711: Poisson load began with a burst and did not have
/// exponential gaps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b8_the_gaps_between_real_sends_are_exponential_and_there_is_no_opening_burst() {
    const RATE: f64 = 50.0;
    const N: usize = 200;
    let url = mock(|_, _| stream(2, "x", Duration::from_millis(5), 2)).await;
    let out = out();
    let mut profile = constant(RATE, N as u32);
    profile.process = Arrivals::Poisson;
    let (_, bundle) = arrivals(&settings(&url, &out), &profile).await;

    let sends: Vec<f64> = bundle
        .records
        .iter()
        .map(|r| r.t_send_ns.unwrap() as f64 / 1e9)
        .collect();
    let mut gaps: Vec<f64> = sends.windows(2).map(|w| w[1] - w[0]).collect();
    gaps.sort_by(f64::total_cmp);
    let n = gaps.len() as f64;
    let distance = gaps
        .iter()
        .enumerate()
        .map(|(i, gap)| {
            let cdf = 1.0 - (-RATE * gap.max(0.0)).exp();
            (cdf - i as f64 / n).abs().max(((i + 1) as f64 / n - cdf).abs())
        })
        .fold(0.0, f64::max);
    // Kolmogorov–Smirnov at the 0.1 % level.
    assert!(distance < 1.95 / n.sqrt(), "distance {distance}");
    // The first half second: 25 expected, standard deviation 5.
    let opening = sends.iter().filter(|t| **t < sends[0] + 0.5).count();
    assert!((5..=45).contains(&opening), "{opening} in the first half second");
}
