//! From raw events to figures. Pure: what `bench verify` recomputes is what was computed when the run ended.

use crate::bundle::{
    Counts, Estimate, Latencies, Limits, Load, Outcome, Point, Rates, Repeat, RequestRecord, Statistic,
};
use crate::stats::{bootstrap, estimate, rounded, statistic};

/// A schedule delay whose p99 is above this makes a repeat invalid: the client, not the server, was measured.
pub const SCHEDULE_DELAY_LIMIT_MS: f64 = 10.0;

/// What a point was to be, before any event.
#[derive(Debug, Clone, PartialEq)]
pub struct PointPlan {
    /// The load.
    pub load: Load,
    /// Measured requests in each repeat.
    pub requests: u64,
    /// Warm-up requests before the first repeat.
    pub warmup: u64,
    /// Seed of each repeat.
    pub seeds: Vec<u64>,
}

/// The figures of a point from its requests.
pub fn point(plan: &PointPlan, limits: Option<Limits>, records: &[RequestRecord]) -> Point {
    let repeats: Vec<(Repeat, Samples)> = plan
        .seeds
        .iter()
        .enumerate()
        .map(|(i, &seed)| {
            let of_repeat: Vec<&RequestRecord> = records.iter().filter(|r| r.repeat as usize == i).collect();
            repeat(&plan.load, limits, seed, &of_repeat)
        })
        .collect();
    let mut pooled = Samples::default();
    let mut counts = Counts::default();
    let mut invalid = Vec::new();
    for (i, (repeat, samples)) in repeats.iter().enumerate() {
        pooled.extend(samples);
        add(&mut counts, &repeat.counts);
        invalid.extend(
            repeat
                .invalid
                .iter()
                .map(|reason| format!("repeat {}: {reason}", i + 1)),
        );
    }
    let repeats: Vec<Repeat> = repeats.into_iter().map(|(repeat, _)| repeat).collect();
    Point {
        load: plan.load.clone(),
        requests: plan.requests,
        warmup: plan.warmup,
        valid: invalid.is_empty(),
        invalid,
        counts,
        latency: with_intervals(pooled.latencies(), &repeats),
        rates: over_repeats(&repeats),
        repeats,
    }
}

fn repeat(load: &Load, limits: Option<Limits>, seed: u64, records: &[&RequestRecord]) -> (Repeat, Samples) {
    let measured: Vec<&RequestRecord> = records.iter().copied().filter(|r| !r.warmup).collect();
    let mut counts = Counts {
        warmup: (records.len() - measured.len()) as u64,
        ..Counts::default()
    };
    let mut samples = Samples::default();
    for record in &measured {
        counts.requests += 1;
        match &record.outcome {
            Outcome::Completed => {
                counts.completed += 1;
                counts.without_usage += u64::from(record.completion_tokens.is_none());
            }
            Outcome::Failed { kind, .. } => {
                counts.failed += 1;
                *counts.failures.entry(kind.clone()).or_insert(0) += 1;
            }
        }
        samples.add(record);
    }
    let latency = samples.latencies();
    let mut invalid = Vec::new();
    if let Some(delay) = latency
        .schedule_delay_ms
        .filter(|delay| delay.p99 > SCHEDULE_DELAY_LIMIT_MS)
    {
        invalid.push(format!(
            "the p99 of the schedule delay is {} ms, above {SCHEDULE_DELAY_LIMIT_MS} ms: the client sent late",
            delay.p99
        ));
    }
    let rates = rates(load, limits, &measured);
    (
        Repeat {
            seed,
            valid: invalid.is_empty(),
            invalid,
            counts,
            latency,
            rates,
        },
        samples,
    )
}

fn add(sum: &mut Counts, part: &Counts) {
    sum.requests += part.requests;
    sum.completed += part.completed;
    sum.failed += part.failed;
    sum.without_usage += part.without_usage;
    sum.warmup += part.warmup;
    for (kind, n) in &part.failures {
        *sum.failures.entry(kind.clone()).or_insert(0) += n;
    }
}

