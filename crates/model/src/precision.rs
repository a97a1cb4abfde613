//! How a model's matrices are kept in memory and multiplied.

/// Precision of a model's matrices in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// As stored: bf16 as bf16, f16 and f32 as f32, each exactly; activations in f32.
    #[default]
    Stored,
    /// bf16 as stored, activations rounded to bf16: twice the multiply-adds on processors with AVX512_BF16.
    Bf16Activations,
    /// 8 bits with a scale for each group of 32 inputs; activations in 8 bits.
    Q8,
    /// 4 bits with a scale for each group of 32 inputs; activations in 8 bits. The embedding and the head, in which a
    /// small model's quality is the most sensitive, have 8.
    Q4,
}
