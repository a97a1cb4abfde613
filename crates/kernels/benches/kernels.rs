//! Throughput of the hot kernels, in bytes of packed weights for one row and in multiply-adds for many.
//!
//! `cargo bench -p deltamux-kernels`; compare with the machine's limits measured in the same hour.

use std::sync::atomic::{AtomicUsize, Ordering};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use deltamux_kernels::attention::{Columns, PagedCache, QueryRow, attend};
use deltamux_kernels::lowrank::{Band, Term, add_terms};
use deltamux_kernels::{
    Bits, LowRankDelta, PackedMatrix, QuantisedMatrix, QuantisedRows, SignDelta, Threads, lowbit, signs,
};
use half::bf16;

/// `(name, inputs, outputs)` of linears of SmolLM2-135M and Qwen2.5-0.5B.
const SHAPES: [(&str, usize, usize); 3] = [("135m-q", 576, 576), ("135m-up", 576, 1536), ("0.5b-up", 896, 4864)];

fn matmul(c: &mut Criterion) {
    let threads = Threads::new(0);
    let mut group = c.benchmark_group("matmul bf16");
    for (name, inputs, outputs) in SHAPES {
        let weights: Vec<bf16> = (0..inputs * outputs)
            .map(|i| bf16::from_f32((i % 13) as f32 / 8.0))
            .collect();
        let matrix = PackedMatrix::from_bf16(&weights, outputs, inputs, &threads);
        for rows in [1, 8, 128] {
            let (x, mut y) = (vec![0.5; rows * inputs], vec![0.0; rows * outputs]);
            group.throughput(match rows {
                1 => Throughput::Bytes(matrix.bytes() as u64),
                _ => Throughput::Elements((rows * inputs * outputs) as u64),
            });
            group.bench_function(BenchmarkId::new(name, rows), |b| {
                b.iter(|| matrix.matmul(&x, rows, &mut y, &threads))
            });
        }
    }
    group.finish();
}

fn quantised(c: &mut Criterion) {
    let threads = Threads::new(0);
    for (bits, title) in [(Bits::Eight, "matmul q8"), (Bits::Four, "matmul q4")] {
        let mut group = c.benchmark_group(title);
        for (name, inputs, outputs) in SHAPES {
            let row = |output: usize, row: &mut [f32]| {
                let values = row.iter_mut().enumerate();
                values.for_each(|(k, w)| *w = ((output * 7 + k * 13) % 101) as f32 / 50.0 - 1.0);
            };
            let matrix = QuantisedMatrix::from_rows(outputs, inputs, bits, &threads, row);
            for rows in [1, 8, 128] {
                let (x, mut y) = (vec![0.5; rows * inputs], vec![0.0; rows * outputs]);
                let mut quantised = QuantisedRows::new();
                group.throughput(match rows {
                    1 => Throughput::Bytes(matrix.bytes() as u64),
                    _ => Throughput::Elements((rows * inputs * outputs) as u64),
                });
                group.bench_function(BenchmarkId::new(name, rows), |b| {
                    b.iter(|| {
                        quantised.quantise(&x, rows, inputs, &threads);
                        matrix.matmul_quantised(&quantised, &mut y, &threads);
                    })
                });
            }
        }
        group.finish();
    }
}

/// Factors at about 1/16 of the bf16 bytes: a few wide ranks, many narrow ones.
fn delta(inputs: usize, outputs: usize) -> LowRankDelta {
    let budget = inputs * outputs / 8;
    let (mut v, mut u) = (Vec::new(), Vec::new());
    let mut ranks = 0;
    for (bits, share) in [(8u8, 0.1), (3, 0.4), (2, 0.5)] {
        let n = (budget as f64 * share / (lowbit::row_bytes(inputs + outputs, bits) as f64)) as usize;
        let band = |len: usize| Band {
            bits,
            ranks: n,
            codes: vec![0x5a; n * lowbit::row_bytes(len, bits)].into(),
            scales: vec![0.005; n * lowbit::groups(len)],
            zeros: vec![2; n * lowbit::groups(len)],
        };
        v.push(band(inputs));
        u.push(band(outputs));
        ranks += n;
    }
    LowRankDelta {
        inputs,
        outputs,
        s: vec![1.0; ranks],
        v,
        u,
    }
}

