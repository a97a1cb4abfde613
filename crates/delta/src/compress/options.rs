//! What a user may choose.

use std::path::PathBuf;

use super::error::CompressError;
use super::factor::{Norm, Order};
use super::{CalibrationSource, EmbeddingPolicy, Shard, WidthLimits};

/// The ratio of methods that can keep any, when none is given.
pub const DEFAULT_RATIO: f64 = 1.0 / 16.0;

/// A compression method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// PrinMix: mixed widths by a knapsack, GPTQ for both factors, U corrected for what V became.
    Prinmix,
    /// Delta-CoMe: fixed widths 8 + 3 + 2 by rank order, no correction.
    DeltaCome,
    /// f16 factors.
    LowRank,
    /// PrinMix's idea with all that lowered the error at the same bytes: factors that are optimal for the outputs, widths
    /// of their own for U and V, scales in 5 bits, codes polished after rounding.
    Best,
    /// BitDelta: signs and one scale a matrix, 1 bit a weight. It has no other ratio.
    Bitdelta,
}

impl Method {
    /// The name on the command line and in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prinmix => "prinmix",
            Self::DeltaCome => "delta-come",
            Self::LowRank => "low-rank",
            Self::Best => "best",
            Self::Bitdelta => "bitdelta",
        }
    }

    /// The method of that name.
    pub fn from_name(name: &str) -> Result<Self, CompressError> {
        let all = [
            Self::Prinmix,
            Self::DeltaCome,
            Self::LowRank,
            Self::Best,
            Self::Bitdelta,
        ];
        all.into_iter().find(|m| m.name() == name).ok_or_else(|| {
            CompressError::Option(format!(
                "unknown method `{name}`; known are prinmix, delta-come, low-rank, best and bitdelta"
            ))
        })
    }

    /// Norm in which the factors are optimal.
    pub(crate) fn norm(self) -> Norm {
        match self {
            Self::Best => Norm::Outputs,
            Self::Prinmix | Self::DeltaCome | Self::LowRank | Self::Bitdelta => Norm::Weights,
        }
    }

    /// Whether the widths of ranks are chosen, so that matrices can share a budget.
    pub(crate) fn chooses_widths(self) -> bool {
        match self {
            Self::Prinmix | Self::Best => true,
            Self::DeltaCome | Self::LowRank | Self::Bitdelta => false,
        }
    }

    /// Which ranks are kept when there are too many.
    pub(crate) fn order(self) -> Order {
        match self {
            Self::Prinmix | Self::Best => Order::Energy,
            Self::DeltaCome | Self::LowRank | Self::Bitdelta => Order::SingularValue,
        }
    }
}

/// Over what the storage budget is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// The whole model: bits move to the matrices that need them (PrinMix and best only).
    Model,
    /// Each matrix has its own.
    Matrix,
}

impl Budget {
    /// The name on the command line and in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Matrix => "matrix",
        }
    }
}

/// How to compress.
#[derive(Debug, Clone)]
pub struct CompressOptions {
    /// Method.
    pub method: Method,
    /// Stored bytes of the changed linears over their bf16 bytes, above 0 and at most 1; `None` for what the method
    /// needs (bitdelta) or [`DEFAULT_RATIO`].
    pub ratio: Option<f64>,
    /// Over what the budget is shared.
    pub budget: Budget,
    /// Widths of ranks (PrinMix only).
    pub widths: WidthLimits,
    /// Calibration texts.
    pub calibration: CalibrationSource,
    /// What becomes of changed embeddings.
    pub embeddings: EmbeddingPolicy,
    /// Name of the variant; `None` takes the name of the output directory.
    pub name: Option<String>,
    /// Longest calibration text, in tokens.
    pub max_text_tokens: usize,
    /// Threads; 0 means one for each available core. The artifact does not depend on it.
    pub threads: usize,
    /// Go on although the base looks like the wrong one, and replace an artifact that exists.
    pub force: bool,
    /// The part of the model that is compressed.
    pub shard: Shard,
    /// Go on with what an interrupted run of the same inputs has finished.
    pub resume: bool,
    /// Where second moments are kept for later runs; `None` keeps them beside the artifact while it is made.
    pub calibration_cache: Option<PathBuf>,
    /// Bytes for the matrices that are worked on at a time; `None` takes most of what the machine has left. One matrix
    /// is always worked on. The artifact does not depend on it.
    pub memory: Option<u64>,
}

impl CompressOptions {
    /// The defaults: the best method at 1/16 over the whole model, calibrated on the bundled general set.
    pub fn new() -> Self {
        Self {
            method: Method::Best,
            ratio: None,
            budget: Budget::Model,
            widths: WidthLimits::default(),
            calibration: CalibrationSource::General,
            embeddings: EmbeddingPolicy::Auto,
            name: None,
            max_text_tokens: 2048,
            threads: 0,
            force: false,
            shard: Shard::WHOLE,
            resume: false,
            calibration_cache: None,
            memory: None,
        }
    }

    /// The ratio that was asked for, or [`DEFAULT_RATIO`].
    pub(crate) fn ratio(&self) -> f64 {
        self.ratio.unwrap_or(DEFAULT_RATIO)
    }

    pub(crate) fn check(&self) -> Result<(), CompressError> {
        if !(self.ratio() > 0.0 && self.ratio() <= 1.0) {
            return Err(CompressError::Option(format!(
                "ratio {}: expected a share above 0 and at most 1, such as 1/16 or 0.0625",
                self.ratio()
            )));
        }
        if self.method != Method::Prinmix && self.widths != WidthLimits::default() {
            return Err(CompressError::Option(format!(
                "method {} has widths of its own: --bits and --f-max are for --method prinmix",
                self.method.name()
            )));
        }
        self.shard.check()?;
        Ok(())
    }
}

impl Default for CompressOptions {
    fn default() -> Self {
        Self::new()
    }
}
