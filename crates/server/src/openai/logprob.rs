//! Log-probabilities as JSON can hold them.

/// What OpenAI and others write for a probability of zero, whose logarithm JSON has no number for.
const LEAST: f32 = -9999.0;

/// The number that is written.
pub fn written(logprob: f32) -> f32 {
    logprob.max(LEAST)
}
