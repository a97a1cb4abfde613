//! Attention of one query position over paged keys and values.
//!
//! Positions are visited in order, so the result depends on the sequence only, never on the batch around it or on the
//! chunks in which the sequence was computed.

use half::f16;

use crate::Threads;
use crate::isa::for_each_isa;
use crate::lanes::LANES;
use crate::threads::DisjointRows;

/// Keys or values of one layer: pages of `page_tokens` positions; within a page one plane for each key/value head,
/// `[page_tokens, head_dim]`, in f16.
#[derive(Debug, Clone)]
pub struct PagedCache {
    data: Vec<f16>,
    page_tokens: usize,
    heads: usize,
    head_dim: usize,
}

impl PagedCache {
    /// `pages` empty pages.
    pub fn new(pages: usize, page_tokens: usize, heads: usize, head_dim: usize) -> Self {
        let data = vec![f16::ZERO; pages * page_tokens * heads * head_dim];
        Self {
            data,
            page_tokens,
            heads,
            head_dim,
        }
    }

    /// Pages in all.
    pub fn pages(&self) -> usize {
        self.data.len() / self.page_len()
    }

    fn page_len(&self) -> usize {
        self.page_tokens * self.heads * self.head_dim
    }

    /// Stores the heads of one position (`[heads, head_dim]`), rounded to f16 and bounded to its range.
    ///
    /// # Panics
    /// If `pages` does not cover `position`.
    pub fn store(&mut self, pages: &[u32], position: usize, row: &[f32]) {
        let page = pages[position / self.page_tokens] as usize * self.page_len();
        let slot = position % self.page_tokens * self.head_dim;
        let plane = self.page_tokens * self.head_dim;
        for (head, values) in row.chunks_exact(self.head_dim).enumerate() {
            let start = page + head * plane + slot;
            narrow(values, &mut self.data[start..start + self.head_dim]);
        }
    }

    /// Copies page `from` to `to`.
    ///
    /// # Panics
    /// If either lies outside the cache.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        let len = self.page_len();
        self.data
            .copy_within(from as usize * len..(from as usize + 1) * len, to as usize * len);
    }

    /// Positions `0 .. count` of one head, page by page: `[tokens, head_dim]` each.
    fn planes<'a>(&'a self, pages: &'a [u32], head: usize, count: usize) -> impl Iterator<Item = &'a [f16]> {
        let plane = self.page_tokens * self.head_dim;
        let page_len = self.page_len();
        pages
            .iter()
            .enumerate()
            .take(count.div_ceil(self.page_tokens))
            .map(move |(i, page)| {
                let tokens = (count - i * self.page_tokens).min(self.page_tokens);
                let start = *page as usize * page_len + head * plane;
                &self.data[start..start + tokens * self.head_dim]
            })
    }
}

/// Where a query row's sequence lies.
#[derive(Debug, Clone, Copy)]
pub struct QueryRow<'a> {
    /// Pages of its sequence.
    pub pages: &'a [u32],
    /// Positions it sees: its own and all before it.
    pub count: usize,
}

/// Attention of every row: `queries` and `out` are `[rows, query heads, head_dim]`; neighbouring query heads share a
/// key/value head (grouped-query attention).
///
/// # Panics
/// If the lengths do not fit together or the pages of a row do not cover its positions.
pub fn attend(
    keys: &PagedCache,
    values: &PagedCache,
    rows: &[QueryRow<'_>],
    queries: &[f32],
    out: &mut [f32],
    threads: &Threads,
) {
    let heads = keys.heads;
    let width = queries.len() / rows.len().max(1);
    let part = width / heads;
    assert!(queries.len() == rows.len() * width && out.len() == queries.len() && part * heads == width);
    let out = DisjointRows::new(out, width);
    let cost = 2 * width * rows.iter().map(|row| row.count).sum::<usize>();
    threads.for_each(rows.len() * heads, cost, |task| {
        let (row, head) = (task / heads, task % heads);
        let queries = &queries[row * width + head * part..][..part];
        // SAFETY: each task owns the columns of its heads in its row.
        let out = unsafe { out.part(row, head * part, part) };
        attend_head(keys, values, rows[row], head, queries, out);
    });
}

/// Attention of the query heads that share key/value head `head`: `queries` and `out` are `[heads of the group, dim]`.
fn attend_head(
    keys: &PagedCache,
    values: &PagedCache,
    row: QueryRow<'_>,
    head: usize,
    queries: &[f32],
    out: &mut [f32],
) {
    let dim = keys.head_dim;
    let QueryRow { pages, count } = row;
    let scale = 1.0 / (dim as f32).sqrt();
    let mut scores = vec![0.0; queries.len() / dim * count];
    let mut at = 0;
    for plane in keys.planes(pages, head, count) {
        score_plane(plane, queries, dim, scale, at, count, &mut scores);
        at += plane.len() / dim;
    }
    assert_eq!(at, count, "pages cover the positions");
    for scores in scores.chunks_exact_mut(count) {
        softmax(scores);
    }
    out.fill(0.0);
    let mut at = 0;
    for plane in values.planes(pages, head, count) {
        mix_plane(plane, dim, at, count, &scores, out);
        at += plane.len() / dim;
    }
}

for_each_isa! {
    /// Scores of a page's positions against each query head of the group.
    fn score_plane(plane: &[f16], queries: &[f32], dim: usize, scale: f32, at: usize, count: usize, scores: &mut [f32]) {
        let mut wide = [0.0f32; MAX_HEAD_DIM];
        let key = &mut wide[..dim];
        for (t, half) in plane.chunks_exact(dim).enumerate() {
            widen(half, key);
            for (g, query) in queries.chunks_exact(dim).enumerate() {
                scores[g * count + at + t] = crate::lanes::dot(query, key) * scale;
            }
        }
    }
}

for_each_isa! {
    /// `out[g] += probability[g, position] · value[position]`, positions in order.
    fn mix_plane(plane: &[f16], dim: usize, at: usize, count: usize, probabilities: &[f32], out: &mut [f32]) {
        let mut wide = [0.0f32; MAX_HEAD_DIM];
        let value = &mut wide[..dim];
        for (t, half) in plane.chunks_exact(dim).enumerate() {
            widen(half, value);
            for (g, out) in out.chunks_exact_mut(dim).enumerate() {
                let p = probabilities[g * count + at + t];
                for (out, v) in out.iter_mut().zip(value.iter()) {
                    *out = p.mul_add(*v, *out);
                }
            }
        }
    }
}

/// Widest head that the kernels handle.
pub const MAX_HEAD_DIM: usize = 512;

/// f16 to f32 by integer arithmetic, exact for every finite value, in a form that vectorises.
#[inline(always)]
fn widen(half: &[f16], out: &mut [f32]) {
    for (out, h) in out.iter_mut().zip(half) {
        let bits = u32::from(h.to_bits());
        // Exponent and mantissa moved to their f32 places give the value times 2^-112; the product restores it and
        // makes subnormal halves right too.
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        *out = f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16);
    }
}

