//! What this machine can do at best: the limits that kernels are measured against.
//!
//! Each function does a known amount of work on all threads and returns it; the caller takes the time. They run on the
//! instruction set that the kernels use.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Threads;
use crate::isa::{Isa, bf16_dot, isa, vnni};
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

/// Multiply-adds of bf16 pairs on all threads, `rounds` instructions in each chain; returns the number of multiply-adds.
///
/// # Panics
/// If the processor has no AVX512_BF16.
pub fn multiply_add_bf16(rounds: usize, threads: &Threads, sink: &AtomicU64) -> usize {
    assert!(bf16_dot(), "the processor multiplies pairs of bf16");
    #[cfg(target_arch = "x86_64")]
    threads.for_each(threads.count(), usize::MAX, |task| {
        // SAFETY: the features were detected.
        let lanes = unsafe { x86::bf16_chains(rounds, task as f32) };
        keep(&[lanes], sink);
    });
    threads.count() * rounds * CHAINS * 2 * LANES
}

/// Byte multiply-adds on all threads by the instructions that the integer kernels use, `rounds` times in each chain;
/// returns their number.
pub fn multiply_add_int8(rounds: usize, threads: &Threads, sink: &AtomicU64) -> usize {
    threads.for_each(threads.count(), usize::MAX, |task| {
        #[cfg(target_arch = "x86_64")]
        if vnni() {
            // SAFETY: the features were detected.
            sink.fetch_xor(unsafe { x86::vnni_chains(rounds, task as i32) }, Ordering::Relaxed);
            return;
        } else if isa() != Isa::Portable {
            // SAFETY: the features were detected.
            sink.fetch_xor(unsafe { x86::maddubs_chains(rounds, task as i32) }, Ordering::Relaxed);
            return;
        }
        let mut acc = [[task as i32; 4 * LANES]; CHAINS];
        for round in 0..rounds {
            for acc in acc.as_flattened_mut() {
                *acc = acc.wrapping_add(i32::from(round as u8) * 3);
            }
        }
        sink.fetch_xor(
            acc.as_flattened().iter().fold(0, |a, b| a ^ *b as u64),
            Ordering::Relaxed,
        );
    });
    threads.count() * rounds * CHAINS * 4 * LANES
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::CHAINS;
    use crate::lanes::{LANES, Lanes};

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn bf16_chains(rounds: usize, start: f32) -> Lanes {
        let mut acc = [_mm512_set1_ps(start); CHAINS];
        // Two bf16 ones in each word.
        let ones = _mm512_set1_epi32(black_box(0x3f80_3f80));
        // SAFETY: 512 bits of plain data.
        let ones: __m512bh = unsafe { std::mem::transmute(ones) };
        for _ in 0..rounds {
            for acc in &mut acc {
                *acc = _mm512_dpbf16_ps(*acc, ones, ones);
            }
        }
        let sum = acc.into_iter().fold(_mm512_setzero_ps(), |a, b| _mm512_add_ps(a, b));
        let mut lanes = [0.0; LANES];
        // SAFETY: sixteen floats.
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), sum) };
        lanes
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn vnni_chains(rounds: usize, start: i32) -> u64 {
        let mut acc = [_mm512_set1_epi32(start); CHAINS];
        let codes = _mm512_set1_epi32(black_box(0x0102_0304));
        for _ in 0..rounds {
            for acc in &mut acc {
                *acc = _mm512_dpbusd_epi32(*acc, codes, codes);
            }
        }
        let sum = acc
            .into_iter()
            .fold(_mm512_setzero_si512(), |a, b| _mm512_add_epi32(a, b));
        _mm512_reduce_add_epi32(sum) as u64
    }

    /// Two vectors of 32 bytes for each of VNNI's one of 64.
    #[target_feature(enable = "avx2")]
    pub(super) fn maddubs_chains(rounds: usize, start: i32) -> u64 {
        let mut acc = [_mm256_set1_epi32(start); CHAINS];
        let mut codes = _mm256_set1_epi32(black_box(0x0102_0304));
        let ones = _mm256_set1_epi16(1);
        for _ in 0..2 * rounds {
            // Hides from the compiler that every round computes the same.
            // SAFETY: no instruction at all.
            unsafe {
                std::arch::asm!("/* {0} */", inout(ymm_reg) codes, options(pure, nomem, nostack, preserves_flags))
            };
            for acc in &mut acc {
                let pairs = _mm256_maddubs_epi16(codes, _mm256_xor_si256(codes, *acc));
                *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(pairs, ones));
            }
        }
        let sum = acc
            .into_iter()
            .fold(_mm256_setzero_si256(), |a, b| _mm256_add_epi32(a, b));
        let mut words = [0u64; 4];
        // SAFETY: 32 bytes.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), sum) };
        words.into_iter().fold(0, |a, b| a ^ b)
    }
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
