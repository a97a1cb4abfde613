//! Throughput of the hot kernels, in bytes of packed weights for one row and in multiply-adds for many.
//!
//! `cargo bench -p deltamux-kernels`; compare with the machine's limits measured in the same hour.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use deltamux_kernels::attention::{PagedCache, QueryRow, attend};
use deltamux_kernels::lowrank::Band;
use deltamux_kernels::{LowRankDelta, PackedMatrix, Threads, lowbit};
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

/// Factors at about 1/16 of the bf16 bytes: a few wide ranks, many narrow ones.
fn delta(inputs: usize, outputs: usize) -> LowRankDelta {
    let budget = inputs * outputs / 8;
    let mut bands = Vec::new();
    let mut ranks = 0;
    for (bits, share) in [(8u8, 0.1), (3, 0.4), (2, 0.5)] {
        let n = (budget as f64 * share / (lowbit::row_bytes(inputs + outputs, bits) as f64)) as usize;
        let factor = |len: usize| {
            let groups = n * lowbit::groups(len);
            (
                vec![0x5a; n * lowbit::row_bytes(len, bits)].into(),
                vec![0.01; groups],
                vec![1; groups],
            )
        };
        let (v_codes, v_scales, v_zeros) = factor(inputs);
        let (u_codes, u_scales, u_zeros) = factor(outputs);
        bands.push(Band {
            bits,
            ranks: n,
            v_codes,
            v_scales,
            v_zeros,
            u_codes,
            u_scales,
            u_zeros,
        });
        ranks += n;
    }
    LowRankDelta {
        inputs,
        outputs,
        s: vec![1.0; ranks],
        bands,
    }
}

fn low_rank(c: &mut Criterion) {
    let threads = Threads::new(0);
    let mut group = c.benchmark_group("low-rank 1/16");
    for (name, inputs, outputs) in SHAPES {
        let delta = delta(inputs, outputs);
        for rows in [1, 8, 128] {
            let (x, mut y) = (vec![0.5; rows * inputs], vec![0.0; rows * outputs]);
            group.throughput(Throughput::Bytes(delta.bytes() as u64));
            group.bench_function(BenchmarkId::new(name, rows), |b| {
                b.iter(|| delta.add_to(&x, rows, &mut y, &threads))
            });
        }
    }
    group.finish();
}

fn attention(c: &mut Criterion) {
    let threads = Threads::new(0);
    let mut group = c.benchmark_group("attention, 9 heads, 3 kv heads, 64 wide");
    for context in [128, 1024] {
        let mut keys = PagedCache::new(context / 16, 16, 3, 64);
        let pages: Vec<u32> = (0..context as u32 / 16).collect();
        for position in 0..context {
            keys.store(&pages, position, &[0.25; 3 * 64]);
        }
        let values = keys.clone();
        let (queries, mut out) = (vec![0.5; 9 * 64], vec![0.0; 9 * 64]);
        let row = QueryRow {
            pages: &pages,
            count: context,
        };
        group.throughput(Throughput::Bytes((2 * context * 3 * 64 * 2) as u64));
        group.bench_function(BenchmarkId::from_parameter(context), |b| {
            b.iter(|| attend(&keys, &values, &[row], &queries, &mut out, &threads));
        });
    }
    group.finish();
}

criterion_group!(benches, matmul, low_rank, attention);
criterion_main!(benches);