/// f32 to f16, rounded to nearest even, bounded to the largest finite half.
fn narrow(wide: &[f32], out: &mut [f16]) {
    for (out, w) in out.iter_mut().zip(wide) {
        *out = f16::from_f32(w.clamp(-65504.0, 65504.0));
    }
}

/// Softmax in place.
fn softmax(x: &mut [f32]) {
    let scale = 1.0 / exponentials(x, maximum(x));
    for v in x.iter_mut() {
        *v *= scale;
    }
}

for_each_isa! {
    /// `x = e^(x − max)` and the sum in the lanes' fixed order.
    fn exponentials(x: &mut [f32], max: f32) -> f32 {
        let mut sums = [0.0f32; LANES];
        for block in x.chunks_mut(LANES) {
            for (v, sum) in block.iter_mut().zip(&mut sums) {
                *v = crate::lanes::exp(*v - max);
                *sum += *v;
            }
        }
        crate::lanes::sum(&sums)
    }
}

for_each_isa! {
    /// Largest element; the order of comparisons does not change it.
    fn maximum(x: &[f32]) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for block in x.chunks(LANES) {
            for (lane, v) in lanes.iter_mut().zip(block) {
                *lane = if *v > *lane { *v } else { *lane };
            }
        }
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn every_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            if half.is_finite() {
                let mut out = [0.0];
                widen(&[half], &mut out);
                assert_eq!(out[0].to_bits(), half.to_f32().to_bits(), "{bits:#x}");
            }
        }
    }

    #[test]
    fn attention_matches_f64_arithmetic_over_scattered_pages() {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let (heads, dim, group, count) = (2, 24, 3, 37);
        let mut keys = PagedCache::new(8, 16, heads, dim);
        let mut values = keys.clone();
        let pages = [6, 1, 3];
        let mut rows = Vec::new();
        for t in 0..count {
            // Values that f16 holds exactly.
            let mut row = || {
                (0..heads * dim)
                    .map(|_| rng.random_range(-64i32..64) as f32 / 32.0)
                    .collect::<Vec<_>>()
            };
            let (k, v) = (row(), row());
            keys.store(&pages, t, &k);
            values.store(&pages, t, &v);
            rows.push((k, v));
        }
        let queries: Vec<f32> = (0..group * dim).map(|_| rng.random_range(-1.0..1.0)).collect();
        let mut out = vec![0.0; group * dim];
        for head in 0..heads {
            let row = QueryRow { pages: &pages, count };
            attend_head(&keys, &values, row, head, &queries, &mut out);
            for (q, out) in queries.chunks(dim).zip(out.chunks(dim)) {
                let part = |row: &'_ Vec<f32>| -> Vec<f64> {
                    row[head * dim..(head + 1) * dim]
                        .iter()
                        .map(|v| f64::from(*v))
                        .collect()
                };
                let score = |k: Vec<f64>| k.iter().zip(q).map(|(k, q)| k * f64::from(*q)).sum::<f64>() / 24f64.sqrt();
                let weights: Vec<f64> = rows.iter().map(|(k, _)| score(part(k)).exp()).collect();
                let total: f64 = weights.iter().sum();
                for (d, out) in out.iter().enumerate() {
                    let exact: f64 = rows
                        .iter()
                        .zip(&weights)
                        .map(|((_, v), w)| part(v)[d] * w / total)
                        .sum();
                    assert!((f64::from(*out) - exact).abs() < 1e-5);
                }
            }
        }
    }
}
