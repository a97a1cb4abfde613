//! Attention against f64 arithmetic, and bit for bit against a scalar twin.

use std::panic::{AssertUnwindSafe, catch_unwind};

use half::f16;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::{Threads, lanes, ops};

/// Heads of a layer.
#[derive(Debug, Clone, Copy)]
struct Shape {
    kv_heads: usize,
    group: usize,
    dim: usize,
}

/// One sequence: where its pages lie, and what a model computed for each position.
struct Sequence {
    pages: Vec<u32>,
    /// `[positions, kv_heads, dim]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `[positions, kv_heads · group, dim]`.
    queries: Vec<f32>,
    /// `[positions, dim / 2]`.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Sequence {
    fn random(positions: usize, pages: Vec<u32>, shape: Shape, rng: &mut ChaCha8Rng) -> Self {
        let mut random = |n: usize, size: f32| (0..n).map(|_| rng.random_range(-size..size)).collect::<Vec<f32>>();
        let width = shape.kv_heads * shape.dim;
        let angles = random(positions * (shape.dim / 2), 3.0);
        Self {
            pages,
            keys: random(positions * width, 2.0),
            values: random(positions * width, 2.0),
            queries: random(positions * width * shape.group, 4.0),
            cos: angles.iter().map(|a| a.cos()).collect(),
            sin: angles.iter().map(|a| a.sin()).collect(),
        }
    }

    fn rotated(&self, position: usize, head: &[f32]) -> Vec<f32> {
        let (mut head, pairs) = (head.to_vec(), head.len() / 2);
        if head.len() % 2 == 0 {
            let range = position * pairs..(position + 1) * pairs;
            ops::rotate(&mut head, &self.cos[range.clone()], &self.sin[range]);
        }
        head
    }

    /// Key and value as the cache keeps them.
    fn key_value(&self, position: usize, head: usize, shape: Shape) -> (Vec<f32>, Vec<f32>) {
        let range = (position * shape.kv_heads + head) * shape.dim..(position * shape.kv_heads + head + 1) * shape.dim;
        let keep = |v: &f32| f16::from_f32(v.clamp(-65504.0, 65504.0)).to_f32();
        let key = self.rotated(position, &self.keys[range.clone()]);
        (
            key.iter().map(keep).collect(),
            self.values[range].iter().map(keep).collect(),
        )
    }

    fn query(&self, position: usize, head: usize, shape: Shape) -> Vec<f32> {
        let start = (position * shape.kv_heads * shape.group + head) * shape.dim;
        self.rotated(position, &self.queries[start..start + shape.dim])
    }

    /// The scalar twin: blocks in order within segments in order, one position after the other.
    fn twin(&self, position: usize, head: usize, shape: Shape) -> Vec<f32> {
        let scale = 1.0 / (shape.dim as f32).sqrt();
        let query: Vec<f32> = self.query(position, head, shape).iter().map(|q| q * scale).collect();
        let kv: Vec<_> = (0..=position)
            .map(|t| self.key_value(t, head / shape.group, shape))
            .collect();
        let (mut total_max, mut total_sum, mut total) = (f32::NEG_INFINITY, 0.0f32, vec![0.0f32; shape.dim]);
        for segment in kv.chunks(SEGMENT) {
            let (mut max, mut sums, mut mixed) = (f32::NEG_INFINITY, [0.0f32; LANES], vec![0.0f32; shape.dim]);
            for block in segment.chunks(BLOCK) {
                let score = |key: &Vec<f32>| query.iter().zip(key).fold(0.0f32, |sum, (q, k)| q.mul_add(*k, sum));
                let scores: Vec<f32> = block.iter().map(|(key, _)| score(key)).collect();
                let new_max = scores.iter().fold(max, |a, b| a.max(*b));
                let rescale = if new_max == max { 1.0 } else { lanes::exp(max - new_max) };
                max = new_max;
                let mut p = [0.0; BLOCK];
                for (p, score) in p.iter_mut().zip(scores) {
                    *p = lanes::exp(score - max);
                }
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = rescale.mul_add(*sum, (p[j] + p[LANES + j]) + (p[2 * LANES + j] + p[3 * LANES + j]));
                }
                mixed.iter_mut().for_each(|m| *m *= rescale);
                for ((_, value), p) in block.iter().zip(p) {
                    for (mixed, v) in mixed.iter_mut().zip(value) {
                        *mixed = p.mul_add(*v, *mixed);
                    }
                }
            }
            let new_max = total_max.max(max);
            let (a, b) = (lanes::exp(total_max - new_max), lanes::exp(max - new_max));
            total_max = new_max;
            total_sum = b.mul_add(lanes::sum(&sums), a * total_sum);
            for (total, mixed) in total.iter_mut().zip(mixed) {
                *total = b.mul_add(mixed, a * *total);
            }
        }
        let scale = 1.0 / total_sum;
        total.iter().map(|v| v * scale).collect()
    }

    fn exact(&self, position: usize, head: usize, shape: Shape) -> Vec<f64> {
        let query = self.query(position, head, shape);
        let kv: Vec<_> = (0..=position)
            .map(|t| self.key_value(t, head / shape.group, shape))
            .collect();
        let dot = |key: &[f32]| {
            key.iter()
                .zip(&query)
                .map(|(k, q)| f64::from(*k) * f64::from(*q))
                .sum::<f64>()
        };
        let weights: Vec<f64> = kv
            .iter()
            .map(|(k, _)| (dot(k) / (shape.dim as f64).sqrt()).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        let mixed = |d: usize| {
            kv.iter()
                .zip(&weights)
                .map(|((_, v), w)| f64::from(v[d]) * w)
                .sum::<f64>()
        };
        (0..shape.dim).map(|d| mixed(d) / total).collect()
    }
}

