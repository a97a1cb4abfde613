//! A tensor as it lies in a file.

use half::{bf16, f16};

/// Element type of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
}

/// A tensor in the mapping.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Shape, row-major.
    pub shape: &'a [usize],
    /// Little-endian elements; not necessarily aligned.
    pub bytes: &'a [u8],
}

impl DType {
    /// The name in a safetensors header.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "BF16",
            Self::F16 => "F16",
            Self::F32 => "F32",
        }
    }

    /// The type of that name, if it is one that deltamux computes with.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Bf16, Self::F16, Self::F32]
            .into_iter()
            .find(|t| t.name() == name)
    }

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

impl TensorView<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.bytes()
    }

    /// Whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All elements as f32 (exact for each stored type).
    pub fn to_f32(&self) -> Vec<f32> {
        elements_to_f32(self.dtype, self.bytes)
    }

    /// All elements as they are stored, when they are stored as bf16.
    pub fn to_bf16(&self) -> Option<Vec<bf16>> {
        (self.dtype == DType::Bf16).then(|| chunks(self.bytes).map(bf16::from_le_bytes).collect())
    }

    /// Row `row` of a matrix as f32.
    ///
    /// # Panics
    /// If the tensor is not a matrix or has no such row.
    pub fn row_f32(&self, row: usize) -> Vec<f32> {
        elements_to_f32(self.dtype, self.row_bytes(row))
    }

    /// As [`TensorView::row_f32`], into `out`.
    ///
    /// # Panics
    /// If the tensor is not a matrix or has no such row, or `out` has another length.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let bytes = self.row_bytes(row);
        assert_eq!(bytes.len(), out.len() * self.dtype.bytes(), "a row of the matrix");
        let out = out.iter_mut();
        match self.dtype {
            DType::Bf16 => out
                .zip(chunks(bytes))
                .for_each(|(o, b)| *o = bf16::from_le_bytes(b).to_f32()),
            DType::F16 => out
                .zip(chunks(bytes))
                .for_each(|(o, b)| *o = f16::from_le_bytes(b).to_f32()),
            DType::F32 => out.zip(chunks(bytes)).for_each(|(o, b)| *o = f32::from_le_bytes(b)),
        }
    }

    fn row_bytes(&self, row: usize) -> &[u8] {
        let &[rows, width] = self.shape else {
            panic!("rows of a tensor of shape {:?}", self.shape);
        };
        assert!(row < rows, "row {row} of {rows}");
        let stride = width * self.dtype.bytes();
        &self.bytes[row * stride..(row + 1) * stride]
    }

    /// Index of the first element that is NaN or infinite, with its value.
    pub fn first_non_finite(&self) -> Option<(usize, f32)> {
        let index = match self.dtype {
            DType::Bf16 => chunks(self.bytes).position(|b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
            DType::F16 => chunks(self.bytes).position(|b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
            DType::F32 => chunks(self.bytes).position(|b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        }?;
        let width = self.dtype.bytes();
        let value = elements_to_f32(self.dtype, &self.bytes[index * width..(index + 1) * width]);
        Some((index, value[0]))
    }
}

fn elements_to_f32(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::Bf16 => chunks(bytes).map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
        DType::F16 => chunks(bytes).map(|b| f16::from_le_bytes(b).to_f32()).collect(),
        DType::F32 => chunks(bytes).map(f32::from_le_bytes).collect(),
    }
}

/// The elements' bytes; the views that [`crate::Checkpoint`] lends hold whole elements.
fn chunks<const N: usize>(bytes: &[u8]) -> impl ExactSizeIterator<Item = [u8; N]> + '_ {
    bytes.as_chunks::<N>().0.iter().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_exactly_and_unaligned() {
        let values = [1.0f32, -2.5, 0.15625, 65504.0, -0.0];
        let f16s: Vec<u8> = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        let f32s: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        for (dtype, stored) in [(DType::F16, f16s), (DType::F32, f32s)] {
            let mut shifted = vec![0u8];
            shifted.extend(&stored);
            let view = TensorView {
                dtype,
                shape: &[5],
                bytes: &shifted[1..],
            };
            assert_eq!(view.to_f32(), values);
            assert_eq!(view.to_bf16(), None);
            assert_eq!(view.len(), 5);
        }
        let stored: Vec<u8> = [1.0f32, 3.0]
            .iter()
            .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
            .collect();
        let view = TensorView {
            dtype: DType::Bf16,
            shape: &[2, 1],
            bytes: &stored,
        };
        assert_eq!(view.to_bf16(), Some(vec![bf16::from_f32(1.0), bf16::from_f32(3.0)]));
        assert_eq!(view.row_f32(1), [3.0]);
    }

    #[test]
    fn the_first_nan_or_infinity_is_found_in_each_type() {
        let view = |dtype, bytes| TensorView {
            dtype,
            shape: &[3],
            bytes,
        };
        let bytes: Vec<u8> = [1.0, f32::MAX, f32::NEG_INFINITY]
            .iter()
            .flat_map(|v: &f32| v.to_le_bytes())
            .collect();
        assert_eq!(
            view(DType::F32, &bytes).first_non_finite(),
            Some((2, f32::NEG_INFINITY))
        );
        let bytes: Vec<u8> = [1.0, 2.0, f32::NAN]
            .iter()
            .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
            .collect();
        assert!(matches!(view(DType::Bf16, &bytes).first_non_finite(), Some((2, v)) if v.is_nan()));
        let bytes: Vec<u8> = [65504.0, f32::INFINITY, 0.0]
            .iter()
            .flat_map(|v| f16::from_f32(*v).to_le_bytes())
            .collect();
        assert_eq!(view(DType::F16, &bytes).first_non_finite(), Some((1, f32::INFINITY)));
        assert_eq!(view(DType::F16, &bytes[..2]).first_non_finite(), None);
    }
}
