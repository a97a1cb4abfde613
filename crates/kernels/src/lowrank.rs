//! A quantised low-rank difference to a linear: `y += U (s ⊙ (V x))`.
//!
//! Both factors are stored as rows, one a rank: V's rows along the inputs, Uᵀ's along the outputs. V x is one dot
//! product a rank in the lanes' fixed order; U h adds rank after rank to each output. Neither depends on the number of
//! rows in the call.

use crate::Threads;
use crate::bytes::Bytes;
use crate::isa::for_each_isa;
use crate::lanes::{self, LANES};
use crate::lowbit::{GROUP, groups, row_bytes, unpack_group};
use crate::threads::DisjointRows;
use half::f16;

/// The ranks of one width, in order of falling singular value.
#[derive(Debug, Clone)]
pub struct Band {
    /// Bits a weight: 8, 4, 3 or 2; or 16, little-endian f16 without scales and zero points.
    pub bits: u8,
    /// Number of ranks.
    pub ranks: usize,
    /// Codes of V: `ranks` rows of `inputs` weights, laid out as [`crate::lowbit`] says.
    pub v_codes: Bytes,
    /// Scales of V, `[ranks, groups(inputs)]`.
    pub v_scales: Vec<f32>,
    /// Zero points of V, same shape.
    pub v_zeros: Vec<u8>,
    /// Codes of Uᵀ: `ranks` rows of `outputs` weights.
    pub u_codes: Bytes,
    /// Scales of Uᵀ, `[ranks, groups(outputs)]`.
    pub u_scales: Vec<f32>,
    /// Zero points of Uᵀ, same shape.
    pub u_zeros: Vec<u8>,
}

/// The quantised factors of one linear's difference.
#[derive(Debug, Clone)]
pub struct LowRankDelta {
    /// Length of an input row.
    pub inputs: usize,
    /// Length of an output row.
    pub outputs: usize,
    /// Singular value of each rank, bands one after another.
    pub s: Vec<f32>,
    /// Bands, widest first.
    pub bands: Vec<Band>,
}

/// Ranks whose factors are unpacked together.
const BLOCK: usize = 8;

/// Rows that are multiplied together.
const ROWS: usize = 4;