/// A cache in which every element is NaN: whatever is read without having been stored shows.
fn poisoned(pages: usize, page_tokens: usize, shape: Shape, threads: &Threads) -> PagedCache {
    let mut cache = PagedCache::new(pages, page_tokens, shape.kv_heads, shape.dim);
    let all: Vec<u32> = (0..pages as u32).collect();
    let rows: Vec<_> = (1..=pages * page_tokens)
        .map(|count| QueryRow { pages: &all, count })
        .collect();
    let width = shape.kv_heads * shape.dim;
    let nan = vec![f32::NAN; rows.len() * width];
    cache.store(
        &rows,
        Columns::whole(&nan, width),
        Columns::whole(&nan, width),
        None,
        threads,
    );
    cache
}

/// One step: the positions `from .. to` of each sequence; results `[rows, query heads, dim]`. Queries, keys and values
/// are columns of one matrix, as a joint projection leaves them.
fn step(
    cache: &mut PagedCache,
    chunks: &[(&Sequence, std::ops::Range<usize>)],
    shape: Shape,
    threads: &Threads,
) -> Vec<f32> {
    let kv_width = shape.kv_heads * shape.dim;
    let (width, stride) = (kv_width * shape.group, kv_width * (shape.group + 2) + 3);
    let (mut rows, mut matrix, mut cos, mut sin) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (sequence, range) in chunks {
        for position in range.clone() {
            rows.push(QueryRow {
                pages: &sequence.pages,
                count: position + 1,
            });
            matrix.extend([f32::NAN; 3]);
            matrix.extend(&sequence.queries[position * width..][..width]);
            matrix.extend(&sequence.keys[position * kv_width..][..kv_width]);
            matrix.extend(&sequence.values[position * kv_width..][..kv_width]);
            let pairs = shape.dim / 2;
            cos.extend(&sequence.cos[position * pairs..][..pairs]);
            sin.extend(&sequence.sin[position * pairs..][..pairs]);
        }
    }
    let columns = |from, width| Columns {
        matrix: &matrix,
        stride,
        from,
        width,
    };
    let rotation = shape.dim.is_multiple_of(2).then_some(Rotation { cos: &cos, sin: &sin });
    let (keys, values) = (columns(3 + width, kv_width), columns(3 + width + kv_width, kv_width));
    cache.store(&rows, keys, values, rotation, threads);
    let mut out = vec![f32::NAN; rows.len() * width];
    attend(cache, &rows, columns(3, width), rotation, &mut out, threads);
    out
}

/// Pages `0 .. total` in random order.
fn shuffled(total: u32, rng: &mut ChaCha8Rng) -> Vec<u32> {
    let mut pages: Vec<u32> = (0..total).collect();
    for i in (1..pages.len()).rev() {
        pages.swap(i, rng.random_range(0..=i));
    }
    pages
}

