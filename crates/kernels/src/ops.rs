//! What a decoder layer does between its matrix products: norms, rotary positions, SwiGLU.

use crate::Threads;
use crate::isa::for_each_isa;
use crate::lanes;
use crate::threads::DisjointRows;

/// Rows of one task: enough to pay for handing it to a thread.
const TASK_ROWS: usize = 8;

/// RMS norm of each row of `x` (`[rows, weight.len()]`) into `out`: `x / √(mean(x²) + epsilon) · weight`.
///
/// # Panics
/// If `x` and `out` are not whole rows of the same number.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32], threads: &Threads) {
    assert_eq!(x.len(), out.len(), "x and out are [rows, width]");
    for_each_rows(out, weight.len(), threads, |first, out| {
        rms_norm_rows(&x[first..first + out.len()], weight, epsilon, out);
    });
}

for_each_isa! {
    fn rms_norm_rows(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        let width = weight.len();
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let scale = 1.0 / (lanes::dot(x, x) / width as f32 + epsilon).sqrt();
            for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
                *out = x * scale * w;
            }
        }
    }
}

for_each_isa! {
    /// RMS norm of each row of `x` in place.
    pub fn rms_norm_in_place(x: &mut [f32], weight: &[f32], epsilon: f32) {
        let width = weight.len();
        for x in x.chunks_exact_mut(width) {
            let scale = 1.0 / (lanes::dot(x, x) / width as f32 + epsilon).sqrt();
            for (x, w) in x.iter_mut().zip(weight) {
                *x = *x * scale * w;
            }
        }
    }
}

/// Calls `work(index of the first element, rows)` for blocks of rows of `width` elements, spread over the threads.
fn for_each_rows(matrix: &mut [f32], width: usize, threads: &Threads, work: impl Fn(usize, &mut [f32]) + Sync) {
    assert!(
        width > 0 && matrix.len().is_multiple_of(width),
        "{} elements are whole rows of {width}",
        matrix.len()
    );
    let (rows, cost) = (matrix.len() / width, matrix.len());
    let matrix = DisjointRows::new(matrix, width);
    threads.for_each(rows.div_ceil(TASK_ROWS), cost, |task| {
        let first = task * TASK_ROWS;
        // SAFETY: tasks own different rows.
        let block = unsafe { matrix.rows(first, (rows - first).min(TASK_ROWS)) };
        work(first * width, block);
    });
}

for_each_isa! {
    /// Rotates the pairs `(i, i + d/2)` of each head of `x` (`[heads, d]`) by angles given as `cos` and `sin` (`d/2`).
    pub fn rotate(x: &mut [f32], cos: &[f32], sin: &[f32]) {
        let half = cos.len();
        for head in x.chunks_exact_mut(2 * half) {
            let (a, b) = head.split_at_mut(half);
            for (((a, b), c), s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
            }
        }
    }
}

/// `out[m] += x[m]` for rows of `width` elements.
///
/// # Panics
/// If `x` and `out` are not whole rows of the same number.
pub fn add_rows(x: &[f32], out: &mut [f32], width: usize, threads: &Threads) {
    assert_eq!(x.len(), out.len(), "x and out are [rows, width]");
    for_each_rows(out, width, threads, |first, out| add(&x[first..first + out.len()], out));
}

for_each_isa! {
    /// `out += x`.
    pub fn add(x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out += x;
        }
    }
}

/// SwiGLU of each row: `out = silu(gate) · up`; `gate_up` is `[rows, 2 · width]`, gate first, `out` `[rows, width]`.
///
/// # Panics
/// If `gate_up` and `out` do not have as many rows.
pub fn swiglu(gate_up: &[f32], out: &mut [f32], width: usize, threads: &Threads) {
    assert_eq!(gate_up.len(), 2 * out.len(), "gate_up is [rows, 2 · width]");
    for_each_rows(out, width, threads, |first, out| {
        let gate_up = gate_up[2 * first..].chunks_exact(2 * width);
        for (gate_up, out) in gate_up.zip(out.chunks_exact_mut(width)) {
            let (gate, up) = gate_up.split_at(width);
            swiglu_row(gate, up, out);
        }
    });
}

