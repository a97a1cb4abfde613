//! Random numbers that depend on the seed and on what they are for, and on nothing else.

use half::bf16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use rand_distr::{Distribution as _, StandardNormal};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

/// Elements that one stream fills.
const BLOCK: usize = 1 << 18;

/// The streams of one purpose.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    key: [u8; 32],
}

impl Streams {
    /// Streams for `purpose`, independent of those of any other purpose or seed.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"deltamux synth\0");
        hash.update(seed.to_le_bytes());
        hash.update(purpose);
        Self {
            key: hash.finalize().into(),
        }
    }

    /// The stream of that index.
    pub fn stream(&self, index: u64) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::from_seed(self.key);
        rng.set_stream(index);
        rng
    }

    /// Elements `from .. from + count` of an endless Gaussian sequence, as bf16 bytes. `from` is a multiple of the
    /// block that one stream fills, so that the sequence is the same however it is cut and for any number of threads.
    pub fn gaussian_bf16(&self, from: usize, count: usize, mean: f32, deviation: f32) -> Vec<u8> {
        assert!(from.is_multiple_of(BLOCK), "parts begin at blocks");
        let mut bytes = vec![0; 2 * count];
        bytes.par_chunks_mut(2 * BLOCK).enumerate().for_each(|(i, block)| {
            let mut rng = self.stream((from / BLOCK + i) as u64);
            for element in block.as_chunks_mut::<2>().0 {
                *element = bf16::from_f32(mean + deviation * gaussian(&mut rng)).to_le_bytes();
            }
        });
        bytes
    }
}

/// A standard normal deviate.
pub(super) fn gaussian(rng: &mut ChaCha8Rng) -> f32 {
    StandardNormal.sample(rng)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_is_the_same_however_it_is_cut() {
        let streams = Streams::new(1, "a");
        let whole = streams.gaussian_bf16(0, BLOCK + 100, 0.0, 1.0);
        let mut parts = streams.gaussian_bf16(0, BLOCK, 0.0, 1.0);
        parts.extend(streams.gaussian_bf16(BLOCK, 100, 0.0, 1.0));
        assert!(whole == parts);
        assert!(whole != Streams::new(2, "a").gaussian_bf16(0, BLOCK + 100, 0.0, 1.0));
        assert!(whole != Streams::new(1, "b").gaussian_bf16(0, BLOCK + 100, 0.0, 1.0));
    }

    #[test]
    fn mean_and_deviation_are_as_asked_for() {
        let bytes = Streams::new(3, "x").gaussian_bf16(0, 100_000, 1.0, 0.25);
        let values: Vec<f64> = bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&b| bf16::from_le_bytes(b).to_f64())
            .collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!((mean - 1.0).abs() < 0.005, "{mean}");
        assert!((variance.sqrt() - 0.25).abs() < 0.003, "{variance}");
    }
}
