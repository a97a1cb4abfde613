//! How the next token is chosen from the logits.
//!
//! Order: logit bias, forbidden ends, repetition, frequency and presence penalties, temperature, min-p, top-k, top-p.
//! The random number of a position depends on the request's seed and the position only, so a completion does not
//! depend on what else ran beside it. Equal logits are ordered by id, lowest first.

use std::collections::HashMap;

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::request::{SamplingParams, SubmitError};

/// Log-probabilities that one position may ask for at most.
pub(crate) const MAX_LOGPROBS: usize = 50;

/// A request's sampling state.
#[derive(Debug)]
pub(crate) struct Sampler {
    params: SamplingParams,
    seed: u64,
    /// How often each token is in the completion so far.
    generated: HashMap<u32, u32>,
    /// Tokens of the prompt, kept only for the repetition penalty.
    prompt: Vec<u32>,
}

/// A chosen token.
#[derive(Debug, PartialEq)]
pub(crate) struct Choice {
    /// Its id.
    pub(crate) id: u32,
    /// Log-probabilities of it and of the most likely tokens, if wanted.
    pub(crate) logprobs: Option<RawLogProbs>,
}

/// Log-probabilities by id.
#[derive(Debug, PartialEq)]
pub(crate) struct RawLogProbs {
    /// Of the chosen token.
    pub(crate) chosen: f32,
    /// The most likely ones, most likely first.
    pub(crate) top: Vec<(u32, f32)>,
}

/// Refuses parameters that are out of range.
pub(crate) fn check(params: &SamplingParams) -> Result<(), SubmitError> {
    fn range(field: &'static str, value: f32, ok: bool, allowed: &str) -> Result<(), SubmitError> {
        if ok {
            return Ok(());
        }
        Err(SubmitError::Invalid {
            field,
            what: format!("{value} is out of range; it must be {allowed}"),
        })
    }
    let p = params;
    range(
        "temperature",
        p.temperature,
        (0.0..=100.0).contains(&p.temperature),
        "between 0 and 100",
    )?;
    range(
        "top_p",
        p.top_p,
        p.top_p > 0.0 && p.top_p <= 1.0,
        "above 0 and at most 1",
    )?;
    range("min_p", p.min_p, (0.0..=1.0).contains(&p.min_p), "between 0 and 1")?;
    for (field, value) in [
        ("presence_penalty", p.presence_penalty),
        ("frequency_penalty", p.frequency_penalty),
    ] {
        range(field, value, (-2.0..=2.0).contains(&value), "between -2 and 2")?;
    }
    let r = p.repetition_penalty;
    range("repetition_penalty", r, r > 0.0 && r.is_finite(), "above 0")?;
    if let Some((id, bias)) = p.logit_bias.iter().find(|(_, bias)| !(-100.0..=100.0).contains(*bias)) {
        return Err(SubmitError::Invalid {
            field: "logit_bias",
            what: format!("{bias} for token {id} is out of range; it must be between -100 and 100"),
        });
    }
    if let Some(n) = p.logprobs.filter(|&n| n > MAX_LOGPROBS) {
        return Err(SubmitError::Invalid {
            field: "logprobs",
            what: format!("{n} is out of range; at most {MAX_LOGPROBS} are given"),
        });
    }
    Ok(())
}

impl Sampler {
    /// The state of a request that starts. `seed` is used when the parameters give none.
    pub(crate) fn new(params: SamplingParams, prompt: &[u32], seed: u64) -> Self {
        let prompt = if params.repetition_penalty == 1.0 {
            Vec::new()
        } else {
            prompt.to_vec()
        };
        Self {
            seed: params.seed.unwrap_or(seed),
            params,
            generated: HashMap::new(),
            prompt,
        }
    }

    /// Chooses the token at `position` of the completion. `forbidden` ids cannot be chosen. `None` when no logit is a
    /// number.
    pub(crate) fn choose(&mut self, logits: &[f32], position: usize, forbidden: &[u32]) -> Option<Choice> {
        let mut adjusted;
        let scores = if self.is_plain() && forbidden.is_empty() {
            logits
        } else {
            adjusted = logits.to_vec();
            self.adjust(&mut adjusted, forbidden);
            &adjusted
        };
        let id = if self.params.temperature == 0.0 {
            argmax(scores)?
        } else {
            self.draw(scores, position)?
        };
        *self.generated.entry(id).or_default() += 1;
        let logprobs = self.params.logprobs.map(|n| log_probabilities(logits, id, n));
        Some(Choice { id, logprobs })
    }

    fn is_plain(&self) -> bool {
        let p = &self.params;
        p.logit_bias.is_empty()
            && p.repetition_penalty == 1.0
            && p.presence_penalty == 0.0
            && p.frequency_penalty == 0.0
    }

