//! Random differences for tests.

use super::{Band, LowRankDelta};
use crate::bytes::Bytes;
use crate::lowbit::{groups, pack_row, row_bytes};
use half::f16;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// A difference of random factors with ranks of these `(bits, count)`; singular values fall as `1 / (i + 1)`.
pub(super) fn random(inputs: usize, outputs: usize, widths: &[(u8, usize)], rng: &mut ChaCha8Rng) -> LowRankDelta {
    random_apart(inputs, outputs, widths, widths, rng)
}

/// The same with widths of its own for each factor, of as many ranks.
pub(super) fn random_apart(
    inputs: usize,
    outputs: usize,
    v_widths: &[(u8, usize)],
    u_widths: &[(u8, usize)],
    rng: &mut ChaCha8Rng,
) -> LowRankDelta {
    let mut factor = |bits: u8, ranks: usize, len: usize| -> (Bytes, Vec<f32>, Vec<u16>) {
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
        let scales = (0..n).map(|_| rng.random_range(0.005..0.05)).collect();
        let zeros = (0..n).map(|_| rng.random_range(0..(2u16 << bits) - 1)).collect();
        (packed.into(), scales, zeros)
    };
    let mut bands = |len: usize, widths: &[(u8, usize)]| -> Vec<Band> {
        let band = |&(bits, ranks): &(u8, usize)| {
            let (codes, scales, zeros) = factor(bits, ranks, len);
            Band {
                bits,
                ranks,
                codes,
                scales,
                zeros,
            }
        };
        widths.iter().map(band).collect()
    };
    let (v, u) = (bands(inputs, v_widths), bands(outputs, u_widths));
    let ranks = v_widths.iter().map(|w| w.1).sum();
    LowRankDelta {
        inputs,
        outputs,
        s: (0..ranks).map(|i| 1.0 / (i + 1) as f32).collect(),
        v,
        u,
    }
}