impl LowRankDelta {
    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.s.len()
    }

    /// Bytes of codes, scales, zero points and singular values in memory.
    pub fn bytes(&self) -> usize {
        let band = |b: &Band| {
            b.v_codes.len()
                + b.u_codes.len()
                + 4 * (b.v_scales.len() + b.u_scales.len())
                + b.v_zeros.len()
                + b.u_zeros.len()
        };
        4 * self.s.len() + self.bands.iter().map(band).sum::<usize>()
    }

    /// Adds the difference: `y[m] += U (s ⊙ (V x[m]))` for each of the `rows` rows; `x` is `[rows, inputs]`, `y`
    /// `[rows, outputs]`.
    ///
    /// # Panics
    /// If `x` or `y` has another length.
    pub fn add_to(&self, x: &[f32], rows: usize, y: &mut [f32], threads: &Threads) {
        assert_eq!(x.len(), rows * self.inputs, "x is [rows, inputs]");
        assert_eq!(y.len(), rows * self.outputs, "y is [rows, outputs]");
        if rows == 0 || self.s.is_empty() {
            return;
        }
        let h = self.project(x, rows, threads);
        let y = DisjointRows::new(y, self.outputs);
        threads.for_each(groups(self.outputs), self.cost(self.outputs, rows), |group| {
            let from = group * GROUP;
            let count = (self.outputs - from).min(GROUP);
            let mut weights = [[0.0; GROUP]; BLOCK];
            for first in (0..self.s.len()).step_by(BLOCK) {
                let ranks = (self.s.len() - first).min(BLOCK);
                for (i, weights) in weights[..ranks].iter_mut().enumerate() {
                    let (band, rank) = self.band_of(first + i);
                    band.u_group(rank, group, self.outputs, weights);
                }
                for m in 0..rows {
                    let h = std::array::from_fn(|i| if i < ranks { h[(first + i) * rows + m] } else { 0.0 });
                    // SAFETY: tasks own different columns of y, and this one holds one part at a time.
                    let out = unsafe { y.part(m, from, count) };
                    mix(&h, &weights, ranks, out);
                }
            }
        });
    }

    /// `s ⊙ (V x)` as `[ranks, rows]`.
    fn project(&self, x: &[f32], rows: usize, threads: &Threads) -> Vec<f32> {
        let mut h = vec![0.0; self.s.len() * rows];
        let out = DisjointRows::new(&mut h, rows);
        threads.for_each(self.s.len().div_ceil(BLOCK), self.cost(self.inputs, rows), |task| {
            let first = task * BLOCK;
            let ranks = (self.s.len() - first).min(BLOCK);
            let mut weights = vec![0.0; BLOCK * self.inputs];
            for (i, weights) in weights.chunks_exact_mut(self.inputs).take(ranks).enumerate() {
                let (band, rank) = self.band_of(first + i);
                band.v_row(rank, weights);
            }
            let mut dots = [[0.0; ROWS]; BLOCK];
            let mut m = 0;
            while m < rows {
                let count = if rows - m < ROWS { 1 } else { ROWS };
                dot_block(&weights, &x[m * self.inputs..], self.inputs, count, &mut dots);
                for (i, dots) in dots[..ranks].iter().enumerate() {
                    // SAFETY: tasks own different ranks.
                    let out = unsafe { out.part(first + i, m, count) };
                    for (out, dot) in out.iter_mut().zip(dots) {
                        *out = self.s[first + i] * dot;
                    }
                }
                m += count;
            }
        });
        h
    }

    /// Multiply-adds of one factor over `rows`; unpacking its codes counts as much as a few rows.
    fn cost(&self, width: usize, rows: usize) -> usize {
        self.s.len() * width * (rows + 4)
    }

    /// The band of a rank and the rank's place in it.
    fn band_of(&self, rank: usize) -> (&Band, usize) {
        let mut rank = rank;
        for band in &self.bands {
            if rank < band.ranks {
                return (band, rank);
            }
            rank -= band.ranks;
        }
        panic!("the bands hold as many ranks as there are singular values")
    }

    /// Adds row `output` of the dense difference to `row` (length `inputs`): what an embedding look-up needs.
    ///
    /// # Panics
    /// If `output` is not below `outputs` or `row` has another length.
    pub fn add_dense_row(&self, output: usize, row: &mut [f32]) {
        assert!(output < self.outputs && row.len() == self.inputs);
        let (mut u, mut v) = ([0.0; GROUP], vec![0.0; self.inputs]);
        let mut s = self.s.iter();
        for band in &self.bands {
            for (rank, s) in (0..band.ranks).zip(&mut s) {
                band.u_group(rank, output / GROUP, self.outputs, &mut u);
                band.v_row(rank, &mut v);
                add_scaled(u[output % GROUP] * s, &v, row);
            }
        }
    }

    /// The dense difference `[outputs, inputs]`, row-major.
    pub fn to_dense(&self) -> Vec<f32> {
        let mut dense = vec![0.0; self.outputs * self.inputs];
        let (mut u, mut v) = ([0.0; GROUP], vec![0.0; self.inputs]);
        let mut s = self.s.iter();
        for band in &self.bands {
            for (rank, s) in (0..band.ranks).zip(&mut s) {
                band.v_row(rank, &mut v);
                for group in 0..groups(self.outputs) {
                    band.u_group(rank, group, self.outputs, &mut u);
                    let rows = dense.chunks_exact_mut(self.inputs).skip(group * GROUP);
                    for (row, u) in rows.zip(&u) {
                        add_scaled(u * s, &v, row);
                    }
                }
            }
        }
        dense
    }
}

