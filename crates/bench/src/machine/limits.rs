//! Read bandwidth and arithmetic peaks.

use std::sync::atomic::AtomicU64;

use deltamux_kernels::{AlignedBytes, Threads, isa, limits};

use super::timing::{median, seconds};

/// Bytes of the buffer that is read: many times the last-level cache.
const BUFFER: usize = 1 << 30;

/// Bytes of one reading between two timed calls, a window of the buffer.
const READING: usize = 256 << 20;

/// Multiply-adds of each chain in one reading of a peak; a few milliseconds.
const ROUNDS: usize = 1 << 18;

/// Readings that a machine's limit is the median of.
const READINGS: usize = 9;

/// Measures this machine's limits whenever asked.
pub struct Limits {
    buffer: AlignedBytes,
    next: usize,
    threads: Threads,
    sink: AtomicU64,
}

/// The limits of one run, medians.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Machine {
    /// Threads used.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub isa: String,
    /// Reading memory with all threads, GB/s.
    pub read_gbps: f64,
    /// f32 fused multiply-adds with all threads, GFLOP/s (two a multiply-add).
    pub f32_gflops: f64,
    /// Multiply-adds of bf16 pairs, GFLOP/s; absent without AVX512_BF16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bf16_gflops: Option<f64>,
    /// Byte multiply-adds (VNNI, or `maddubs` with its widening sum), Gop/s (two a multiply-add).
    pub int8_gops: f64,
}

impl Limits {
    /// Sets the buffer aside.
    pub fn new(threads: Threads) -> Self {
        let mut buffer = AlignedBytes::zeroed(BUFFER);
        // Written once, so that every page is memory of its own.
        for page in buffer.chunks_mut(4096) {
            page[0] = 1;
        }
        Self {
            buffer,
            next: 0,
            threads,
            sink: AtomicU64::new(0),
        }
    }

    /// Read bandwidth now, bytes a second.
    pub fn read(&mut self) -> f64 {
        let window = &self.buffer[self.next..self.next + READING];
        self.next = (self.next + READING) % BUFFER;
        let mut bytes = 0;
        let time = seconds(|| bytes = limits::read(bytemuck::cast_slice(window), &self.threads, &self.sink));
        bytes as f64 / time
    }

    /// Bandwidth now of reading these bytes, bytes a second: the limit of a kernel that reads the same memory. Where
    /// memory lies physically changes how fast it is, by up to two on a virtual machine.
    pub fn read_of(&self, parts: &[&[u8]]) -> f64 {
        let mut bytes = 0;
        let time = seconds(|| {
            for part in parts {
                // Packed weights are aligned; what does not fill a float at the end is left out.
                let floats = bytemuck::cast_slice(&part[..part.len() / 4 * 4]);
                bytes += limits::read(floats, &self.threads, &self.sink);
            }
        });
        bytes as f64 / time
    }

    /// f32 multiply-adds now, a second.
    pub fn f32(&self) -> f64 {
        self.peak(limits::multiply_add)
    }

    /// Multiply-adds of bf16 pairs now, a second; `None` if the processor has no such instruction.
    pub fn bf16(&self) -> Option<f64> {
        isa::bf16_dot().then(|| self.peak(limits::multiply_add_bf16))
    }

    /// Byte multiply-adds now, a second.
    pub fn int8(&self) -> f64 {
        self.peak(limits::multiply_add_int8)
    }

    fn peak(&self, work: fn(usize, &Threads, &AtomicU64) -> usize) -> f64 {
        let mut done = 0;
        let time = seconds(|| done = work(ROUNDS, &self.threads, &self.sink));
        done as f64 / time
    }

    /// All limits, each the median of several readings.
    pub fn machine(&mut self) -> Machine {
        let mut middle = |read: &mut dyn FnMut(&mut Self) -> f64| {
            median((0..READINGS).map(|_| read(self)).collect()).unwrap_or_default()
        };
        Machine {
            read_gbps: middle(&mut Self::read) / 1e9,
            f32_gflops: middle(&mut |l| l.f32()) * 2.0 / 1e9,
            bf16_gflops: isa::bf16_dot().then(|| middle(&mut |l| l.peak(limits::multiply_add_bf16)) * 2.0 / 1e9),
            int8_gops: middle(&mut |l| l.int8()) * 2.0 / 1e9,
            threads: self.threads.count(),
            isa: isa::name(),
        }
    }
}
