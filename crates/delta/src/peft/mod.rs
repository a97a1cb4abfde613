//! LoRA adapters in PEFT's format: `adapter_config.json` beside `adapter_model.safetensors`.
//!
//! Such a directory *is* the difference of a fine-tune to its base: `ΔW = scale · B A` for each adapted linear, beside
//! whole tensors that were trained with it (`modules_to_save`, biases). [`Adapter::open`] checks all of it against the
//! base's configuration, so that what an [`Adapter`] holds fits and is finite.
//!
//! What would be another difference than the tensors say is refused: DoRA, adapters whose initialisation changed the
//! base's weights (PiSSA, OLoRA, LoftQ and others), layers that are replicated, adapters that are switched on by tokens.

mod config;
mod difference;
mod tensors;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use deltamux_model::{LinearId, ModelConfig, WeightsFile, layout};

use config::AdapterConfig;
pub use difference::Difference;

/// The configuration of an adapter.
pub const CONFIG_FILE: &str = "adapter_config.json";
/// The tensors of an adapter.
pub const WEIGHTS_FILE: &str = "adapter_model.safetensors";
/// The tensors of an adapter as older versions wrote them: Python objects, which are not read here.
const PICKLED_FILE: &str = "adapter_model.bin";

/// Why an adapter was refused.
#[derive(Debug, thiserror::Error)]
pub enum PeftError {
    /// The file system.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The file of tensors is not a safetensors file.
    #[error(transparent)]
    Weights(#[from] deltamux_model::WeightsFileError),
    /// A file is not what it should be, or the adapter does not fit the base.
    #[error("{path}: {what}", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What was found, what is expected, and the remedy.
        what: String,
    },
}

impl PeftError {
    fn invalid(path: &Path, what: impl Into<String>) -> Self {
        Self::Invalid {
            path: path.to_path_buf(),
            what: what.into(),
        }
    }
}

/// A tensor of the base that the adapter replaces.
#[derive(Debug, Clone, PartialEq)]
pub struct Replacement {
    /// Shape, as the base's tensor of that name; an embedding or head may have other rows.
    pub shape: Vec<usize>,
    /// Row-major values.
    pub values: Vec<f32>,
}

/// A LoRA adapter that fits a base.
#[derive(Debug, Clone, Default)]
pub struct Adapter {
    base: Option<String>,
    linears: BTreeMap<LinearId, Difference>,
    embedding: Option<Difference>,
    head: Option<Difference>,
    replaced: BTreeMap<String, Replacement>,
}

impl Adapter {
    /// Whether a directory holds an adapter rather than a checkpoint.
    pub fn is_one(dir: &Path) -> bool {
        dir.join(CONFIG_FILE).is_file()
    }

    /// Reads the adapter in `dir` and holds it against the configuration of its base.
    ///
    /// Memory is bounded by a few times the size of the file: shapes are checked before anything is made from them.
    ///
    /// # Errors
    /// If a file is missing or malformed, if the adapter is of a kind whose difference is not `scale · B A`, or if a
    /// tensor is unknown, not finite, incomplete, or of a shape that the base does not have.
    pub fn open(dir: &Path, base: &ModelConfig) -> Result<Self, PeftError> {
        let config = AdapterConfig::read(&dir.join(CONFIG_FILE))?;
        let path = dir.join(WEIGHTS_FILE);
        if !path.is_file() && dir.join(PICKLED_FILE).is_file() {
            return Err(PeftError::invalid(
                &dir.join(PICKLED_FILE),
                format!(
                    "a pickle can run any code when it is read, so it is not; save the adapter again as {WEIGHTS_FILE} \
                     (PEFT does so by default: load the adapter and call save_pretrained)"
                ),
            ));
        }
        let file = WeightsFile::open(&path)?;
        tensors::read(&file, &config, base)
    }

    /// What the adapter calls its base (`base_model_name_or_path`): for people, nothing checks it.
    pub fn base_name(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// The linears that have a difference, in model order.
    pub fn linears(&self) -> impl Iterator<Item = LinearId> + '_ {
        self.linears.keys().copied()
    }

    /// The difference of a linear, `[outputs, inputs]`.
    pub fn difference(&self, id: LinearId) -> Option<&Difference> {
        self.linears.get(&id)
    }

    /// The difference of the input embedding, `[vocabulary, hidden]`. Of a model whose head is tied to it, that of both,
    /// as merging does it.
    pub fn embedding(&self) -> Option<&Difference> {
        self.embedding.as_ref()
    }

    /// The difference of an untied output head, `[vocabulary, hidden]`.
    pub fn head(&self) -> Option<&Difference> {
        self.head.as_ref()
    }

    /// Tensors of the base that are replaced as a whole, by the base's names: norms, biases, embedding, head, linears.
    /// Where there is a difference, too, it is relative to the replacement.
    pub fn replaced(&self) -> &BTreeMap<String, Replacement> {
        &self.replaced
    }

    /// Whether the fine-tune's tensor of that name differs from the base's.
    pub fn changes(&self, name: &str) -> bool {
        self.replaced.contains_key(name)
            || match name {
                layout::EMBEDDING => self.embedding.is_some(),
                layout::HEAD => self.head.is_some(),
                _ => LinearId::from_weight(name).is_some_and(|id| self.linears.contains_key(&id)),
            }
    }

    /// Makes the weights of the fine-tune from those of the base: `values` are the tensor `name` of the base, row-major,
    /// and become the merged ones. Only an embedding or head that the adapter resized changes in length.
    ///
    /// # Panics
    /// If `values` has not the length of the base's tensor.
    pub fn merge(&self, name: &str, values: &mut Vec<f32>) {
        if let Some(replacement) = self.replaced.get(name) {
            values.clone_from(&replacement.values);
        }
        let difference = match name {
            layout::EMBEDDING => self.embedding.as_ref(),
            layout::HEAD => self.head.as_ref(),
            _ => LinearId::from_weight(name).and_then(|id| self.difference(id)),
        };
        if let Some(difference) = difference {
            difference.add_to(values);
        }
    }
}
