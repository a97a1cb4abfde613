//! The packed weights.

use half::bf16;

use super::tile::{Bf16Pair, F32Pair};
use super::{PANEL, Product, multiply};
use crate::isa::bf16_dot;
use crate::quantised::{Bits, QuantisedMatrix};
use crate::threads::DisjointRows;
use crate::{ALIGNMENT, AlignedBytes, Bytes, Threads};

/// How the weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// bf16, exact; activations in f32.
    Bf16,
    /// bf16, exact; activations rounded to bf16, for processors that multiply pairs of bf16 (twice the speed).
    Bf16Activations,
    /// f32, exact.
    F32,
    /// 8 bits with a scale for each group; activations in 8 bits.
    Q8,
    /// 4 bits with a scale for each group; activations in 8 bits.
    Q4,
}

impl Precision {
    /// Bytes of a packed matrix; `None` if they are more than memory has addresses.
    pub fn checked_packed_bytes(self, outputs: usize, inputs: usize) -> Option<usize> {
        match self {
            Self::Bf16 | Self::Bf16Activations => panel_bytes::<Bf16Pair>(outputs, inputs),
            Self::F32 => panel_bytes::<F32Pair>(outputs, inputs),
            Self::Q8 => Bits::Eight.packed_bytes(outputs, inputs),
            Self::Q4 => Bits::Four.packed_bytes(outputs, inputs),
        }
    }

    /// Bytes of a packed matrix.
    ///
    /// # Panics
    /// If they would be more than memory has addresses.
    pub fn packed_bytes(self, outputs: usize, inputs: usize) -> usize {
        self.checked_packed_bytes(outputs, inputs)
            .expect("the matrix fits in memory")
    }
}

fn panel_bytes<P>(outputs: usize, inputs: usize) -> Option<usize> {
    let panel = inputs.div_ceil(2).checked_mul(size_of::<P>())?;
    outputs.div_ceil(PANEL).checked_mul(panel)
}

/// A weight matrix `[outputs, inputs]`, packed for `y = x Wᵀ`. Cloning shares the weights.
#[derive(Debug, Clone)]
pub struct PackedMatrix {
    outputs: usize,
    inputs: usize,
    pub(super) weights: Weights,
}

/// The weights, shared.
#[derive(Debug, Clone)]
pub(super) enum Weights {
    /// Panels one after another; each `[inputs / 2]` pairs, the last one filled up with zeros.
    Bf16(Bytes),
    /// The same, for activations in bf16.
    Bf16Activations(Bytes),
    /// Panels of f32 pairs.
    F32(Bytes),
    /// 8 or 4 bits.
    Quantised(QuantisedMatrix),
}

impl PackedMatrix {
    /// Packs a row-major bf16 matrix, exactly.
    ///
    /// # Panics
    /// If `weights` does not have `outputs · inputs` elements.
    pub fn from_bf16(weights: &[bf16], outputs: usize, inputs: usize, threads: &Threads) -> Self {
        Self::from_bf16_bytes(bytemuck::cast_slice(weights), outputs, inputs, threads)
    }

    /// As [`PackedMatrix::from_bf16`], from little-endian bytes as they lie in a file, aligned or not.
    ///
    /// # Panics
    /// If `weights` does not have `2 · outputs · inputs` bytes.
    pub fn from_bf16_bytes(weights: &[u8], outputs: usize, inputs: usize, threads: &Threads) -> Self {
        assert_eq!(
            weights.len(),
            2 * outputs * inputs,
            "weights are [outputs, inputs] in bf16"
        );
        let weights = weights.as_chunks::<2>().0;
        let data = pack::<Bf16Pair>(outputs, inputs, threads, |first, columns, panel| {
            let panel: &mut [[[u16; 2]; PANEL]] = bytemuck::cast_slice_mut(panel);
            for j in 0..columns {
                let row = &weights[(first + j) * inputs..][..inputs];
                let (pairs, rest) = row.as_chunks::<2>();
                for (out, pair) in panel.iter_mut().zip(pairs) {
                    out[j] = pair.map(u16::from_le_bytes);
                }
                if let [last] = rest {
                    panel[pairs.len()][j][0] = u16::from_le_bytes(*last);
                }
            }
        });
        Self {
            outputs,
            inputs,
            weights: Weights::Bf16(data),
        }
    }

    /// Packs a row-major f32 matrix, exactly (4 bytes a weight).
    ///
    /// # Panics
    /// If `weights` does not have `outputs · inputs` elements.
    pub fn from_f32(weights: &[f32], outputs: usize, inputs: usize, threads: &Threads) -> Self {
        assert_eq!(weights.len(), outputs * inputs, "weights are [outputs, inputs]");
        let row = |o: usize, out: &mut [f32]| out.copy_from_slice(&weights[o * inputs..][..inputs]);
        Self::from_f32_rows(outputs, inputs, threads, row)
    }