impl Band {
    /// Row `rank` of V.
    fn v_row(&self, rank: usize, out: &mut [f32]) {
        let len = out.len();
        if self.bits == 16 {
            return halves(&self.v_codes[rank * row_bytes(len, 16)..], out);
        }
        let bytes = row_bytes(len, self.bits);
        let (codes, n) = (&self.v_codes[rank * bytes..][..bytes], groups(len));
        let (scales, zeros) = (&self.v_scales[rank * n..][..n], &self.v_zeros[rank * n..][..n]);
        for (group, out) in out.chunks_mut(GROUP).enumerate() {
            let start = group * (GROUP * self.bits as usize / 8);
            dequantise(&codes[start..], self.bits, scales[group], zeros[group], out);
        }
    }

    /// Weights of one group of outputs in column `rank` of U; `out` is filled as far as the group goes.
    fn u_group(&self, rank: usize, group: usize, outputs: usize, out: &mut [f32; GROUP]) {
        let n = (outputs - group * GROUP).min(GROUP);
        if self.bits == 16 {
            let start = rank * row_bytes(outputs, 16) + group * GROUP * 2;
            return halves(&self.u_codes[start..start + n * 2], &mut out[..n]);
        }
        let start = rank * row_bytes(outputs, self.bits) + group * (GROUP * self.bits as usize / 8);
        let index = rank * groups(outputs) + group;
        dequantise(
            &self.u_codes[start..],
            self.bits,
            self.u_scales[index],
            self.u_zeros[index],
            &mut out[..n],
        );
    }
}

for_each_isa! {
    /// `(code − zero) · scale` for one group.
    fn dequantise(packed: &[u8], bits: u8, scale: f32, zero: u8, out: &mut [f32]) {
        let mut codes = [0u8; GROUP];
        if out.len() == GROUP {
            unpack_group(packed, bits, &mut codes);
        } else {
            unpack_group(packed, bits, &mut codes[..out.len().next_multiple_of(8)]);
        }
        for (out, code) in out.iter_mut().zip(&codes) {
            *out = (i32::from(*code) - i32::from(zero)) as f32 * scale;
        }
    }
}

for_each_isa! {
    /// Little-endian f16 to f32.
    fn halves(bytes: &[u8], out: &mut [f32]) {
        for (out, pair) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *out = f16::from_le_bytes(*pair).to_f32();
        }
    }
}

for_each_isa! {
    /// `out[rank][m] = V[rank] · x[m]` for a block of ranks and 1 or [`ROWS`] rows, each in the lanes' fixed order.
    fn dot_block(v: &[f32], x: &[f32], inputs: usize, rows: usize, out: &mut [[f32; ROWS]; BLOCK]) {
        #[inline(always)]
        fn tile<const R: usize, const M: usize>(v: [&[f32]; R], x: [&[f32]; M]) -> [[f32; M]; R] {
            let mut acc = [[[0.0f32; LANES]; M]; R];
            let blocks = v[0].len() / LANES;
            let v_blocks: [_; R] = std::array::from_fn(|r| &v[r].as_chunks::<LANES>().0[..blocks]);
            let x_blocks: [_; M] = std::array::from_fn(|m| &x[m].as_chunks::<LANES>().0[..blocks]);
            for b in 0..blocks {
                for r in 0..R {
                    for m in 0..M {
                        lanes::fma_lanes(&mut acc[r][m], &v_blocks[r][b], &x_blocks[m][b]);
                    }
                }
            }
            let mut sums = [[0.0; M]; R];
            for r in 0..R {
                for m in 0..M {
                    let (mut w_rest, mut x_rest) = ([0.0; LANES], [0.0; LANES]);
                    let rest = v[r].len() - blocks * LANES;
                    w_rest[..rest].copy_from_slice(&v[r][blocks * LANES..]);
                    x_rest[..rest].copy_from_slice(&x[m][blocks * LANES..]);
                    lanes::fma_lanes(&mut acc[r][m], &w_rest, &x_rest);
                    sums[r][m] = lanes::sum(&acc[r][m]);
                }
            }
            sums
        }
        let row = |r: usize| &v[r * inputs..][..inputs];
        if rows == 1 {
            let sums = tile::<BLOCK, 1>(std::array::from_fn(row), [&x[..inputs]]);
            for (out, sums) in out.iter_mut().zip(sums) {
                out[0] = sums[0];
            }
        } else {
            let x: [&[f32]; ROWS] = std::array::from_fn(|m| &x[m * inputs..][..inputs]);
            for r in (0..BLOCK).step_by(2) {
                let sums = tile::<2, ROWS>([row(r), row(r + 1)], x);
                out[r] = sums[0];
                out[r + 1] = sums[1];
            }
        }
    }
}

