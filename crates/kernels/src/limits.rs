//! What this machine can do at best: the limits that kernels are measured against.
//!
//! Each function does a known amount of work on all threads and returns it; the caller takes the time. They run on the
//! instruction set that the kernels use.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Threads;
use crate::lanes::{LANES, Lanes};
use crate::vector::{Vector, for_each_vector};

/// Parts that a buffer is read in, several for each thread so that a slow one does not decide.
const PARTS: usize = 64;

/// Reads `buffer` once with all threads; returns the bytes read. `sink` keeps the reads from being optimised away.
pub fn read(buffer: &[f32], threads: &Threads, sink: &AtomicU64) -> usize {
    let part = buffer.len() / PARTS;
    threads.for_each(PARTS, buffer.len(), |i| {
        let mut sums = [[0.0; LANES]; STREAM];
        sum(&buffer[i * part..(i + 1) * part], &mut sums);
        keep(&sums, sink);
    });
    part * PARTS * size_of::<f32>()
}

/// Vectors that the reading loop takes at a time.
const STREAM: usize = 4;

for_each_vector! {
    fn sum<vector V>(values: &[f32], sums: &mut [Lanes; STREAM]) {
        let (mut acc, one) = ([V::splat(0.0); STREAM], V::splat(1.0));
        for block in values.as_chunks::<LANES>().0.as_chunks::<STREAM>().0 {
            for (acc, values) in acc.iter_mut().zip(block) {
                *acc = acc.fma(V::load(values), one);
            }
        }
        for (acc, sums) in acc.into_iter().zip(sums) {
            acc.store(sums);
        }
    }
}

fn keep(sums: &[Lanes], sink: &AtomicU64) {
    let sum: f32 = sums.as_flattened().iter().sum();
    sink.fetch_xor(u64::from(sum.to_bits()), Ordering::Relaxed);
}

/// Chains of dependent multiply-adds that a core interleaves: latency × pipes fit in.
const CHAINS: usize = 10;

/// Fused multiply-adds in f32 on all threads, `rounds` of them in each chain; returns their number.
pub fn multiply_add(rounds: usize, threads: &Threads, sink: &AtomicU64) -> usize {
    let tasks = threads.count();
    threads.for_each(tasks, usize::MAX, |task| {
        let mut acc = [[task as f32; LANES]; CHAINS];
        fma_chains(rounds, &mut acc);
        keep(&acc, sink);
    });
    tasks * rounds * CHAINS * LANES
}

for_each_vector! {
    fn fma_chains<vector V>(rounds: usize, acc: &mut [Lanes; CHAINS]) {
        // With half the registers, half the chains at a time.
        if V::REGISTERS >= 2 * CHAINS {
            chains::<V, CHAINS>(rounds, acc);
        } else {
            let (first, second) = acc.split_at_mut(CHAINS / 2);
            chains::<V, { CHAINS / 2 }>(rounds, first);
            chains::<V, { CHAINS / 2 }>(rounds, second);
        }
    }
}

#[inline(always)]
fn chains<V: Vector, const N: usize>(rounds: usize, acc: &mut [Lanes]) {
    let mut sums = [V::splat(0.0); N];
    for (sum, acc) in sums.iter_mut().zip(acc.iter()) {
        *sum = V::load(acc);
    }
    let (a, b) = (
        V::splat(std::hint::black_box(0.001)),
        V::splat(std::hint::black_box(0.999)),
    );
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = sum.fma(a, b);
        }
    }
    for (sum, acc) in sums.into_iter().zip(acc) {
        sum.store(acc);
    }
}