fn ms(ns: i64) -> f64 {
    ns as f64 / 1e6
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

/// Seconds between two instants, if the second is later.
fn span(from: i64, to: i64) -> Option<f64> {
    (to > from).then(|| seconds(to - from))
}

/// TPOT of a completed request, ms.
fn tpot_ms(record: &RequestRecord) -> Option<f64> {
    let n = record.completion_tokens.filter(|n| *n > 1)?;
    Some(ms(record.t_last_ns()? - record.t_first_ns()?) / f64::from(n - 1))
}

/// TTFT of a completed request, ms.
fn ttft_ms(record: &RequestRecord) -> Option<f64> {
    Some(ms(record.t_first_ns()? - record.t_send_ns?))
}

/// Raw samples, one vector a distribution.
#[derive(Debug, Clone, Default)]
struct Samples {
    ttft_ms: Vec<f64>,
    ttft_from_schedule_ms: Vec<f64>,
    e2e_s: Vec<f64>,
    e2e_from_schedule_s: Vec<f64>,
    tpot_ms: Vec<f64>,
    itl_ms: Vec<f64>,
    decode_tok_per_s: Vec<f64>,
    prompt_tokens: Vec<f64>,
    cached_prompt_tokens: Vec<f64>,
    completion_tokens: Vec<f64>,
    schedule_delay_ms: Vec<f64>,
    /// Completion tokens and the chunks that carried them, for the label of ITL.
    tokens: u64,
    token_chunks: u64,
}

impl Samples {
    fn add(&mut self, record: &RequestRecord) {
        if let Some(t_send) = record.t_send_ns {
            self.schedule_delay_ms.push(ms(t_send - record.t_sched_ns));
        }
        if !record.completed() {
            return;
        }
        self.e2e_from_schedule_s
            .push(seconds(record.t_done_ns - record.t_sched_ns));
        self.e2e_s
            .extend(record.t_send_ns.map(|t| seconds(record.t_done_ns - t)));
        self.ttft_ms.extend(ttft_ms(record));
        self.ttft_from_schedule_ms
            .extend(record.t_first_ns().map(|t| ms(t - record.t_sched_ns)));
        self.tpot_ms.extend(tpot_ms(record));
        let arrivals: Vec<i64> = record.token_chunks().collect();
        self.itl_ms.extend(arrivals.windows(2).map(|w| ms(w[1] - w[0])));
        self.prompt_tokens.extend(record.prompt_tokens.map(f64::from));
        self.cached_prompt_tokens.extend(record.cached_tokens.map(f64::from));
        if let Some(n) = record.completion_tokens {
            self.completion_tokens.push(f64::from(n));
            self.tokens += u64::from(n);
            self.token_chunks += arrivals.len() as u64;
            if let (true, Some(first), Some(last)) = (n > 1, record.t_first_ns(), record.t_last_ns()) {
                self.decode_tok_per_s
                    .extend(span(first, last).map(|s| f64::from(n - 1) / s));
            }
        }
    }

    fn extend(&mut self, other: &Self) {
        self.ttft_ms.extend(&other.ttft_ms);
        self.ttft_from_schedule_ms.extend(&other.ttft_from_schedule_ms);
        self.e2e_s.extend(&other.e2e_s);
        self.e2e_from_schedule_s.extend(&other.e2e_from_schedule_s);
        self.tpot_ms.extend(&other.tpot_ms);
        self.itl_ms.extend(&other.itl_ms);
        self.decode_tok_per_s.extend(&other.decode_tok_per_s);
        self.prompt_tokens.extend(&other.prompt_tokens);
        self.cached_prompt_tokens.extend(&other.cached_prompt_tokens);
        self.completion_tokens.extend(&other.completion_tokens);
        self.schedule_delay_ms.extend(&other.schedule_delay_ms);
        self.tokens += other.tokens;
        self.token_chunks += other.token_chunks;
    }

    fn latencies(&self) -> Latencies {
        let labelled = !self.itl_ms.is_empty() && self.token_chunks > 0 && self.tokens != self.token_chunks;
        Latencies {
            ttft_ms: statistic(self.ttft_ms.clone()),
            ttft_from_schedule_ms: statistic(self.ttft_from_schedule_ms.clone()),
            e2e_s: statistic(self.e2e_s.clone()),
            e2e_from_schedule_s: statistic(self.e2e_from_schedule_s.clone()),
            tpot_ms: statistic(self.tpot_ms.clone()),
            itl_ms: statistic(self.itl_ms.clone()),
            itl_tokens_per_chunk: labelled.then(|| rounded(self.tokens as f64 / self.token_chunks as f64)),
            decode_tok_per_s: statistic(self.decode_tok_per_s.clone()),
            prompt_tokens: statistic(self.prompt_tokens.clone()),
            cached_prompt_tokens: statistic(self.cached_prompt_tokens.clone()),
            completion_tokens: statistic(self.completion_tokens.clone()),
            schedule_delay_ms: statistic(self.schedule_delay_ms.clone()),
        }
    }
}

/// Adds to each pooled distribution the interval of its mean over the repeats.
fn with_intervals(mut pooled: Latencies, repeats: &[Repeat]) -> Latencies {
    let set = |statistic: &mut Option<Statistic>, of: fn(&Latencies) -> Option<Statistic>| {
        if let Some(statistic) = statistic {
            let means: Vec<f64> = repeats.iter().filter_map(|r| of(&r.latency)).map(|s| s.mean).collect();
            statistic.mean_ci95 = bootstrap(&means);
        }
    };
    set(&mut pooled.ttft_ms, |l| l.ttft_ms);
    set(&mut pooled.ttft_from_schedule_ms, |l| l.ttft_from_schedule_ms);
    set(&mut pooled.e2e_s, |l| l.e2e_s);
    set(&mut pooled.e2e_from_schedule_s, |l| l.e2e_from_schedule_s);
    set(&mut pooled.tpot_ms, |l| l.tpot_ms);
    set(&mut pooled.itl_ms, |l| l.itl_ms);
    set(&mut pooled.decode_tok_per_s, |l| l.decode_tok_per_s);
    set(&mut pooled.prompt_tokens, |l| l.prompt_tokens);
    set(&mut pooled.cached_prompt_tokens, |l| l.cached_prompt_tokens);
    set(&mut pooled.completion_tokens, |l| l.completion_tokens);
    set(&mut pooled.schedule_delay_ms, |l| l.schedule_delay_ms);
    pooled
}

fn over_repeats(repeats: &[Repeat]) -> Rates<Estimate> {
    let over = |of: fn(&Rates<f64>) -> Option<f64>| {
        estimate(&repeats.iter().filter_map(|r| of(&r.rates)).collect::<Vec<f64>>())
    };
    Rates {
        offered_req_per_s: over(|r| r.offered_req_per_s),
        request_throughput_req_per_s: over(|r| r.request_throughput_req_per_s),
        completed_per_offered: over(|r| r.completed_per_offered),
        completed_per_offered_steady: over(|r| r.completed_per_offered_steady),
        drain_tail_s: over(|r| r.drain_tail_s),
        window_s: over(|r| r.window_s),
        output_throughput_tok_per_s: over(|r| r.output_throughput_tok_per_s),
        aggregate_decode_tok_per_s: over(|r| r.aggregate_decode_tok_per_s),
        goodput_req_per_s: over(|r| r.goodput_req_per_s),
        in_flight_first_third: over(|r| r.in_flight_first_third),
        in_flight_last_third: over(|r| r.in_flight_last_third),
    }
}

fn rates(load: &Load, limits: Option<Limits>, measured: &[&RequestRecord]) -> Rates<f64> {
    let done: Vec<&RequestRecord> = measured.iter().copied().filter(|r| r.completed()).collect();
    let completed = done.len() as f64;
    let first_due = measured.iter().map(|r| r.t_sched_ns).min();
    let last_due = measured.iter().map(|r| r.t_sched_ns).max();
    let first_done = done.iter().map(|r| r.t_done_ns).min();
    let last_done = done.iter().map(|r| r.t_done_ns).max();
    let open = matches!(load, Load::Open { .. });

    let window_s = first_due.zip(last_done).and_then(|(from, to)| span(from, to));
    let throughput = window_s.map(|window| completed / window);
    let offered = first_due
        .zip(last_due)
        .filter(|_| open)
        .and_then(|(from, to)| span(from, to))
        .map(|due| (measured.len() - 1) as f64 / due);
    let steady = first_done
        .zip(last_done)
        .and_then(|(from, to)| span(from, to))
        .map(|s| (completed - 1.0) / s);
    let (first_third, last_third) = if open { in_flight(measured) } else { (None, None) };
    let goodput = limits
        .and_then(|limits| good(limits, &done))
        .zip(window_s)
        .map(|(good, window)| good / window);
    let (output, decode) = token_rates(&done);

    Rates {
        offered_req_per_s: offered.map(rounded),
        request_throughput_req_per_s: throughput.map(rounded),
        completed_per_offered: throughput.zip(offered).map(|(t, o)| rounded(t / o)),
        completed_per_offered_steady: steady.zip(offered).map(|(t, o)| rounded(t / o)),
        // Negative when the last requests due all failed: then nothing was left to drain.
        drain_tail_s: last_due
            .zip(last_done)
            .map(|(due, done)| rounded(seconds((done - due).max(0)))),
        window_s: window_s.map(rounded),
        output_throughput_tok_per_s: output.map(rounded),
        aggregate_decode_tok_per_s: decode.map(rounded),
        goodput_req_per_s: goodput.map(rounded),
        in_flight_first_third: first_third.map(rounded),
        in_flight_last_third: last_third.map(rounded),
    }
}

/// Output throughput and aggregate decode speed; `None` when a completed request has no token count, since the sum
/// would be short of its tokens.
fn token_rates(done: &[&RequestRecord]) -> (Option<f64>, Option<f64>) {
    let Some(tokens) = done
        .iter()
        .map(|r| r.completion_tokens.map(u64::from))
        .sum::<Option<u64>>()
    else {
        return (None, None);
    };
    let after_first: u64 = done
        .iter()
        .filter_map(|r| r.completion_tokens)
        .map(|n| u64::from(n.max(1) - 1))
        .sum();
    let last_token = done.iter().filter_map(|r| r.t_last_ns()).max();
    let first_token = done.iter().filter_map(|r| r.t_first_ns()).min();
    let first_send = done.iter().filter_map(|r| r.t_send_ns).min();
    let over = |n: u64, from: Option<i64>| Some(n as f64 / span(from?, last_token?)?);
    (over(tokens, first_send), over(after_first, first_token))
}

/// Completed requests that met the limits; `None` when that cannot be told for some of them.
fn good(limits: Limits, done: &[&RequestRecord]) -> Option<f64> {
    let mut good = 0.0;
    for record in done {
        let mut met = true;
        if let Some(limit) = limits.ttft_ms {
            met &= ttft_ms(record)? <= limit;
        }
        // One token has no time per token after it, and so nothing to exceed.
        if let (Some(limit), true) = (limits.tpot_ms, record.completion_tokens? > 1) {
            met &= tpot_ms(record)? <= limit;
        }
        good += f64::from(u8::from(met));
    }
    Some(good)
}

/// Requests due and not done as each third of the arrivals sees them.
fn in_flight(measured: &[&RequestRecord]) -> (Option<f64>, Option<f64>) {
    let third = measured.len() / 3;
    if third == 0 {
        return (None, None);
    }
    let mut due: Vec<i64> = measured.iter().map(|r| r.t_sched_ns).collect();
    let mut done: Vec<i64> = measured.iter().map(|r| r.t_done_ns).collect();
    due.sort_unstable();
    done.sort_unstable();
    let at = |i: usize| (i + 1).saturating_sub(done.partition_point(|t| *t <= due[i])) as f64;
    let mean = |range: std::ops::Range<usize>| range.map(at).sum::<f64>() / third as f64;
    (Some(mean(0..third)), Some(mean(measured.len() - third..measured.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::{Chunk, ChunkKind};

    const MS: i64 = 1_000_000;

    /// Due, sent, arrivals of tokens, done; all in ms. As many tokens as arrivals.
    fn request(request: u32, due: i64, sent: i64, tokens: &[i64], done: i64) -> RequestRecord {
        RequestRecord {
            point: 0,
            repeat: 0,
            warmup: false,
            request,
            model: "m".into(),
            t_sched_ns: due * MS,
            t_send_ns: Some(sent * MS),
            t_done_ns: done * MS,
            max_tokens: None,
            prompt_tokens: Some(10),
            cached_tokens: None,
            completion_tokens: Some(tokens.len() as u32),
            finish_reason: Some("length".into()),
            outcome: Outcome::Completed,
            chunks: tokens
                .iter()
                .map(|t| Chunk {
                    t_ns: t * MS,
                    kind: ChunkKind::Text,
                    chars: 1,
                })
                .collect(),
        }
    }

    fn failed(request_: u32, due: i64, done: i64) -> RequestRecord {
        let outcome = Outcome::Failed {
            kind: "timeout".into(),
            error: String::new(),
        };
        RequestRecord {
            outcome,
            completion_tokens: None,
            ..request(request_, due, due, &[], done)
        }
    }

    fn open_point(limits: Option<Limits>, records: &[RequestRecord]) -> Point {
        let load = Load::Open {
            arrivals: "constant".parse().unwrap(),
            rate_req_per_s: Some(1.0),
        };
        let plan = PointPlan {
            load,
            requests: records.len() as u64,
            warmup: 0,
            seeds: vec![1],
        };
        point(&plan, limits, records)
    }

    /// Two requests, worked out by hand from the table of definitions.
    fn two() -> Vec<RequestRecord> {
        vec![
            request(0, 0, 2, &[102, 202, 402], 500),
            request(1, 1000, 1004, &[1104, 1204], 1500),
        ]
    }

    #[test]
    fn latencies_are_as_defined() {
        let l = open_point(None, &two()).latency;
        let mean = |s: Option<Statistic>| s.unwrap().mean;
        // From the send 100 and 100, from the schedule 102 and 104.
        assert_eq!((mean(l.ttft_ms), mean(l.ttft_from_schedule_ms)), (100.0, 103.0));
        // From the send 0.498 and 0.496, from the schedule 0.5 and 0.5.
        assert_eq!((mean(l.e2e_s), mean(l.e2e_from_schedule_s)), (0.497, 0.5));
        // (402 − 102)/2 = 150 and (1204 − 1104)/1 = 100.
        assert_eq!(mean(l.tpot_ms), 125.0);
        // 100, 200 and 100.
        assert_eq!((l.itl_ms.unwrap().n, l.itl_ms.unwrap().max), (3, 200.0));
        // 2/0.3 and 1/0.1.
        assert_eq!(mean(l.decode_tok_per_s), rounded((2.0 / 0.3 + 10.0) / 2.0));
        assert_eq!((mean(l.completion_tokens), mean(l.schedule_delay_ms)), (2.5, 3.0));
        assert_eq!((l.itl_tokens_per_chunk, l.cached_prompt_tokens), (None, None));
    }

    #[test]
    fn rates_are_as_defined() {
        let r = open_point(None, &two()).repeats[0].rates.clone();
        // One gap of one second; two completed in 1.5 s; the last is due at 1.0 s.
        assert_eq!(
            (r.offered_req_per_s, r.window_s, r.drain_tail_s),
            (Some(1.0), Some(1.5), Some(0.5))
        );
        assert_eq!(r.request_throughput_req_per_s, Some(rounded(2.0 / 1.5)));
        assert_eq!(r.completed_per_offered, Some(rounded(2.0 / 1.5)));
        // One completion after the first, in 1.0 s.
        assert_eq!(r.completed_per_offered_steady, Some(1.0));
        // Five tokens from the first send (2 ms) to the last token (1204 ms); three of them not first ones.
        assert_eq!(r.output_throughput_tok_per_s, Some(rounded(5.0 / 1.202)));
        assert_eq!(r.aggregate_decode_tok_per_s, Some(rounded(3.0 / 1.102)));
        assert_eq!(r.goodput_req_per_s, None);
    }

    #[test]
    fn goodput_counts_what_met_every_stated_limit() {
        let goodput = |ttft_ms, tpot_ms| {
            let limits = Some(Limits { ttft_ms, tpot_ms });
            open_point(limits, &two()).repeats[0].rates.goodput_req_per_s
        };
        assert_eq!(goodput(Some(100.0), None), Some(rounded(2.0 / 1.5)));
        assert_eq!(goodput(Some(100.0), Some(120.0)), Some(rounded(1.0 / 1.5)));
        assert_eq!(goodput(Some(99.0), Some(120.0)), Some(0.0));
    }

    #[test]
    fn a_failed_request_is_counted_and_otherwise_absent() {
        let mut records = two();
        records.push(failed(2, 1200, 9000));
        let point = open_point(None, &records);
        assert_eq!((point.counts.completed, point.counts.failed), (2, 1));
        assert_eq!(point.latency.e2e_s, open_point(None, &two()).latency.e2e_s);
        // Its due time belongs to what was offered, its end to nothing.
        let rates = &point.repeats[0].rates;
        assert_eq!(
            (rates.offered_req_per_s, rates.window_s),
            (Some(rounded(2.0 / 1.2)), Some(1.5))
        );
        assert_eq!(rates.drain_tail_s, Some(0.3));
    }

    #[test]
    fn when_all_fail_there_are_counts_and_no_figures() {
        let point = open_point(None, &[failed(0, 0, 10), failed(1, 100, 110)]);
        assert_eq!(point.counts.failures, [("timeout".to_owned(), 2)].into());
        let only_delay = Latencies {
            schedule_delay_ms: point.latency.schedule_delay_ms,
            ..Latencies::default()
        };
        assert_eq!(point.latency, only_delay);
        let r = &point.repeats[0].rates;
        assert_eq!(
            (r.request_throughput_req_per_s, r.window_s, r.drain_tail_s),
            (None, None, None)
        );
    }

    #[test]
    fn a_late_client_makes_its_point_invalid() {
        let point = open_point(None, &[request(0, 0, 11, &[20], 30)]);
        assert!(!point.valid && !point.repeats[0].valid);
        assert_eq!(
            point.invalid,
            ["repeat 1: the p99 of the schedule delay is 11 ms, above 10 ms: the client sent late"]
        );
        assert!(open_point(None, &[request(0, 0, 10, &[20], 30)]).valid);
    }

    #[test]
    fn a_missing_token_count_takes_the_sums_away_but_not_the_others() {
        let mut records = two();
        records[1].completion_tokens = None;
        let point = open_point(None, &records);
        assert_eq!(point.counts.without_usage, 1);
        let r = &point.repeats[0].rates;
        assert_eq!(
            (r.output_throughput_tok_per_s, r.aggregate_decode_tok_per_s),
            (None, None)
        );
        assert_eq!(
            (point.latency.tpot_ms.unwrap().n, point.latency.ttft_ms.unwrap().n),
            (1, 2)
        );
    }

    #[test]
    fn one_token_has_no_time_per_token() {
        let l = open_point(None, &[request(0, 0, 0, &[10], 20)]).latency;
        assert_eq!((l.tpot_ms, l.itl_ms, l.decode_tok_per_s), (None, None, None));
        assert!(l.ttft_ms.is_some());
    }

    #[test]
    fn requests_in_flight_are_counted_at_each_arrival() {
        // Answers take 25 ms, one due every 10 ms: 1, 2, 3, 3, 3, 3.
        let records: Vec<_> = (0..6)
            .map(|i: u32| i64::from(i) * 10)
            .zip(0..)
            .map(|(due, i)| request(i, due, due, &[due + 20], due + 25))
            .collect();
        let r = &open_point(None, &records).repeats[0].rates;
        assert_eq!(
            (r.in_flight_first_third, r.in_flight_last_third),
            (Some(1.5), Some(3.0))
        );
    }
}