for_each_isa! {
    fn swiglu_row(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((out, g), u) in out.iter_mut().zip(gate).zip(up) {
            *out = *g / (1.0 + lanes::exp(-*g)) * u;
        }
    }
}

for_each_isa! {
    /// Dot product in the lanes' fixed order.
    pub fn dot(a: &[f32], b: &[f32]) -> f32 {
        lanes::dot(a, b)
    }
}

/// Frequencies of the rotary position encoding, one for each pair of a head.
#[derive(Debug, Clone)]
pub struct Rope {
    frequencies: Vec<f32>,
}

impl Rope {
    /// From the frequencies, in radians a position.
    pub fn new(frequencies: Vec<f32>) -> Self {
        Self { frequencies }
    }

    /// Pairs of a head.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Cosines and sines of `position`, each [`Rope::pairs`] long.
    pub fn angles(&self, position: usize, cos: &mut [f32], sin: &mut [f32]) {
        for ((f, c), s) in self.frequencies.iter().zip(cos).zip(sin) {
            (*s, *c) = (position as f32 * f).sin_cos();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rms_norm_gives_unit_mean_square() {
        let x: Vec<f32> = (0..200).map(|i| (i % 17) as f32 - 8.0).collect();
        let weight = vec![2.0; 100];
        let mut out = vec![0.0; 200];
        rms_norm(&x, &weight, 0.0, &mut out, &Threads::new(2));
        for row in out.chunks(100) {
            let mean = row.iter().map(|v| v * v).sum::<f32>() / 100.0;
            assert!((mean - 4.0).abs() < 1e-4);
        }
        let mut same = x;
        rms_norm_in_place(&mut same, &weight, 0.0);
        assert_eq!(same, out);
    }

    #[test]
    fn rotation_keeps_lengths_and_composes() {
        let rope = Rope::new(vec![1.0, 0.1]);
        let turn = |x: &mut [f32], position| {
            let (mut cos, mut sin) = ([0.0; 2], [0.0; 2]);
            rope.angles(position, &mut cos, &mut sin);
            rotate(x, &cos, &sin);
        };
        let (mut twice, mut once) = ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]);
        turn(&mut twice, 3);
        turn(&mut twice, 4);
        turn(&mut once, 7);
        for (a, b) in twice.iter().zip(&once) {
            assert!((a - b).abs() < 1e-5);
        }
        // Pair (0, 2) turned by 7 radians.
        let (s, c) = 7.0f32.sin_cos();
        assert!((once[0] - (c - 3.0 * s)).abs() < 1e-5 && (once[2] - (3.0 * c + s)).abs() < 1e-5);
    }

    #[test]
    fn swiglu_matches_its_definition() {
        // Two rows of two.
        let gate_up = [-80.0, -1.0, 1.0, 2.0, 0.0, 2.0, 3.0, 4.0];
        let mut out = [0.0; 4];
        swiglu(&gate_up, &mut out, 2, &Threads::new(1));
        let expected = [0.0, -0.537_882_8, 0.0, 7.046_377];
        for (g, e) in out.iter().zip(expected) {
            assert!((g - e).abs() < 1e-5, "{g} {e}");
        }
    }

    #[test]
    fn rows_are_the_same_in_one_thread_and_in_many() {
        let x: Vec<f32> = (0..640 * 100).map(|i| (i * 7919 % 1013) as f32 / 500.0 - 1.0).collect();
        let run = |threads: &Threads| {
            let (mut normed, mut gated) = (vec![0.0; x.len()], vec![0.0; x.len() / 2]);
            rms_norm(&x, &[0.5; 100], 1e-5, &mut normed, threads);
            swiglu(&normed, &mut gated, 50, threads);
            add_rows(&x, &mut normed, 100, threads);
            (normed, gated)
        };
        assert_eq!(run(&Threads::new(1)), run(&Threads::new(3)));
    }
}