/// Bytes of the factors as an artifact stores them.
fn packed_bytes(delta: &LowRankDelta) -> u64 {
    let factor = |codes: usize, groups: usize, bits: u8| codes + 2 * groups + lowbit::zero_bytes(groups, bits);
    let band = |b: &Band| factor(b.codes.len(), b.zeros.len(), b.bits);
    (2 * delta.ranks() + delta.v.iter().chain(&delta.u).map(band).sum::<usize>()) as u64
}

/// Bytes that no cache holds.
const STREAMED: u64 = 96 << 20;

/// One row of one variant after another, so many that their factors come from memory; then many rows of one variant,
/// and one row each of 32 variants in one step.
fn low_rank(c: &mut Criterion) {
    let threads = Threads::new(0);
    let mut group = c.benchmark_group("low-rank 1/16");
    for (name, inputs, outputs) in SHAPES {
        let one = packed_bytes(&delta(inputs, outputs));
        let deltas: Vec<_> = (0..STREAMED.div_ceil(one)).map(|_| delta(inputs, outputs)).collect();
        let (x, mut y) = (vec![0.5; 32 * inputs], vec![0.0; 32 * outputs]);
        let mut turn = deltas.iter().cycle();
        group.throughput(Throughput::Bytes(one));
        group.bench_function(BenchmarkId::new(name, "1 row, from memory"), |b| {
            let (x, y) = (&x[..inputs], &mut y[..outputs]);
            b.iter(|| turn.next().expect("some").add_to(x, 1, y, &threads))
        });
        let steps = deltas.chunks_exact(32).map(|deltas| {
            let term = |(m, delta)| Term {
                delta,
                rows: m..m + 1,
                column: 0,
            };
            deltas.iter().enumerate().map(term).collect::<Vec<_>>()
        });
        let mut steps = steps.collect::<Vec<_>>().into_iter().cycle();
        group.throughput(Throughput::Bytes(32 * one));
        group.bench_function(BenchmarkId::new(name, "32 rows of 32 variants, from memory"), |b| {
            b.iter(|| add_terms(&x, 32, &steps.next().expect("some"), &mut y, outputs, &threads))
        });
        for rows in [8, 128] {
            let (x, mut y) = (vec![0.5; rows * inputs], vec![0.0; rows * outputs]);
            group.throughput(Throughput::Elements(
                (rows * deltas[0].ranks() * (inputs + outputs)) as u64,
            ));
            group.bench_function(BenchmarkId::new(name, format!("{rows} rows")), |b| {
                b.iter(|| deltas[0].add_to(&x, rows, &mut y, &threads))
            });
        }
    }
    group.finish();
}

/// Signs of one variant after another, one row each, from memory; then many rows of one variant, and one row each of 32
/// variants in one step.
fn sign_deltas(c: &mut Criterion) {
    let threads = Threads::new(0);
    let mut group = c.benchmark_group("signs");
    for (name, inputs, outputs) in SHAPES {
        let one = || SignDelta {
            inputs,
            outputs,
            scales: vec![0.01],
            codes: signs::pack(inputs, outputs, |output, input| (output ^ input).count_ones() % 2 == 1).into(),
        };
        let bytes = one().bytes() as u64;
        let deltas: Vec<_> = (0..STREAMED.div_ceil(bytes)).map(|_| one()).collect();
        let (x, mut y) = (vec![0.5; 32 * inputs], vec![0.0; 32 * outputs]);
        let mut turn = deltas.iter().cycle();
        group.throughput(Throughput::Bytes(bytes));
        group.bench_function(BenchmarkId::new(name, "1 row, from memory"), |b| {
            let (x, y) = (&x[..inputs], &mut y[..outputs]);
            b.iter(|| turn.next().expect("some").add_to(x, 1, y, &threads))
        });
        let steps = deltas.chunks_exact(32).map(|deltas| {
            let term = |(m, delta)| signs::Term {
                delta,
                rows: m..m + 1,
                column: 0,
            };
            deltas.iter().enumerate().map(term).collect::<Vec<_>>()
        });
        let mut steps = steps.collect::<Vec<_>>().into_iter().cycle();
        group.throughput(Throughput::Bytes(32 * bytes));
        group.bench_function(BenchmarkId::new(name, "32 rows of 32 variants, from memory"), |b| {
            b.iter(|| signs::add_terms(&x, 32, &steps.next().expect("some"), &mut y, outputs, &threads))
        });
        for rows in [8, 128] {
            let (x, mut y) = (vec![0.5; rows * inputs], vec![0.0; rows * outputs]);
            group.throughput(Throughput::Elements((rows * inputs * outputs) as u64));
            group.bench_function(BenchmarkId::new(name, format!("{rows} rows")), |b| {
                b.iter(|| deltas[0].add_to(&x, rows, &mut y, &threads))
            });
        }
    }
    group.finish();
}