#[test]
fn attention_matches_f64_arithmetic_over_scattered_pages() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let threads = Threads::new(2);
    for (shape, positions) in [
        (
            Shape {
                kv_heads: 2,
                group: 3,
                dim: 24,
            },
            37,
        ),
        (
            Shape {
                kv_heads: 1,
                group: 7,
                dim: 64,
            },
            130,
        ),
        (
            Shape {
                kv_heads: 1,
                group: 2,
                dim: 16,
            },
            SEGMENT + 70,
        ),
    ] {
        let pages = shuffled(positions.div_ceil(16) as u32 + 3, &mut rng);
        let mut cache = poisoned(pages.len(), 16, shape, &threads);
        let sequence = Sequence::random(positions, pages, shape, &mut rng);
        let out = step(&mut cache, &[(&sequence, 0..positions)], shape, &threads);
        let heads = shape.kv_heads * shape.group;
        for position in [0, 1, 36, positions - 1] {
            for head in 0..heads {
                let exact = sequence.exact(position, head, shape);
                for (out, exact) in out[(position * heads + head) * shape.dim..].iter().zip(exact) {
                    assert!((f64::from(*out) - exact).abs() < 1e-5, "{shape:?}, position {position}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the chunks, neighbours, threads, page order and stale contents of pages, each row is its scalar twin.
    #[test]
    fn a_row_depends_on_its_own_sequence_only(
        kv_heads in 1usize..4,
        group in 1usize..10,
        dim in prop_oneof![1usize..40, Just(48), Just(80)],
        page_strips in 1usize..3,
        lengths in prop::collection::vec(1usize..90, 1..4),
        threads in 1usize..4,
        seed: u64,
    ) {
        let shape = Shape { kv_heads, group, dim };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let threads = Threads::new(threads);
        let page_tokens = page_strips * STRIP;
        let needed: Vec<usize> = lengths.iter().map(|n| n.div_ceil(page_tokens)).collect();
        let mut free = shuffled(needed.iter().sum::<usize>() as u32 + 1, &mut rng);
        let mut cache = poisoned(free.len(), page_tokens, shape, &threads);
        let sequences: Vec<Sequence> = lengths
            .iter()
            .zip(needed)
            .map(|(n, pages)| Sequence::random(*n, free.split_off(free.len() - pages), shape, &mut rng))
            .collect();
        let mut done = vec![0; lengths.len()];
        let width = kv_heads * group * dim;
        while done != lengths {
            let mut chunks = Vec::new();
            for (i, sequence) in sequences.iter().enumerate() {
                let to = (done[i] + rng.random_range(0..=40)).min(lengths[i]);
                chunks.push((sequence, done[i]..to));
                done[i] = to;
            }
            let out = step(&mut cache, &chunks, shape, &threads);
            let rows = chunks.iter().flat_map(|(sequence, range)| range.clone().map(move |t| (sequence, t)));
            for ((sequence, position), out) in rows.zip(out.chunks_exact(width)) {
                // One head a row, so that the twin's time stays short.
                let head = rng.random_range(0..kv_heads * group);
                prop_assert_eq!(&out[head * dim..][..dim], &sequence.twin(position, head, shape)[..]);
            }
        }
    }
}

/// Long enough for several segments, which few rows share among threads and many do not.
#[test]
fn a_long_sequence_is_the_same_however_it_is_divided() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let shape = Shape {
        kv_heads: 1,
        group: 2,
        dim: 16,
    };
    let positions = 2 * SEGMENT + 37;
    let pages = shuffled(positions.div_ceil(16) as u32, &mut rng);
    let sequence = Sequence::random(positions, pages, shape, &mut rng);
    let mut expected = Vec::new();
    for (threads, chunk) in [(1, positions), (2, 200), (3, 509)] {
        let threads = Threads::new(threads);
        let mut cache = poisoned(sequence.pages.len(), 16, shape, &threads);
        let mut out = Vec::new();
        // The last rows one by one and in a small group: these divide their positions.
        let mut ends: Vec<usize> = (0..positions - 9).step_by(chunk).skip(1).collect();
        ends.extend([positions - 9, positions - 8, positions - 7, positions]);
        let mut from = 0;
        for to in ends {
            out.extend(step(&mut cache, &[(&sequence, from..to)], shape, &threads));
            from = to;
        }
        if expected.is_empty() {
            expected = out;
        } else {
            assert_eq!(out, expected);
        }
    }
    for position in [SEGMENT - 1, SEGMENT, 2 * SEGMENT, positions - 8, positions - 1] {
        let out = &expected[position * 2 * shape.dim..][..shape.dim];
        assert_eq!(out, sequence.twin(position, 0, shape));
    }
}

#[test]
fn a_later_row_that_is_not_a_number_leaves_earlier_ones_alone() {
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let shape = Shape {
        kv_heads: 1,
        group: 3,
        dim: 20,
    };
    let threads = Threads::new(1);
    let mut sequence = Sequence::random(30, vec![1, 0], shape, &mut rng);
    for row in [25, 28] {
        sequence.keys[row * shape.dim..][..shape.dim].fill(f32::NAN);
        sequence.values[row * shape.dim..][..shape.dim].fill(f32::NAN);
    }
    let mut cache = poisoned(2, 16, shape, &threads);
    let out = step(&mut cache, &[(&sequence, 0..30)], shape, &threads);
    for (position, out) in out.chunks_exact(3 * shape.dim).enumerate() {
        if position < 25 {
            assert_eq!(out[shape.dim..2 * shape.dim], sequence.twin(position, 1, shape));
        } else {
            assert!(out.iter().all(|v| v.is_nan()));
        }
    }
}

#[test]
fn a_copied_page_holds_the_same() {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let shape = Shape {
        kv_heads: 2,
        group: 1,
        dim: 8,
    };
    let threads = Threads::new(1);
    let mut sequence = Sequence::random(20, vec![0, 2], shape, &mut rng);
    let mut cache = poisoned(4, 16, shape, &threads);
    step(&mut cache, &[(&sequence, 0..19)], shape, &threads);
    cache.copy_page(2, 3);
    sequence.pages = vec![0, 3];
    let out = step(&mut cache, &[(&sequence, 19..20)], shape, &threads);
    assert_eq!(out[shape.dim..], sequence.twin(19, 1, shape));
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let threads = Threads::new(1);
    let mut cache = PagedCache::new(2, 16, 2, 8);
    let refused = |name: &str, call: &mut dyn FnMut()| {
        let payload = catch_unwind(AssertUnwindSafe(call)).expect_err(name);
        let message = payload.downcast_ref::<String>().map_or("", String::as_str);
        assert!(message.contains(name), "{message} names {name}");
    };
    refused("page_tokens", &mut || drop(PagedCache::new(1, 20, 1, 8)));
    refused("head_dim", &mut || drop(PagedCache::new(1, 16, 1, MAX_HEAD_DIM + 1)));
    let row = |pages, count| [QueryRow { pages, count }];
    let (kv, q) = (vec![0.0; 16], vec![0.0; 32]);
    let (kv, q) = (Columns::whole(&kv, 16), Columns::whole(&q, 32));
    let mut store = |name: &str, rows: &[QueryRow<'_>], keys, values, rotation| {
        refused(name, &mut || cache.store(rows, keys, values, rotation, &threads));
    };
    let angles = Some(Rotation {
        cos: &[1.0; 4],
        sin: &[0.0; 3],
    });
    store("count", &row(&[0], 0), kv, kv, None);
    store("do not cover its 17 positions", &row(&[0], 17), kv, kv, None);
    store("page 2", &row(&[2], 1), kv, kv, None);
    store("keys", &row(&[0], 1), Columns { width: 15, ..kv }, kv, None);
    store("values", &row(&[0], 1), kv, Columns { from: 1, ..kv }, None);
    store("rotation", &row(&[0], 1), kv, kv, angles);
    let attend = |name: &str, rows: &[QueryRow<'_>], queries, rotation, out: usize| {
        refused(name, &mut || {
            attend(&cache, rows, queries, rotation, &mut vec![0.0; out], &threads)
        });
    };
    attend("page 9", &row(&[9, 0], 17), q, None, 32);
    attend("do not cover", &row(&[1, 0], 33), q, None, 32);
    attend("queries", &row(&[0], 1), Columns { width: 24, ..q }, None, 32);
    attend("queries", &[row(&[0], 1)[0]; 2], q, None, 64);
    attend("rotation", &row(&[0], 1), q, angles, 32);
    attend("out", &row(&[0], 1), q, None, 31);
}