    fn adjust(&self, scores: &mut [f32], forbidden: &[u32]) {
        let p = &self.params;
        for (&id, &bias) in &p.logit_bias {
            if let Some(score) = scores.get_mut(id as usize) {
                *score += bias;
            }
        }
        for &id in forbidden {
            if let Some(score) = scores.get_mut(id as usize) {
                *score = f32::NEG_INFINITY;
            }
        }
        if p.repetition_penalty != 1.0 {
            let mut seen: Vec<u32> = self.prompt.iter().chain(self.generated.keys()).copied().collect();
            seen.sort_unstable();
            seen.dedup();
            for id in seen {
                if let Some(score) = scores.get_mut(id as usize) {
                    *score = if *score > 0.0 {
                        *score / p.repetition_penalty
                    } else {
                        *score * p.repetition_penalty
                    };
                }
            }
        }
        for (&id, &count) in &self.generated {
            if let Some(score) = scores.get_mut(id as usize) {
                *score -= p.frequency_penalty * count as f32 + p.presence_penalty;
            }
        }
    }

    /// Inverse of the cumulative distribution at this position's random number, tokens most likely first.
    fn draw(&self, scores: &[f32], position: usize) -> Option<u32> {
        let p = &self.params;
        let best = scores[argmax(scores)? as usize];
        let inverse = 1.0 / f64::from(p.temperature);
        let weight = |score: f32| {
            // The best token always has weight 1, whatever its score.
            if score == best {
                1.0
            } else {
                ((f64::from(score) - f64::from(best)) * inverse).exp()
            }
        };
        let mut kept: Vec<(f32, u32)> = scores
            .iter()
            .zip(0u32..)
            .filter(|&(&score, _)| {
                let w = weight(score);
                w > 0.0 && w >= f64::from(p.min_p)
            })
            .map(|(&score, id)| (score, id))
            .collect();
        if p.top_k > 0 || p.top_p < 1.0 {
            kept.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        }
        if p.top_k > 0 {
            kept.truncate(p.top_k as usize);
        }
        let weights: Vec<f64> = kept.iter().map(|&(score, _)| weight(score)).collect();
        let mut total: f64 = weights.iter().sum();
        if p.top_p < 1.0 {
            let nucleus = total * f64::from(p.top_p);
            let mut sum = 0.0;
            let size = weights
                .iter()
                .take_while(|&&w| {
                    let open = sum < nucleus;
                    sum += w;
                    open
                })
                .count();
            kept.truncate(size);
            total = weights[..size].iter().sum();
        }
        let target = self.uniform(position) * total;
        let mut sum = 0.0;
        for (&(_, id), w) in kept.iter().zip(&weights) {
            sum += w;
            if target < sum {
                return Some(id);
            }
        }
        kept.last().map(|&(_, id)| id)
    }

    /// The random number in [0, 1) of a position.
    fn uniform(&self, position: usize) -> f64 {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(position as u64);
        rng.random()
    }
}

/// The highest score, the lowest id among equals; NaN never wins. `None` when there is none above −∞.
fn argmax(scores: &[f32]) -> Option<u32> {
    let mut best: Option<(f32, u32)> = None;
    for (&score, id) in scores.iter().zip(0u32..) {
        if score > best.map_or(f32::NEG_INFINITY, |(highest, _)| highest) {
            best = Some((score, id));
        }
    }
    best.map(|(_, id)| id)
}

