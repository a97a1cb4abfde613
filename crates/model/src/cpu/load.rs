//! From a checkpoint's files to packed matrices.

use std::cell::Cell;

use deltamux_kernels::{Bits, PackedMatrix, Threads, packed};

use crate::layout::{EMBEDDING, HEAD};
use crate::{Checkpoint, CheckpointError, DType, Precision, TensorView};

/// How a checkpoint is loaded.
#[derive(Clone, Copy)]
pub struct LoadOptions<'a> {
    /// How matrices are kept.
    pub precision: Precision,
    /// Called with the bytes of the files that have been read, and all that will be.
    pub progress: &'a dyn Fn(u64, u64),
}

impl Default for LoadOptions<'_> {
    fn default() -> Self {
        Self {
            precision: Precision::default(),
            progress: &|_, _| {},
        }
    }
}

impl std::fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadOptions")
            .field("precision", &self.precision)
            .finish_non_exhaustive()
    }
}

/// Reads matrices one after another, each packed by all threads.
pub(super) struct Loader<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    options: &'a LoadOptions<'a>,
    threads: &'a Threads,
    done: Cell<u64>,
    total: u64,
}

impl<'a> Loader<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint, options: &'a LoadOptions<'a>, threads: &'a Threads) -> Self {
        let tensors = checkpoint.config().tensors();
        let bytes = tensors
            .iter()
            .filter_map(|(name, _)| Some(checkpoint.tensor(name)?.bytes.len() as u64));
        Self {
            checkpoint,
            options,
            threads,
            done: Cell::new(0),
            total: bytes.sum(),
        }
    }

    /// The matrix `[outputs, inputs]` of that name.
    pub(super) fn matrix(&self, name: &str, outputs: usize, inputs: usize) -> Result<PackedMatrix, CheckpointError> {
        let tensor = self.checkpoint.expect(name, &[outputs, inputs])?;
        let matrix = self.pack(name, &tensor, outputs, inputs)?;
        self.checkpoint.release(tensor.bytes);
        self.read(&tensor);
        Ok(matrix)
    }

    /// The vector of that name.
    pub(super) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, CheckpointError> {
        let tensor = self.checkpoint.expect(name, &[len])?;
        self.read(&tensor);
        Ok(tensor.to_f32())
    }

    fn pack(
        &self,
        name: &str,
        tensor: &TensorView<'_>,
        outputs: usize,
        inputs: usize,
    ) -> Result<PackedMatrix, CheckpointError> {
        let threads = self.threads;
        let row = |o: usize, row: &mut [f32]| tensor.read_row(o, row);
        let quantised = |bits| PackedMatrix::quantised(bits, outputs, inputs, threads, row);
        Ok(match packed_precision(self.options.precision, name, tensor.dtype) {
            packed::Precision::Bf16 => PackedMatrix::from_bf16_bytes(tensor.bytes, outputs, inputs, threads),
            packed::Precision::F32 => PackedMatrix::from_f32_rows(outputs, inputs, threads, row),
            packed::Precision::Q8 => quantised(Bits::Eight),
            packed::Precision::Q4 => quantised(Bits::Four),
            packed::Precision::Bf16Activations if tensor.dtype == DType::Bf16 => {
                let matrix = PackedMatrix::from_bf16_bytes(tensor.bytes, outputs, inputs, threads);
                matrix.with_bf16_activations().ok_or_else(|| {
                    CheckpointError::Precision(
                        "activations in bf16 need a processor that multiplies pairs of bf16 (AVX512_BF16), and this one \
                         does not; use f32 activations"
                            .to_owned(),
                    )
                })?
            }
            packed::Precision::Bf16Activations => {
                return Err(CheckpointError::Precision(format!(
                    "activations in bf16 need weights in BF16, but tensor {name} is {}; use f32 activations",
                    tensor.dtype.name()
                )));
            }
        })
    }

    fn read(&self, tensor: &TensorView<'_>) {
        self.done.set(self.done.get() + tensor.bytes.len() as u64);
        (self.options.progress)(self.done.get(), self.total);
    }
}

/// How a matrix is kept.
pub(super) fn packed_precision(precision: Precision, name: &str, stored: DType) -> packed::Precision {
    match (precision, stored) {
        (Precision::Stored, DType::Bf16) => packed::Precision::Bf16,
        (Precision::Bf16Activations, _) => packed::Precision::Bf16Activations,
        (Precision::Stored, DType::F16 | DType::F32) => packed::Precision::F32,
        (Precision::Q4, _) if name != EMBEDDING && name != HEAD => packed::Precision::Q4,
        (Precision::Q8 | Precision::Q4, _) => packed::Precision::Q8,
    }
}
