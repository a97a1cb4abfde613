//! The kernels that are measured, each with as many weights as no cache holds.

use deltamux_kernels::lowrank::Band;
use deltamux_kernels::{AlignedBytes, Bits, LowRankDelta, PackedMatrix, SignDelta, Threads, lowbit, signs};

use super::shapes::Shape;

/// Weights of one subject, many times the last-level cache.
const STREAMED: usize = 256 << 20;

/// What a subject's arithmetic is bound by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peak {
    F32,
    Bf16,
    Int8,
}

/// A kernel on weights that differ from call to call, so that they come from memory.
pub(super) struct Subject {
    pub(super) dtype: &'static str,
    pub(super) peak: Peak,
    /// Operations of the peak's kind for one row.
    pub(super) operations: usize,
    /// Bytes of one copy's weights.
    pub(super) bytes: usize,
    /// Multiply-adds of one row.
    pub(super) multiply_adds: usize,
    weights: Weights,
    next: usize,
}

enum Weights {
    Matrices(Vec<PackedMatrix>),
    Deltas(Vec<LowRankDelta>),
    Signs(Vec<SignDelta>),
}

impl Subject {
    /// All kernels that this machine has for a shape.
    pub(super) fn of(shape: &Shape, threads: &Threads) -> Vec<Box<dyn Fn() -> Subject>> {
        let shape = *shape;
        let dense = move |dtype, peak, make: fn(&Shape, &Threads) -> PackedMatrix| {
            let threads = threads.clone();
            Box::new(move || {
                let first = make(&shape, &threads);
                let copies = STREAMED.div_ceil(first.bytes());
                let mut matrices = vec![first];
                matrices.extend((1..copies).map(|_| make(&shape, &threads)));
                Subject {
                    dtype,
                    peak,
                    operations: shape.inputs * shape.outputs,
                    bytes: matrices[0].bytes(),
                    multiply_adds: shape.inputs * shape.outputs,
                    weights: Weights::Matrices(matrices),
                    next: 0,
                }
            }) as Box<dyn Fn() -> Subject>
        };
        let mut subjects = vec![dense("bf16", Peak::F32, bf16)];
        if deltamux_kernels::isa::bf16_dot() {
            subjects.push(dense("bf16 x bf16", Peak::Bf16, |shape, threads| {
                bf16(shape, threads)
                    .with_bf16_activations()
                    .expect("the processor multiplies pairs of bf16")
            }));
        }
        subjects.push(dense("q8", Peak::Int8, |shape, threads| {
            quantised(Bits::Eight, shape, threads)
        }));
        subjects.push(dense("q4", Peak::Int8, |shape, threads| {
            quantised(Bits::Four, shape, threads)
        }));
        subjects.push(Box::new(move || low_rank(&shape)));
        subjects.push(Box::new(move || sign_deltas(&shape)));
        subjects
    }

    /// Bytes of the weights that the coming calls read, about as many as one reading of the limit takes. None for
    /// differences: they are pieces of some 50 KB, and reading these one by one would measure less than the limit.
    pub(super) fn coming(&self, bytes: usize) -> Vec<&[u8]> {
        let count = bytes.div_ceil(self.bytes.max(1));
        match &self.weights {
            Weights::Matrices(matrices) => {
                let coming = matrices
                    .iter()
                    .cycle()
                    .skip(self.next + 1)
                    .take(count.min(matrices.len()));
                coming.map(|matrix| &matrix.packed()[..]).collect()
            }
            Weights::Deltas(_) | Weights::Signs(_) => Vec::new(),
        }
    }

    /// Multiplies `x`, `[rows, inputs]`, with the next copy of the weights.
    pub(super) fn run(&mut self, x: &[f32], rows: usize, y: &mut [f32], threads: &Threads) {
        match &self.weights {
            Weights::Matrices(matrices) => {
                self.next = (self.next + 1) % matrices.len();
                matrices[self.next].matmul(x, rows, y, threads);
            }
            Weights::Deltas(deltas) => {
                self.next = (self.next + 1) % deltas.len();
                deltas[self.next].add_to(x, rows, y, threads);
            }
            Weights::Signs(deltas) => {
                self.next = (self.next + 1) % deltas.len();
                deltas[self.next].add_to(x, rows, y, threads);
            }
        }
    }
}