/// `(name, query heads, key/value heads, head_dim)` of SmolLM2-135M and Qwen2.5-0.5B.
const HEADS: [(&str, usize, usize, usize); 2] = [("135m", 9, 3, 64), ("0.5b", 14, 2, 64)];

/// One sequence: multiply-adds of a prefill, bytes of keys and values of a decode step.
fn attention(c: &mut Criterion) {
    let threads = Threads::new(0);
    let mut group = c.benchmark_group("attention");
    for (name, heads, kv_heads, dim) in HEADS {
        for (context, rows) in [(512, 512), (1024, 1), (16_384, 1)] {
            let mut cache = PagedCache::new(context / 16, 16, kv_heads, dim);
            let pages: Vec<u32> = (0..context as u32 / 16).collect();
            let all: Vec<_> = (1..=context).map(|count| QueryRow { pages: &pages, count }).collect();
            let kv: Vec<f32> = (0..context * kv_heads * dim)
                .map(|i| (i % 251) as f32 / 125.0 - 1.0)
                .collect();
            let columns = Columns::whole(&kv, kv_heads * dim);
            cache.store(&all, columns, columns, None, &threads);
            let (queries, mut out) = (vec![0.5; rows * heads * dim], vec![0.0; rows * heads * dim]);
            let (seen, kind) = match rows {
                1 => (context, "decode"),
                _ => (context * (context + 1) / 2, "prefill"),
            };
            group.throughput(match rows {
                1 => Throughput::Bytes((4 * seen * kv_heads * dim) as u64),
                _ => Throughput::Elements((2 * seen * heads * dim) as u64),
            });
            group.bench_function(BenchmarkId::new(format!("{name} {kind}"), context), |b| {
                let (rows, queries) = (&all[context - rows..], Columns::whole(&queries, heads * dim));
                b.iter(|| attend(&cache, rows, queries, None, &mut out, &threads));
            });
        }
    }
    group.finish();
}

/// A region in which every thread has one task and waits for the others to have begun theirs: the team against rayon.
fn fork_join(c: &mut Criterion) {
    let threads = Threads::new(0);
    let count = threads.count();
    let mut group = c.benchmark_group("fork and join");
    let meet = |begun: &AtomicUsize| {
        begun.fetch_add(1, Ordering::AcqRel);
        while begun.load(Ordering::Acquire) < count {
            std::hint::spin_loop();
        }
    };
    group.bench_function("team", |b| {
        b.iter(|| {
            let begun = AtomicUsize::new(0);
            threads.for_each(count, usize::MAX, |_| meet(&begun));
        });
    });
    group.bench_function("rayon", |b| {
        b.iter(|| {
            let begun = AtomicUsize::new(0);
            threads.install(|| rayon::broadcast(|_| meet(&begun)));
        });
    });
    group.finish();
}

criterion_group!(benches, fork_join, matmul, quantised, low_rank, sign_deltas, attention);
criterion_main!(benches);