/// Log-softmax of the raw logits, summed in f64 in id order.
fn log_probabilities(logits: &[f32], id: u32, n: usize) -> RawLogProbs {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .filter(|l| !l.is_nan())
        .map(|&l| (f64::from(l) - f64::from(highest)).exp())
        .sum();
    let normaliser = f64::from(highest) + sum.ln();
    let logprob = |id: u32| (f64::from(logits[id as usize]) - normaliser) as f32;
    let order = |a: &u32, b: &u32| {
        let (x, y) = (logits[*a as usize], logits[*b as usize]);
        y.total_cmp(&x).then(a.cmp(b))
    };
    let mut ids: Vec<u32> = (0u32..)
        .zip(logits)
        .filter(|(_, l)| !l.is_nan())
        .map(|(id, _)| id)
        .collect();
    if n < ids.len() {
        ids.select_nth_unstable_by(n, order);
        ids.truncate(n);
    }
    ids.sort_unstable_by(order);
    RawLogProbs {
        chosen: logprob(id),
        top: ids.into_iter().map(|id| (id, logprob(id))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(params: SamplingParams) -> Sampler {
        Sampler::new(params, &[3], 7)
    }

    fn ids(sampler: &mut Sampler, logits: &[f32], n: usize) -> Vec<u32> {
        (0..n)
            .filter_map(|i| sampler.choose(logits, i, &[]))
            .map(|c| c.id)
            .collect()
    }

    #[test]
    fn greedy_takes_the_highest_and_the_lowest_id_among_equals() {
        let mut s = sampler(SamplingParams::default());
        assert_eq!(ids(&mut s, &[0.0, 2.0, f32::NAN, 2.0], 1), [1]);
        assert_eq!(s.choose(&[f32::NAN, f32::NAN], 0, &[]), None);
    }

    #[test]
    fn forbidden_ids_are_not_chosen() {
        let mut s = sampler(SamplingParams::default());
        assert_eq!(s.choose(&[0.0, 2.0, 1.0], 0, &[1]).map(|c| c.id), Some(2));
    }

    #[test]
    fn a_seed_gives_the_same_tokens_again_and_positions_differ() {
        let params = SamplingParams {
            temperature: 1.0,
            seed: Some(42),
            ..SamplingParams::default()
        };
        let logits = [0.0; 64];
        let first = ids(&mut sampler(params.clone()), &logits, 20);
        assert_eq!(first, ids(&mut sampler(params.clone()), &logits, 20));
        let distinct: std::collections::HashSet<u32> = first.iter().copied().collect();
        assert!(distinct.len() > 5, "{first:?}");
        let other = SamplingParams {
            seed: Some(43),
            ..params
        };
        assert_ne!(first, ids(&mut sampler(other), &logits, 20));
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let params = SamplingParams {
            temperature: 0.5,
            ..SamplingParams::default()
        };
        // At temperature 0.5 the odds are e^(2·ln 2) = 4 to 1.
        let chosen = ids(&mut sampler(params), &[std::f32::consts::LN_2, 0.0], 20_000);
        let share = chosen.iter().filter(|&&id| id == 0).count() as f64 / 20_000.0;
        assert!((share - 0.8).abs() < 0.015, "{share}");
    }

    #[test]
    fn filters_keep_what_they_should() {
        // Probabilities 0.5, 0.25, 0.125, 0.125.
        let logits: Vec<f32> = [0.125f32, 0.5, 0.25, 0.125].iter().map(|p| p.ln()).collect();
        let support = |params: SamplingParams| {
            let params = SamplingParams {
                temperature: 1.0,
                ..params
            };
            let mut seen = ids(&mut sampler(params), &logits, 300);
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        let default = SamplingParams::default;
        assert_eq!(support(default()), [0, 1, 2, 3]);
        assert_eq!(
            support(SamplingParams { top_k: 3, ..default() }),
            [0, 1, 2],
            "of equals the lowest id stays"
        );
        assert_eq!(
            support(SamplingParams {
                top_p: 0.5,
                ..default()
            }),
            [1]
        );
        assert_eq!(
            support(SamplingParams {
                top_p: 0.6,
                ..default()
            }),
            [1, 2]
        );
        assert_eq!(
            support(SamplingParams {
                min_p: 0.4,
                ..default()
            }),
            [1, 2]
        );
    }

    #[test]
    fn penalties_and_bias_move_the_logits() {
        let base = SamplingParams::default;
        let mut s = sampler(SamplingParams {
            frequency_penalty: 0.6,
            ..base()
        });
        assert_eq!(
            ids(&mut s, &[1.0, 0.0], 4),
            [0, 0, 1, 0],
            "1.0, 0.4, -0.2 against 0, then -0.6"
        );
        let mut s = sampler(SamplingParams {
            presence_penalty: 1.5,
            ..base()
        });
        assert_eq!(
            ids(&mut s, &[1.0, 0.0], 3),
            [0, 1, 0],
            "once seen is seen; 0 has -0.5, 1 has -1.5"
        );
        let mut s = sampler(SamplingParams {
            repetition_penalty: 4.0,
            ..base()
        });
        assert_eq!(
            ids(&mut s, &[0.0, 0.0, 1.0, 2.0], 1),
            [2],
            "token 3 is in the prompt: 2.0 / 4"
        );
        let bias = HashMap::from([(0u32, -100.0f32), (99, 5.0)]);
        let mut s = sampler(SamplingParams {
            logit_bias: bias,
            ..base()
        });
        assert_eq!(ids(&mut s, &[1.0, 0.0], 1), [1]);
    }

    #[test]
    fn log_probabilities_are_of_the_raw_logits() {
        let logits: Vec<f32> = [0.125f32, 0.5, 0.25, 0.125].iter().map(|p| p.ln()).collect();
        let mut s = sampler(SamplingParams {
            logprobs: Some(2),
            temperature: 0.1,
            logit_bias: HashMap::from([(0, 100.0)]),
            ..SamplingParams::default()
        });
        let choice = s.choose(&logits, 0, &[]).expect("finite");
        assert_eq!(choice.id, 0);
        let logprobs = choice.logprobs.expect("wanted");
        assert!((logprobs.chosen - 0.125f32.ln()).abs() < 1e-6);
        assert_eq!(logprobs.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2]);
        assert!((logprobs.top[0].1 - 0.5f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        let bad = SamplingParams {
            top_p: 0.0,
            ..SamplingParams::default()
        };
        assert!(matches!(check(&bad), Err(SubmitError::Invalid { field: "top_p", .. })));
        let bad = SamplingParams {
            temperature: f32::NAN,
            ..SamplingParams::default()
        };
        assert!(matches!(
            check(&bad),
            Err(SubmitError::Invalid {
                field: "temperature",
                ..
            })
        ));
        assert_eq!(check(&SamplingParams::default()), Ok(()));
    }
}
