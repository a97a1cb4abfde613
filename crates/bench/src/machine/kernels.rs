//! Each kernel's share of the machine's limits.

use std::sync::atomic::{AtomicUsize, Ordering};

use deltamux_kernels::Threads;
use deltamux_kernels::attention::{self, Columns, PagedCache, QueryRow};

use super::limits::{Limits, Machine};
use super::shapes::{Shape, of_models};
use super::subjects::{Peak, Subject};
use super::timing::{median, seconds};

/// What to measure.
#[derive(Debug, Clone)]
pub struct KernelOptions {
    /// Models whose products are measured, of [`super::models`].
    pub models: Vec<String>,
    /// Numbers of rows.
    pub rows: Vec<usize>,
    /// Timed rounds that each median is taken of.
    pub rounds: usize,
    /// Threads; 0 means one for each core.
    pub threads: usize,
}

/// What was measured.
#[derive(Debug, serde::Serialize)]
pub struct KernelReport {
    /// The machine's limits in the same run.
    pub machine: Machine,
    /// A parallel region in which all threads meet and part, microseconds.
    pub fork_join_us: f64,
    /// One entry a kernel, shape and number of rows.
    pub kernels: Vec<KernelPoint>,
}

/// What a kernel is bound by at a number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Reading its weights or keys and values.
    Memory,
    /// Its multiply-adds.
    Compute,
}

/// One kernel on one shape with one number of rows, medians.
#[derive(Debug, serde::Serialize)]
pub struct KernelPoint {
    /// Model and product, such as `qwen2.5-0.5b gate_up`.
    pub name: String,
    /// Rows of activations.
    pub m: usize,
    /// Inputs; for attention the positions that are seen.
    pub k: usize,
    /// Outputs; for attention the width of the queries.
    pub n: usize,
    /// Precision of weights (and activations where they are not f32), or `f16` keys and values.
    pub dtype: &'static str,
    /// Bytes read and written, GB/s.
    pub gbps: f64,
    /// Two a multiply-add of the product, GFLOP/s.
    pub gflops: f64,
    /// The limit that this many rows run into first.
    pub bound: Bound,
    /// Time that this limit allows over the time taken; limits measured before and after each timed round.
    pub share_of_limit: f64,
}

/// Seconds of a timed round, about.
const ROUND: f64 = 0.02;

/// Runs all kernels; `progress(done, total)` is called after each.
pub fn kernels(options: &KernelOptions, progress: &dyn Fn(usize, usize)) -> KernelReport {
    let threads = Threads::new(options.threads);
    let mut suite = Suite {
        limits: Limits::new(threads.clone()),
        rounds: options.rounds.max(1),
        threads,
    };
    let fork_join_us = suite.fork_join();
    let mut points = Vec::new();
    let shapes = of_models(&options.models);
    let (mut done, total) = (0, shapes.len() + ATTENTION.len());
    for shape in &shapes {
        for subject in Subject::of(shape, &suite.threads) {
            let mut subject = subject();
            points.extend(
                options
                    .rows
                    .iter()
                    .map(|rows| suite.product(shape, &mut subject, *rows)),
            );
        }
        done += 1;
        progress(done, total);
    }
    for case in &ATTENTION {
        points.push(suite.attention(case));
        done += 1;
        progress(done, total);
    }
    let machine = suite.limits.machine();
    KernelReport {
        machine,
        fork_join_us,
        kernels: points,
    }
}

/// `(name, rows of one sequence, positions before them, query heads, key/value heads)`, heads 64 wide.
const ATTENTION: [(&str, usize, usize, usize, usize); 5] = [
    ("qwen2.5-0.5b attention, decode", 1, 1_023, 14, 2),
    ("qwen2.5-0.5b attention, decode", 1, 16_383, 14, 2),
    ("qwen2.5-0.5b attention, prefill", 512, 0, 14, 2),
    ("smollm2-135m attention, prefill", 512, 0, 9, 3),
    ("qwen2.5-0.5b attention, prefill", 512, 15_872, 14, 2),
];

/// Width of a head.
const HEAD: usize = 64;

/// KV caches that decode reads in turn, bytes.
const CACHES: usize = 128 << 20;

struct Suite {
    limits: Limits,
    rounds: usize,
    threads: Threads,
}

/// Work of one call.
#[derive(Clone, Copy)]
struct Work {
    bytes: usize,
    multiply_adds: usize,
    /// Operations of the peak's kind.
    operations: usize,
    peak: Peak,
}

/// Bytes that one reading of a subject's memory takes.
const READING: usize = 128 << 20;

/// What a subject is asked to do.
enum Step<'a> {
    /// Its work, on the next copy of its weights.
    Run,
    /// Read the memory that its next calls read, for the limit: bytes a second.
    Read(&'a mut Limits, &'a mut f64),
}

impl Suite {
    /// Microseconds of a region in which each thread has one task and waits for the others to have begun theirs: waking,
    /// meeting and joining.
    fn fork_join(&self) -> f64 {
        const REGIONS: usize = 1000;
        let count = self.threads.count();
        let meet = || {
            let begun = AtomicUsize::new(0);
            self.threads.for_each(count, usize::MAX, |_| {
                begun.fetch_add(1, Ordering::AcqRel);
                while begun.load(Ordering::Acquire) < count {
                    std::hint::spin_loop();
                }
            });
        };
        let times = (0..self.rounds).map(|_| seconds(|| (0..REGIONS).for_each(|_| meet())) / REGIONS as f64 * 1e6);
        median(times.collect()).unwrap_or_default()
    }

