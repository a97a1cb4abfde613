//! Random differences for tests.

use super::{Band, LowRankDelta};
use crate::bytes::Bytes;
use crate::lowbit::{groups, pack_row, row_bytes};
use half::f16;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// A difference of random factors with ranks of these `(bits, count)`; singular values fall as `1 / (i + 1)`.
pub(super) fn random(inputs: usize, outputs: usize, widths: &[(u8, usize)], rng: &mut ChaCha8Rng) -> LowRankDelta {
    let mut factor = |bits: u8, ranks: usize, len: usize| -> (Bytes, Vec<f32>, Vec<u8>) {
        if bits == 16 {
            let halves = ranks * row_bytes(len, 16) / 2;
            let halves = (0..halves).flat_map(|_| f16::from_f32(rng.random_range(-1.0..1.0)).to_le_bytes());
            return (halves.collect::<Vec<u8>>().into(), vec![], vec![]);
        }
        let mut packed = Vec::new();
        for _ in 0..ranks {
            let codes: Vec<u8> = (0..len).map(|_| rng.random_range(0..1u16 << bits) as u8).collect();
            pack_row(&codes, bits, &mut packed);
        }
        let n = ranks * groups(len);
        let scales = (0..n).map(|_| rng.random_range(0.01..0.1)).collect();
        let zeros = (0..n).map(|_| rng.random_range(0..1u16 << bits) as u8).collect();
        (packed.into(), scales, zeros)
    };
    let bands = widths
        .iter()
        .map(|&(bits, ranks)| {
            let (v_codes, v_scales, v_zeros) = factor(bits, ranks, inputs);
            let (u_codes, u_scales, u_zeros) = factor(bits, ranks, outputs);
            Band {
                bits,
                ranks,
                v_codes,
                v_scales,
                v_zeros,
                u_codes,
                u_scales,
                u_zeros,
            }
        })
        .collect();
    let ranks = widths.iter().map(|w| w.1).sum();
    LowRankDelta {
        inputs,
        outputs,
        s: (0..ranks).map(|i| 1.0 / (i + 1) as f32).collect(),
        bands,
    }
}
