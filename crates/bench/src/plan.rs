//! The plan of a repeat: every request with its time, model, prompt and length, fixed by one seed before any is sent.

use rand::{RngCore as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::arrival::Arrivals;
use crate::bundle::{Load, Model};
use crate::choice::{Choice, Chooser};
use crate::lengths::Lengths;
use crate::prompts::{Prompt, TokensOfWords, synthetic};
use crate::workload::Workload;

/// One request, ready to be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedRequest {
    /// When it is due, seconds from the start of the repeat; open loop only.
    pub due_s: Option<f64>,
    /// Model to ask.
    pub model: String,
    /// What to ask.
    pub prompt: Prompt,
    /// Completion tokens before the answer may end.
    pub min_tokens: Option<u32>,
    /// Completion tokens at most.
    pub max_tokens: Option<u32>,
    /// Whether to ask the server to go on past the end-of-sequence token.
    pub ignore_eos: bool,
}

/// What plans are drawn from.
#[derive(Debug, Clone)]
pub enum Source {
    /// Prompts, lengths and models are drawn.
    Synthetic {
        /// How models are chosen.
        choice: Choice,
        /// The models, with their weights where the choice needs them.
        models: Vec<Model>,
        /// Prompt tokens.
        input: Lengths,
        /// Completion tokens.
        output: Lengths,
        /// Whether to ask the server to go on past the end-of-sequence token.
        ignore_eos: bool,
        /// How the server counts.
        tokens: TokensOfWords,
    },
    /// A file brings them.
    File {
        /// The file, its models renamed.
        workload: Workload,
        /// Model of the requests that name none.
        default_model: String,
    },
}

/// The random streams of a repeat. They are separate, so that one more draw in one leaves the others as they were.
#[derive(Debug, Clone, Copy)]
enum Stream {
    Schedule = 0,
    Models = 1,
    Lengths = 2,
    Prompts = 3,
}

fn rng(seed: u64, stream: Stream) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream as u64);
    rng
}

/// The seed of a repeat, from the run's. It fits in the 53 bits that every JSON reader keeps.
pub fn repeat_seed(seed: u64, point: u32, repeat: u32) -> u64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream((u64::from(point) << 32) | u64::from(repeat));
    rng.next_u64() >> 11
}

/// Plans `count` requests for `load`. `number` is that of the first request within the run: prompts of different
/// numbers differ. A file gives at most as many requests as it has.
pub fn plan(source: &Source, load: &Load, seed: u64, count: usize, number: u64) -> Vec<PlannedRequest> {
    let mut requests = match source {
        Source::Synthetic {
            choice,
            models,
            input,
            output,
            ignore_eos,
            tokens,
        } => {
            let weights: Vec<f64> = models.iter().map(|m| m.weight.unwrap_or(1.0)).collect();
            let Some(mut chooser) = Chooser::new(*choice, &weights) else {
                return Vec::new();
            };
            let (mut of_models, mut of_lengths, mut of_prompts) = (
                rng(seed, Stream::Models),
                rng(seed, Stream::Lengths),
                rng(seed, Stream::Prompts),
            );
            (0..count as u64)
                .map(|i| {
                    let words = tokens.words(input.draw(&mut of_lengths));
                    let length = output.draw(&mut of_lengths);
                    PlannedRequest {
                        due_s: None,
                        model: models[chooser.next(&mut of_models)].name.clone(),
                        prompt: synthetic(number + i, words, &mut of_prompts),
                        min_tokens: ignore_eos.then_some(length),
                        max_tokens: Some(length),
                        ignore_eos: *ignore_eos,
                    }
                })
                .collect::<Vec<_>>()
        }
        Source::File {
            workload,
            default_model,
        } => workload
            .requests
            .iter()
            .take(count)
            .map(|r| PlannedRequest {
                due_s: None,
                model: r.model.clone().unwrap_or_else(|| default_model.clone()),
                prompt: r.prompt.clone(),
                min_tokens: r.min_tokens,
                max_tokens: r.max_tokens,
                ignore_eos: r.ignore_eos,
            })
            .collect(),
    };
    for (request, due) in requests.iter_mut().zip(due_times(source, load, seed, count)) {
        request.due_s = Some(due);
    }
    requests
}

fn due_times(source: &Source, load: &Load, seed: u64, count: usize) -> Vec<f64> {
    match (load, source) {
        (
            Load::Open {
                arrivals: Arrivals::Trace,
                ..
            },
            Source::File { workload, .. },
        ) => workload.requests.iter().take(count).map(|r| r.timestamp_s).collect(),
        (
            Load::Open {
                arrivals,
                rate_req_per_s: Some(rate),
            },
            _,
        ) => arrivals.times(*rate, count, &mut rng(seed, Stream::Schedule)),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> Source {
        let model = |name: &str| Model {
            name: name.into(),
            parent: None,
            digest: None,
            weight: None,
            bytes: None,
        };
        Source::Synthetic {
            choice: Choice::Uniform,
            models: vec![model("a"), model("b")],
            input: Lengths::Uniform(5, 50),
            output: Lengths::Uniform(1, 9),
            ignore_eos: true,
            tokens: TokensOfWords::default(),
        }
    }

    fn open(rate: f64) -> Load {
        Load::Open {
            arrivals: Arrivals::Poisson,
            rate_req_per_s: Some(rate),
        }
    }

    #[test]
    fn one_seed_fixes_schedule_lengths_models_and_prompts() {
        let draw = |seed| plan(&source(), &open(2.0), seed, 50, 0);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn another_rate_leaves_the_requests_as_they_were() {
        let without_times = |rate| {
            let mut plan = plan(&source(), &open(rate), 1, 50, 0);
            plan.iter_mut().for_each(|r| r.due_s = None);
            plan
        };
        assert_eq!(without_times(1.0), without_times(9.0));
    }

    #[test]
    fn repeats_have_seeds_of_their_own() {
        let seeds: std::collections::HashSet<u64> =
            (0..4).flat_map(|p| (0..4).map(move |r| repeat_seed(0, p, r))).collect();
        assert_eq!(seeds.len(), 16);
        assert!(seeds.iter().all(|s| *s < 1 << 53));
    }

    #[test]
    fn a_closed_loop_has_no_times() {
        let plan = plan(&source(), &Load::Closed { concurrency: 4 }, 1, 5, 0);
        assert!(plan.len() == 5 && plan.iter().all(|r| r.due_s.is_none()));
    }
}
