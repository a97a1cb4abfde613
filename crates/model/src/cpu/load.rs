//! From a checkpoint's files to packed matrices.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use deltamux_kernels::isa::bf16_dot;
use deltamux_kernels::{Bits, PackedMatrix, Threads, packed};

use crate::layout::{EMBEDDING, HEAD};
use crate::{Checkpoint, CheckpointError, DType, Precision, TensorView};

use super::cache::WeightCache;

/// How a checkpoint is loaded.
#[derive(Clone, Copy)]
pub struct LoadOptions<'a> {
    /// How matrices are kept.
    pub precision: Precision,
    /// Called with the bytes that have been read, and all that will be.
    pub progress: &'a dyn Fn(u64, u64),
    /// Where packed matrices are kept for the next time.
    pub cache: &'a WeightCache,
    /// Refuse weights that are NaN or infinite, as [`Checkpoint::check_finite`] does. Those that go into the cache are
    /// always checked, and those that come from it were.
    pub check_finite: bool,
}

impl Default for LoadOptions<'_> {
    fn default() -> Self {
        Self {
            precision: Precision::default(),
            progress: &|_, _| {},
            cache: &WeightCache::Off,
            check_finite: false,
        }
    }
}

impl std::fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadOptions")
            .field("precision", &self.precision)
            .field("cache", &self.cache)
            .field("check_finite", &self.check_finite)
            .finish_non_exhaustive()
    }
}

/// Bytes of a tensor's rows whose memory is given back together while the matrix is packed.
const RELEASED_BYTES: usize = 4 << 20;

/// Gives matrices one after another: packed by all threads, or from the cache.
pub(super) struct Loader<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    options: &'a LoadOptions<'a>,
    threads: &'a Threads,
    done: Cell<u64>,
    total: u64,
    /// What has been read from the cache.
    stored: RefCell<Option<BTreeMap<String, PackedMatrix>>>,
    replaced: &'a Replaced<'a>,
}

/// Weights that a tensor of the checkpoint is replaced by, row-major; `None` leaves it as it is stored.
pub type Replaced<'a> = dyn Fn(&str) -> Option<Vec<f32>> + 'a;

impl<'a> Loader<'a> {
    /// With `stored`, matrices come from there.
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        options: &'a LoadOptions<'a>,
        threads: &'a Threads,
        stored: Option<BTreeMap<String, PackedMatrix>>,
    ) -> Self {
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
            stored: RefCell::new(stored),
            replaced: &|_| None,
        }
    }

    /// Takes other weights for some tensors.
    pub(super) fn with_replaced(self, replaced: &'a Replaced<'a>) -> Self {
        Self { replaced, ..self }
    }

    /// The matrix `[outputs, inputs]` of that name.
    pub(super) fn matrix(&self, name: &str, outputs: usize, inputs: usize) -> Result<PackedMatrix, CheckpointError> {
        if let Some(weights) = (self.replaced)(name) {
            assert_eq!(weights.len(), outputs * inputs, "weights that replace {name}");
            return Ok(PackedMatrix::from_f32(&weights, outputs, inputs, self.threads));
        }
        let tensor = self.checkpoint.expect(name, &[outputs, inputs])?;
        let stored = self.stored.borrow_mut().as_mut().and_then(|all| all.remove(name));
        let matrix = match stored {
            Some(matrix) => matrix,
            None => {
                let matrix = self.pack(name, &tensor, outputs, inputs);
                self.checkpoint.release(tensor.bytes);
                self.read(&tensor);
                matrix
            }
        };
        if self.options.precision == Precision::Bf16Activations {
            return matrix.with_bf16_activations().ok_or_else(no_pairs);
        }
        Ok(matrix)
    }

    /// The vector of that name.
    pub(super) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, CheckpointError> {
        if let Some(weights) = (self.replaced)(name) {
            assert_eq!(weights.len(), len, "weights that replace {name}");
            return Ok(weights);
        }
        let tensor = self.checkpoint.expect(name, &[len])?;
        self.read(&tensor);
        Ok(tensor.to_f32())
    }

    fn pack(&self, name: &str, tensor: &TensorView<'_>, outputs: usize, inputs: usize) -> PackedMatrix {
        let threads = self.threads;
        let row_bytes = tensor.bytes.len() / outputs.max(1);
        let rows = RELEASED_BYTES.div_ceil(row_bytes.max(1));
        let row = |o: usize, row: &mut [f32]| {
            tensor.read_row(o, row);
            // Threads work on neighbouring rows: two pieces back nobody does, and if so it reads from the file again.
            if let Some(o) = o.checked_sub(2 * rows).filter(|o| o.is_multiple_of(rows)) {
                self.checkpoint
                    .release(&tensor.bytes[o * row_bytes..][..rows * row_bytes]);
            }
        };
        let quantised = |bits| PackedMatrix::quantised(bits, outputs, inputs, threads, row);
        match packed_precision(self.options.precision, name, tensor.dtype) {
            packed::Precision::F32 => PackedMatrix::from_f32_rows(outputs, inputs, threads, row),
            packed::Precision::Q8 => quantised(Bits::Eight),
            packed::Precision::Q4 => quantised(Bits::Four),
            packed::Precision::Bf16 | packed::Precision::Bf16Activations => {
                PackedMatrix::from_bf16_bytes(tensor.bytes, outputs, inputs, threads)
            }
        }
    }

    fn read(&self, tensor: &TensorView<'_>) {
        if self.stored.borrow().is_some() {
            return;
        }
        self.done.set(self.done.get() + tensor.bytes.len() as u64);
        (self.options.progress)(self.done.get(), self.total);
    }
}

/// Refuses a precision that this processor or the checkpoint's weights do not allow.
pub(super) fn check_precision(checkpoint: &Checkpoint, precision: Precision) -> Result<(), CheckpointError> {
    if precision != Precision::Bf16Activations {
        return Ok(());
    }
    let tensors = checkpoint.config().tensors();
    let matrices = tensors.iter().filter(|(_, shape)| shape.len() == 2);
    for (name, shape) in matrices {
        let dtype = checkpoint.expect(name, shape)?.dtype;
        if dtype != DType::Bf16 {
            return Err(CheckpointError::Precision(format!(
                "activations in bf16 need weights in BF16, but tensor {name} is {}; use f32 activations",
                dtype.name()
            )));
        }
    }
    if bf16_dot() { Ok(()) } else { Err(no_pairs()) }
}

fn no_pairs() -> CheckpointError {
    CheckpointError::Precision(
        "activations in bf16 need a processor that multiplies pairs of bf16 (AVX512_BF16), and this one does not; use \
         f32 activations"
            .to_owned(),
    )
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
