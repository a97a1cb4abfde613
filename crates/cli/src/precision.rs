//! How the base is kept in memory, on the command line.

use clap::ValueEnum;
use deltamux_model::Precision;

/// Precision of the base.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct PrecisionArgs {
    /// Precision of the base in memory. q8 and q4 quantise it while it is loaded: half and a quarter of the bytes (q4
    /// keeps embedding and head in 8 bits), and activations in 8 bits.
    #[arg(long, value_enum, value_name = "DTYPE", default_value_t = BaseDtype::Bf16)]
    base_dtype: BaseDtype,
    /// Precision of the activations that a bf16 base is multiplied with. bf16 rounds them, and is up to twice as fast on
    /// processors with AVX512_BF16; it is refused on others.
    #[arg(long, value_enum, value_name = "DTYPE", default_value_t = Activations::F32)]
    activations: Activations,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BaseDtype {
    /// As stored (f16 and f32 checkpoints in f32).
    Bf16,
    Q8,
    Q4,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Activations {
    F32,
    Bf16,
}

impl PrecisionArgs {
    /// What was chosen.
    pub fn precision(&self) -> anyhow::Result<Precision> {
        match (self.base_dtype, self.activations) {
            (BaseDtype::Bf16, Activations::F32) => Ok(Precision::Stored),
            (BaseDtype::Bf16, Activations::Bf16) => Ok(Precision::Bf16Activations),
            (BaseDtype::Q8, Activations::F32) => Ok(Precision::Q8),
            (BaseDtype::Q4, Activations::F32) => Ok(Precision::Q4),
            (_, Activations::Bf16) => anyhow::bail!(
                "--activations bf16: a base in q8 or q4 always has activations in 8 bits; leave one of the flags out"
            ),
        }
    }
}