fn bf16(shape: &Shape, threads: &Threads) -> PackedMatrix {
    let mut bytes = AlignedBytes::zeroed(2 * shape.inputs * shape.outputs);
    // Numbers between 1 and 2: neither subnormal nor ever infinite in a sum.
    for (i, pair) in bytes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        *pair = [(i * 37 % 128) as u8, 0x3f];
    }
    PackedMatrix::from_bf16_bytes(&bytes, shape.outputs, shape.inputs, threads)
}

fn quantised(bits: Bits, shape: &Shape, threads: &Threads) -> PackedMatrix {
    PackedMatrix::quantised(bits, shape.outputs, shape.inputs, threads, |output, row| {
        for (k, w) in row.iter_mut().enumerate() {
            *w = ((output * 31 + k * 37) % 127) as f32 / 64.0 - 1.0;
        }
    })
}

/// Shares of the bytes at each width about as PrinMix chooses them at 1/16.
const WIDTHS: [(u8, f64); 3] = [(8, 0.1), (3, 0.4), (2, 0.5)];

/// Factors at 1/16 of the bytes in bf16.
fn low_rank(shape: &Shape) -> Subject {
    let &Shape { inputs, outputs, .. } = shape;
    let budget = (inputs * outputs / 8) as f64;
    let ranks = WIDTHS.map(|(bits, share)| {
        let bytes = lowbit::row_bytes(inputs, bits) + lowbit::row_bytes(outputs, bits);
        let groups = lowbit::groups(inputs) + lowbit::groups(outputs);
        (bits, (budget * share / (bytes + 2 * groups) as f64).max(1.0) as usize)
    });
    let one = || {
        let bands = |len: usize| -> Vec<Band> {
            let band = |&(bits, ranks): &(u8, usize)| {
                let groups = ranks * lowbit::groups(len);
                let mut codes = AlignedBytes::zeroed(ranks * lowbit::row_bytes(len, bits));
                codes
                    .iter_mut()
                    .enumerate()
                    .for_each(|(i, code)| *code = (i * 89) as u8);
                Band {
                    bits,
                    ranks,
                    codes: codes.into(),
                    scales: vec![0.005; groups],
                    zeros: vec![1 << bits; groups],
                }
            };
            ranks.iter().map(band).collect()
        };
        LowRankDelta {
            inputs,
            outputs,
            s: vec![1.0; ranks.iter().map(|r| r.1).sum()],
            v: bands(inputs),
            u: bands(outputs),
        }
    };
    let first = one();
    let bytes = first.bytes();
    let per_band = |band: &Band| {
        // Codes of 8 and 4 bits are multiplied with both bytes of an activation.
        let products = if band.bits > 3 { 2 } else { 1 };
        (band.ranks, products)
    };
    let multiply_adds = first.ranks() * (inputs + outputs);
    let operations = [(&first.v, inputs), (&first.u, outputs)]
        .iter()
        .flat_map(|(bands, len)| {
            bands
                .iter()
                .map(per_band)
                .map(move |(ranks, products)| ranks * products * len)
        })
        .sum();
    let mut deltas = vec![first];
    deltas.extend((1..STREAMED.div_ceil(bytes)).map(|_| one()));
    Subject {
        dtype: "delta 1/16",
        peak: Peak::Int8,
        operations,
        bytes,
        multiply_adds,
        weights: Weights::Deltas(deltas),
        next: 0,
    }
}

/// Signs with one scale, 1 bit a weight.
fn sign_deltas(shape: &Shape) -> Subject {
    let &Shape { inputs, outputs, .. } = shape;
    let one = || {
        let len = signs::code_bytes(inputs, outputs).expect("the signs fit in memory");
        let mut codes = AlignedBytes::zeroed(len);
        codes
            .iter_mut()
            .enumerate()
            .for_each(|(i, code)| *code = (i * 89) as u8);
        SignDelta {
            inputs,
            outputs,
            scales: vec![0.005],
            codes: codes.into(),
        }
    };
    let first = one();
    let bytes = first.bytes();
    let mut deltas = vec![first];
    deltas.extend((1..STREAMED.div_ceil(bytes)).map(|_| one()));
    Subject {
        dtype: "signs",
        peak: Peak::F32,
        // One addition for the look-up of four products; a multiply-add of the peak is one operation.
        operations: inputs * outputs / 4,
        bytes,
        multiply_adds: inputs * outputs,
        weights: Weights::Signs(deltas),
        next: 0,
    }
}