    fn product(&mut self, shape: &Shape, subject: &mut Subject, rows: usize) -> KernelPoint {
        let threads = self.threads.clone();
        let x = vec![0.5; rows * shape.inputs];
        let mut y = vec![0.0; rows * shape.outputs];
        let work = Work {
            bytes: subject.bytes + 4 * (x.len() + y.len()),
            multiply_adds: rows * subject.multiply_adds,
            operations: rows * subject.operations,
            peak: subject.peak,
        };
        let dtype = subject.dtype;
        let mut call = |step: Step<'_>| match step {
            Step::Run => subject.run(&x, rows, &mut y, &threads),
            Step::Read(limits, bandwidth) => {
                let coming = subject.coming(READING);
                *bandwidth = match coming.is_empty() {
                    true => limits.read(),
                    false => limits.read_of(&coming),
                };
            }
        };
        let (gbps, gflops, bound, share_of_limit) = self.time(work, &mut call);
        KernelPoint {
            name: format!("{} {}", shape.model, shape.name),
            m: rows,
            k: shape.inputs,
            n: shape.outputs,
            dtype,
            gbps,
            gflops,
            bound,
            share_of_limit,
        }
    }

    fn attention(&mut self, case: &(&'static str, usize, usize, usize, usize)) -> KernelPoint {
        let &(name, rows, before, heads, kv_heads) = case;
        let (positions, width, kv_width) = (before + rows, heads * HEAD, kv_heads * HEAD);
        let bytes = 2 * 2 * positions * kv_width;
        let pages = positions.div_ceil(16);
        let copies = if rows == 1 { CACHES.div_ceil(bytes) } else { 1 };
        let mut cache = PagedCache::new(pages * copies, 16, kv_heads, HEAD);
        let threads = self.threads.clone();
        let tables: Vec<Vec<u32>> = (0..copies)
            .map(|c| (c * pages..(c + 1) * pages).map(|p| p as u32).collect())
            .collect();
        let ones = vec![0.25; kv_width];
        for table in &tables {
            for position in 0..positions {
                let row = [QueryRow {
                    pages: table,
                    count: position + 1,
                }];
                let columns = Columns::whole(&ones, kv_width);
                cache.store(&row, columns, columns, None, &threads);
            }
        }
        let (queries, mut out) = (vec![0.5; rows * width], vec![0.0; rows * width]);
        let seen: usize = (1..=rows).map(|row| before + row).sum();
        let work = Work {
            bytes: bytes + 8 * queries.len(),
            multiply_adds: 2 * seen * width,
            operations: 2 * seen * width,
            peak: Peak::F32,
        };
        let mut turn = 0;
        let mut call = |step: Step<'_>| {
            if let Step::Read(limits, bandwidth) = step {
                *bandwidth = limits.read();
                return;
            }
            turn = (turn + 1) % copies;
            let rows: Vec<QueryRow<'_>> = (1..=rows)
                .map(|row| QueryRow {
                    pages: &tables[turn],
                    count: before + row,
                })
                .collect();
            let queries = Columns::whole(&queries, width);
            attention::attend(&cache, &rows, queries, None, &mut out, &threads);
        };
        let (gbps, gflops, bound, share_of_limit) = self.time(work, &mut call);
        KernelPoint {
            name: name.to_owned(),
            m: rows,
            k: positions,
            n: width,
            dtype: "f16",
            gbps,
            gflops,
            bound,
            share_of_limit,
        }
    }

    /// `(GB/s, GFLOP/s, bound, share of the limit)` of repeated calls.
    fn time(&mut self, work: Work, call: &mut dyn FnMut(Step<'_>)) -> (f64, f64, Bound, f64) {
        let once = seconds(|| call(Step::Run)).max(1e-9);
        let calls = (ROUND / once).ceil().clamp(1.0, 1e5) as usize;
        let (mut times, mut shares) = (Vec::new(), Vec::new());
        let mut memory = 0usize;
        for _ in 0..self.rounds {
            let before = self.allowed(work, call);
            let time = seconds(|| (0..calls).for_each(|_| call(Step::Run))) / calls as f64;
            let after = self.allowed(work, call);
            let (read, compute) = ((before.0 + after.0) / 2.0, (before.1 + after.1) / 2.0);
            memory += usize::from(read > compute);
            times.push(time);
            shares.push(read.max(compute) / time);
        }
        let time = median(times).unwrap_or_default();
        let bound = if 2 * memory > self.rounds {
            Bound::Memory
        } else {
            Bound::Compute
        };
        (
            work.bytes as f64 / time / 1e9,
            2.0 * work.multiply_adds as f64 / time / 1e9,
            bound,
            median(shares).unwrap_or_default(),
        )
    }

    /// Seconds that reading and arithmetic allow for one call now.
    fn allowed(&mut self, work: Work, call: &mut dyn FnMut(Step<'_>)) -> (f64, f64) {
        let peak = match work.peak {
            Peak::F32 => self.limits.f32(),
            Peak::Bf16 => self.limits.bf16().unwrap_or(f64::INFINITY),
            Peak::Int8 => self.limits.int8(),
        };
        let mut bandwidth = f64::NAN;
        call(Step::Read(&mut self.limits, &mut bandwidth));
        (work.bytes as f64 / bandwidth, work.operations as f64 / peak)
    }
}
