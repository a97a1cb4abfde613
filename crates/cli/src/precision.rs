//! How the base is kept in memory, and for the next start, on the command line.

use clap::ValueEnum;
use deltamux_model::{Precision, WeightCache};

/// Precision of the base.
#[derive(Debug, Clone, clap::Args)]
pub struct PrecisionArgs {
    /// Precision of the base in memory. q8 and q4 quantise it while it is loaded: half and a quarter of the bytes (q4
    /// keeps embedding and head in 8 bits), and activations in 8 bits.
    #[arg(long, value_enum, value_name = "DTYPE", default_value_t = BaseDtype::Bf16)]
    base_dtype: BaseDtype,
    /// Precision of the activations that a bf16 base is multiplied with. bf16 rounds them, and is up to twice as fast on
    /// processors with AVX512_BF16; it is refused on others.
    #[arg(long, value_enum, value_name = "DTYPE", default_value_t = Activations::F32)]
    activations: Activations,
    /// Where the base's packed weights are kept, so that the next start only reads them: `beside` the model in its folder
    /// .deltamux-cache, or in DIR, which is created. One file for each model and precision, as large as the base in
    /// memory; made anew when the model has changed. What is in the folder is trusted as the model is: keep others from
    /// writing there.
    #[arg(long, value_name = "off|beside|DIR", default_value = "off", value_parser = weight_cache)]
    weight_cache: WeightCache,
}

fn weight_cache(text: &str) -> Result<WeightCache, String> {
    match text {
        "off" => Ok(WeightCache::Off),
        "beside" => Ok(WeightCache::Beside),
        "" => Err("is empty; give off, beside, or a folder".to_owned()),
        // A word that was meant otherwise would become a folder of gigabytes.
        word if !word.contains(['/', '\\', '.']) && !std::path::Path::new(word).is_dir() => Err(format!(
            "is neither off, beside, nor a folder that exists; to have one made here, write ./{word}"
        )),
        dir => Ok(WeightCache::Dir(dir.into())),
    }
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
    /// Where packed weights are kept.
    pub fn weight_cache(&self) -> WeightCache {
        self.weight_cache.clone()
    }

    /// The precision that was chosen, in the words of the flags.
    pub fn name(&self) -> &'static str {
        match (self.base_dtype, self.activations) {
            (BaseDtype::Bf16, Activations::F32) => "bf16",
            (BaseDtype::Bf16, Activations::Bf16) => "bf16, activations bf16",
            (BaseDtype::Q8, _) => "q8",
            (BaseDtype::Q4, _) => "q4",
        }
    }

    /// The precision that was chosen.
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