for_each_isa! {
    /// `out += Σ h[rank] · weights[rank]` over the first `ranks`, ranks in order, each fused.
    fn mix(h: &[f32; BLOCK], weights: &[[f32; GROUP]; BLOCK], ranks: usize, out: &mut [f32]) {
        let (blocks, rest) = out.as_chunks_mut::<LANES>();
        let whole = blocks.len();
        for (c, out) in blocks.iter_mut().enumerate() {
            let mut acc = *out;
            for (h, weights) in h.iter().zip(weights).take(ranks) {
                lanes::fma(&mut acc, *h, &weights.as_chunks::<LANES>().0[c]);
            }
            *out = acc;
        }
        for (h, weights) in h.iter().zip(weights).take(ranks) {
            for (out, w) in rest.iter_mut().zip(&weights[whole * LANES..]) {
                *out = h.mul_add(*w, *out);
            }
        }
    }
}

for_each_isa! {
    /// `out += a · w`, fused.
    fn add_scaled(a: f32, w: &[f32], out: &mut [f32]) {
        for (out, w) in out.iter_mut().zip(w) {
            *out = a.mul_add(*w, *out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lowbit::pack_row;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn random(inputs: usize, outputs: usize, widths: &[(u8, usize)], rng: &mut ChaCha8Rng) -> LowRankDelta {
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

    #[test]
    fn every_way_to_apply_a_delta_agrees() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let threads = Threads::new(2);
        for (inputs, outputs) in [(256, 128), (100, 333), (8, 8), (131, 129), (576, 192)] {
            let delta = random(inputs, outputs, &[(16, 2), (8, 3), (4, 9), (3, 5), (2, 11)], &mut rng);
            let dense = delta.to_dense();
            let x: Vec<f32> = (0..inputs).map(|_| rng.random_range(-1.0..1.0)).collect();
            let mut y = vec![1.0; outputs];
            delta.add_to(&x, 1, &mut y, &threads);
            for (o, row) in dense.chunks_exact(inputs).enumerate() {
                let exact: f64 = 1.0
                    + row
                        .iter()
                        .zip(&x)
                        .map(|(w, x)| f64::from(*w) * f64::from(*x))
                        .sum::<f64>();
                assert!(
                    (f64::from(y[o]) - exact).abs() < 1e-3 * exact.abs().max(1.0),
                    "{inputs}x{outputs} row {o}"
                );
            }
            let mut row = vec![0.0; inputs];
            delta.add_dense_row(outputs - 1, &mut row);
            assert_eq!(row, dense[(outputs - 1) * inputs..]);
        }
    }

    #[test]
    fn a_row_is_the_same_alone_and_in_a_batch() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        // Large enough to be spread over threads.
        let (inputs, outputs) = (600, 900);
        let delta = random(inputs, outputs, &[(8, 2), (3, 16), (2, 40)], &mut rng);
        let x: Vec<f32> = (0..9 * inputs).map(|_| rng.random_range(-1.0..1.0)).collect();
        let mut together = vec![0.5; 9 * outputs];
        delta.add_to(&x, 9, &mut together, &Threads::new(3));
        for (x, expected) in x.chunks_exact(inputs).zip(together.chunks_exact(outputs)) {
            let mut alone = vec![0.5; outputs];
            delta.add_to(x, 1, &mut alone, &Threads::new(1));
            assert_eq!(alone, expected);
        }
    }
}
