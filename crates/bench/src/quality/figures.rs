//! From answers to quality figures. Pure: what `bench verify` recomputes is what was computed when the run ended.

use crate::bundle::{AnswerRecord, Divergence, DivergenceSums, Proportion, Quality, Reference, RequestRecord, Score};
use crate::stats::rounded;

/// Quantile of the normal distribution for a two-sided 95 % interval.
const Z: f64 = 1.959_963_984_540_054;

/// What a score is of, before any answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ScorePlan {
    /// The model.
    pub model: String,
    /// The file of tasks, by its place.
    pub tasks: u32,
    /// Precision of the base.
    pub precision: Option<String>,
    /// The full fine-tune that the model is compared with.
    pub reference: Option<Reference>,
    /// Why it is compared with none.
    pub divergence_absent: Option<String>,
}

impl ScorePlan {
    /// The part of a score that no answer decides.
    pub fn of(score: &Score) -> Self {
        Self {
            model: score.model.clone(),
            tasks: score.tasks,
            precision: score.precision.clone(),
            reference: score.divergence.as_ref().map(|d| d.reference.clone()),
            divergence_absent: score.divergence_absent.clone(),
        }
    }
}

/// The score of a point from its requests and answers.
pub fn score(plan: ScorePlan, records: &[&RequestRecord], answers: &[&AnswerRecord]) -> Score {
    let answered = records.iter().filter(|r| r.completed()).count() as u64;
    let correct = answers.iter().filter(|a| a.matches == Some(true)).count() as u64;
    let cut = |r: &&&RequestRecord| r.completed() && r.finish_reason.as_deref() == Some("length");
    let exact_match = proportion(correct, answered);
    let tokens = answers
        .iter()
        .filter(|a| a.answer.is_some())
        .map(|a| a.completion_tokens.map(u64::from))
        .sum::<Option<u64>>();
    let first = records.iter().map(|r| r.t_sched_ns).min();
    let last = records.iter().map(|r| r.t_done_ns).max();
    let sums: Vec<DivergenceSums> = answers.iter().filter_map(|a| a.divergence).collect();
    let divergence = plan.reference.and_then(|reference| divergence(reference, &sums));
    Score {
        model: plan.model,
        tasks: plan.tasks,
        precision: plan.precision,
        items: records.len() as u64,
        answered,
        correct,
        failed: records.len() as u64 - answered,
        cut: records.iter().filter(cut).count() as u64,
        exact_match_absent: exact_match.is_none().then(|| "no request was answered".to_owned()),
        exact_match,
        completion_tokens: tokens.filter(|_| answered > 0),
        duration_s: first
            .zip(last)
            .filter(|(first, last)| last > first)
            .map(|(first, last)| rounded((last - first) as f64 / 1e9)),
        divergence_absent: plan.divergence_absent.filter(|_| divergence.is_none()),
        divergence,
    }
}

/// The same figures again, from a run's own statement of what they are of.
pub fn again(stated: &Quality, records: &[RequestRecord], answers: &[AnswerRecord]) -> Quality {
    let scores = (0u32..).zip(&stated.scores).map(|(point, stated)| {
        let records: Vec<_> = records.iter().filter(|r| r.point == point).collect();
        let answers: Vec<_> = answers.iter().filter(|a| a.point == point).collect();
        score(ScorePlan::of(stated), &records, &answers)
    });
    Quality {
        scores: scores.collect(),
        ..stated.clone()
    }
}

/// `k` of `n` with its 95 % Wilson score interval; `None` without cases.
pub fn proportion(k: u64, n: u64) -> Option<Proportion> {
    if n == 0 || k > n {
        return None;
    }
    let (share, n) = (k as f64 / n as f64, n as f64);
    let (z2, scale) = (Z * Z, 1.0 + Z * Z / n);
    let middle = (share + z2 / (2.0 * n)) / scale;
    let half = Z / scale * (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt();
    // At 0 and n of n the interval ends there exactly; rounding must not leave it a little beyond.
    Some(Proportion {
        share: rounded(share),
        low: rounded(if k == 0 { 0.0 } else { (middle - half).max(0.0) }),
        high: rounded(if share >= 1.0 { 1.0 } else { (middle + half).min(1.0) }),
    })
}

/// Means over the tokens of all items; `None` without tokens.
fn divergence(reference: Reference, sums: &[DivergenceSums]) -> Option<Divergence> {
    let positions: u64 = sums.iter().map(|s| s.positions).sum();
    let over = |of: fn(&DivergenceSums) -> f64| sums.iter().map(of).sum::<f64>() / positions as f64;
    (positions > 0).then(|| Divergence {
        reference,
        items: sums.len() as u64,
        positions,
        mean_kl_nats: rounded(over(|s| s.kl_nats)),
        top1_agreement: rounded(over(|s| s.same as f64)),
        perplexity: rounded(over(|s| s.loss_nats).exp()),
        reference_perplexity: rounded(over(|s| s.reference_loss_nats).exp()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_its_wilson_interval() {
        // Its ends are where the share that was seen lies z standard deviations from the true one.
        for (k, n) in [(186u64, 200u64), (1, 2), (3, 9), (0, 10), (10, 10)] {
            let found = proportion(k, n).unwrap();
            for end in [found.low, found.high] {
                let (seen, variance) = (k as f64 / n as f64, end * (1.0 - end) / n as f64);
                assert!(
                    ((seen - end).powi(2) - Z * Z * variance).abs() < 1e-9,
                    "{k} of {n}: {found:?}"
                );
            }
            assert!(found.low <= found.share && found.share <= found.high);
        }
        assert_eq!(
            (proportion(0, 10).unwrap().low, proportion(10, 10).unwrap().high),
            (0.0, 1.0)
        );
        assert_eq!((proportion(0, 0), proportion(3, 2)), (None, None));
    }

    #[test]
    fn means_are_over_tokens_not_over_items() {
        let sums = |positions, kl_nats, same, loss_nats| DivergenceSums {
            positions,
            kl_nats,
            same,
            loss_nats,
            reference_loss_nats: 0.0,
        };
        let reference = Reference {
            name: "full".into(),
            digest: "d".into(),
        };
        let found = divergence(reference.clone(), &[sums(1, 0.5, 1, 2.0), sums(3, 0.5, 0, 2.0)]).unwrap();
        assert_eq!((found.items, found.positions), (2, 4));
        assert_eq!((found.mean_kl_nats, found.top1_agreement), (0.25, 0.25));
        assert_eq!(
            (found.perplexity, found.reference_perplexity),
            (rounded(1f64.exp()), 1.0)
        );
        assert_eq!(divergence(reference, &[]), None);
    }
}