    /// As [`PackedMatrix::from_f32`]; `row(output, out)` writes each row, in any order and from several threads.
    pub fn from_f32_rows(
        outputs: usize,
        inputs: usize,
        threads: &Threads,
        row: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Self {
        let data = pack::<F32Pair>(outputs, inputs, threads, |first, columns, panel| {
            let panel: &mut [[f32; PANEL]] = bytemuck::cast_slice_mut(panel);
            let mut weights = vec![0.0; inputs];
            for j in 0..columns {
                row(first + j, &mut weights);
                for (out, w) in panel.iter_mut().zip(&weights) {
                    out[j] = *w;
                }
            }
        });
        Self {
            outputs,
            inputs,
            weights: Weights::F32(data),
        }
    }

    /// Quantises to 8 or 4 bits; `row(output, out)` writes each row, in any order and from several threads.
    pub fn quantised(
        bits: Bits,
        outputs: usize,
        inputs: usize,
        threads: &Threads,
        row: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Self {
        Self {
            outputs,
            inputs,
            weights: Weights::Quantised(QuantisedMatrix::from_rows(outputs, inputs, bits, threads, row)),
        }
    }

    /// What [`PackedMatrix::packed`] gave, perhaps in another process; `None` if `packed` has another length than the
    /// shape takes, or does not start at a multiple of [`crate::ALIGNMENT`].
    pub fn from_packed(precision: Precision, packed: Bytes, outputs: usize, inputs: usize) -> Option<Self> {
        if precision.checked_packed_bytes(outputs, inputs) != Some(packed.len())
            || !(packed.as_ptr() as usize).is_multiple_of(ALIGNMENT)
        {
            return None;
        }
        let quantised = |packed, bits| QuantisedMatrix::from_packed(packed, outputs, inputs, bits);
        let weights = match precision {
            Precision::Bf16 => Weights::Bf16(packed),
            Precision::Bf16Activations => Weights::Bf16Activations(packed),
            Precision::F32 => Weights::F32(packed),
            Precision::Q8 => Weights::Quantised(quantised(packed, Bits::Eight)?),
            Precision::Q4 => Weights::Quantised(quantised(packed, Bits::Four)?),
        };
        Some(Self {
            outputs,
            inputs,
            weights,
        })
    }

    /// The packed weights, as [`PackedMatrix::from_packed`] takes them.
    pub fn packed(&self) -> &Bytes {
        match &self.weights {
            Weights::Bf16(data) | Weights::Bf16Activations(data) | Weights::F32(data) => data,
            Weights::Quantised(matrix) => matrix.packed(),
        }
    }

    /// The same weights for activations that are rounded to bf16; `None` if the processor has no dot product of bf16
    /// pairs (AVX512_BF16) or the weights are not bf16.
    pub fn with_bf16_activations(self) -> Option<Self> {
        match self.weights {
            Weights::Bf16(data) if bf16_dot() => Some(Self {
                weights: Weights::Bf16Activations(data),
                ..self
            }),
            _ => None,
        }
    }

    /// Length of an output row.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Length of an input row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// How the weights are stored.
    pub fn precision(&self) -> Precision {
        match &self.weights {
            Weights::Bf16(_) => Precision::Bf16,
            Weights::Bf16Activations(_) => Precision::Bf16Activations,
            Weights::F32(_) => Precision::F32,
            Weights::Quantised(matrix) => match matrix.bits() {
                Bits::Eight => Precision::Q8,
                Bits::Four => Precision::Q4,
            },
        }
    }

    /// Bytes that the packed weights occupy.
    pub fn bytes(&self) -> usize {
        self.packed().len()
    }

    /// `y[m] = W x[m]`; `x` is `[rows, inputs]`, `y` `[rows, outputs]`.
    ///
    /// # Panics
    /// If `x` or `y` has another length.
    pub fn matmul(&self, x: &[f32], rows: usize, y: &mut [f32], threads: &Threads) {
        let product = Product {
            matrix: self,
            column: 0,
        };
        multiply(&[product], x, rows, y, self.outputs, threads);
    }

    /// Writes weight row `output` to `row` (length `inputs`): an embedding look-up.
    ///
    /// # Panics
    /// If `output` is not below `outputs` or `row` has another length.
    pub fn row(&self, output: usize, row: &mut [f32]) {
        assert!(output < self.outputs, "row {output} of {} outputs", self.outputs);
        assert_eq!(row.len(), self.inputs, "row is [inputs]");
        let pairs = self.inputs.div_ceil(2);
        let (first, column) = (output / PANEL * pairs, output % PANEL);
        let out = row.chunks_mut(2);
        match &self.weights {
            Weights::Bf16(data) | Weights::Bf16Activations(data) => {
                let panel = &bytemuck::cast_slice::<u8, Bf16Pair>(data)[first..first + pairs];
                for (out, pair) in out.zip(panel) {
                    let word = pair.as_flattened()[column];
                    for (out, wide) in out.iter_mut().zip([word << 16, word & 0xffff_0000]) {
                        *out = f32::from_bits(wide);
                    }
                }
            }
            Weights::F32(data) => {
                let panel = &bytemuck::cast_slice::<u8, F32Pair>(data)[first..first + pairs];
                for (out, pair) in out.zip(panel) {
                    for (out, wide) in out.iter_mut().zip(pair) {
                        *out = wide.as_flattened()[column];
                    }
                }
            }
            Weights::Quantised(matrix) => matrix.row(output, row),
        }
    }
}

/// Lets `fill(first column, columns, bytes)` write each panel, in parallel.
fn pack<P>(outputs: usize, inputs: usize, threads: &Threads, fill: impl Fn(usize, usize, &mut [u8]) + Sync) -> Bytes {
    let bytes = panel_bytes::<P>(outputs, inputs).expect("the matrix fits in memory");
    let mut data = AlignedBytes::zeroed(bytes);
    let panels = outputs.div_ceil(PANEL);
    let parts = DisjointRows::new(&mut data[..], inputs.div_ceil(2) * size_of::<P>());
    threads.for_each(panels, outputs * inputs, |p| {
        // SAFETY: each panel's bytes are handed out once.
        let bytes = unsafe { parts.rows(p, 1) };
        fill(p * PANEL, (outputs - p * PANEL).min(PANEL), bytes);
    });
    data.into()
}
