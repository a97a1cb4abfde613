//! The fine-tune that is compressed: a checkpoint of its own, or an adapter over the base.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use deltamux_model::{Checkpoint, DType, LinearId, ModelConfig, TensorView, layout};
use sha2::{Digest as _, Sha256};

use super::error::CompressError;
use super::linalg::Matrix;
use crate::artifact::digest_file;
use crate::peft::{self, Adapter};

/// A fine-tune of a base.
#[derive(Debug)]
pub(crate) enum Finetuned {
    /// All its weights.
    Checkpoint(Box<Checkpoint>),
    /// What it adds to the base's.
    Adapter(Box<OnBase>),
}

/// An adapter with its base.
#[derive(Debug)]
pub(crate) struct OnBase {
    dir: PathBuf,
    adapter: Adapter,
    base: Checkpoint,
    config: ModelConfig,
}

/// A tensor of the fine-tune.
pub(crate) struct Tensor<'a> {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Tensor<'a> {
    fn stored(view: TensorView<'a>) -> Self {
        Self {
            dtype: view.dtype,
            shape: view.shape.to_vec(),
            bytes: Cow::Borrowed(view.bytes),
        }
    }

    pub fn view(&self) -> TensorView<'_> {
        TensorView {
            dtype: self.dtype,
            shape: &self.shape,
            bytes: &self.bytes,
        }
    }
}

impl Finetuned {
    /// Opens a checkpoint or a PEFT adapter directory.
    pub fn open(dir: &Path, base: &Path) -> Result<Self, CompressError> {
        if !Adapter::is_one(dir) {
            return Ok(Self::Checkpoint(Box::new(Checkpoint::open(dir)?)));
        }
        let base = Checkpoint::open(base)?;
        let adapter = Adapter::open(dir, base.config())?;
        if base.config().tie_word_embeddings && adapter.embedding().is_some() {
            return Err(CompressError::Mismatch {
                finetuned: dir.to_path_buf(),
                what: "adapts the embedding, to which the base ties its output head: PEFT leaves the head as it is, which \
                       a tied variant cannot; untie the base and train again, or merge the adapter and compress that"
                    .to_string(),
            });
        }
        let last = |name: &str| {
            name.trim_end_matches('/')
                .rsplit('/')
                .next()
                .unwrap_or(name)
                .to_lowercase()
        };
        if let (Some(named), Some(given)) = (adapter.base_name(), base.dir().file_name())
            && last(named) != given.to_string_lossy().to_lowercase()
        {
            tracing::warn!(
                "the adapter {} names {named} as its base; it is compressed over {}",
                dir.display(),
                base.dir().display()
            );
        }
        let mut config = base.config().clone();
        let rows = |name: &str| adapter.replaced().get(name).map(|r| r.shape[0]);
        if let Some(rows) = rows(layout::EMBEDDING) {
            config.vocab_size = rows;
        }
        let head = rows(layout::HEAD).unwrap_or(base.config().vocab_size);
        if !config.tie_word_embeddings && head != config.vocab_size {
            return Err(CompressError::Mismatch {
                finetuned: dir.to_path_buf(),
                what: format!(
                    "its embedding has {} rows, but its output head has {head}; save both (modules_to_save)",
                    config.vocab_size
                ),
            });
        }
        Ok(Self::Adapter(Box::new(OnBase {
            dir: dir.to_path_buf(),
            adapter,
            base,
            config,
        })))
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        match self {
            Self::Checkpoint(checkpoint) => checkpoint.dir(),
            Self::Adapter(on_base) => &on_base.dir,
        }
    }

    /// The directory that has `file`: an adapter's own, or its base's.
    pub fn dir_of(&self, file: &str) -> &Path {
        match self {
            Self::Adapter(on_base) if !on_base.dir.join(file).is_file() => on_base.base.dir(),
            _ => self.dir(),
        }
    }

    /// The directory of an adapter's base; a checkpoint's own.
    pub fn base_dir(&self) -> &Path {
        match self {
            Self::Checkpoint(checkpoint) => checkpoint.dir(),
            Self::Adapter(on_base) => on_base.base.dir(),
        }
    }

    /// Its configuration.
    pub fn config(&self) -> &ModelConfig {
        match self {
            Self::Checkpoint(checkpoint) => checkpoint.config(),
            Self::Adapter(on_base) => &on_base.config,
        }
    }

    /// A digest of its weights and arithmetic.
    pub fn digest(&self) -> Result<String, CompressError> {
        Ok(match self {
            Self::Checkpoint(checkpoint) => checkpoint.digest(),
            Self::Adapter(on_base) => {
                let mut hash = Sha256::new();
                hash.update("adapter\n");
                hash.update(on_base.base.digest());
                for file in [peft::CONFIG_FILE, peft::WEIGHTS_FILE] {
                    hash.update(digest_file(&on_base.dir.join(file))?);
                }
                hex::encode(hash.finalize())
            }
        })
    }

    /// Refuses NaN and infinite weights by name; an adapter's were checked when it was opened.
    pub fn check_finite(&self) -> Result<(), CompressError> {
        match self {
            Self::Checkpoint(checkpoint) => Ok(checkpoint.check_finite()?),
            Self::Adapter(_) => Ok(()),
        }
    }

    /// The checkpoint that layers are read from, and what takes the place of its weights.
    pub fn layers(&self) -> (&Checkpoint, impl Fn(&str) -> Option<Vec<f32>> + '_) {
        let checkpoint = match self {
            Self::Checkpoint(checkpoint) => checkpoint,
            Self::Adapter(on_base) => &on_base.base,
        };
        let replaced = move |name: &str| match self {
            Self::Adapter(on_base) if on_base.adapter.changes(name) => on_base.merged(name),
            _ => None,
        };
        (checkpoint, replaced)
    }

    /// A tensor with this shape.
    pub fn expect(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CompressError> {
        match self {
            Self::Checkpoint(checkpoint) => Ok(Tensor::stored(checkpoint.expect(name, shape)?)),
            Self::Adapter(on_base) if on_base.adapter.changes(name) => {
                let values = on_base
                    .merged(name)
                    .filter(|v| v.len() == shape.iter().product::<usize>());
                let values = values.ok_or_else(|| CompressError::Mismatch {
                    finetuned: on_base.dir.clone(),
                    what: format!("tensor {name}: expected shape {shape:?}"),
                })?;
                on_base.check_finite(name, &values)?;
                Ok(Tensor {
                    dtype: DType::F32,
                    shape: shape.to_vec(),
                    bytes: Cow::Owned(little_endian(values)),
                })
            }
            Self::Adapter(on_base) => Ok(Tensor::stored(on_base.base.expect(name, shape)?)),
        }
    }

    /// `ΔW = W' − W` of a linear, `[outputs, inputs]`. An adapter's is what it says, without the rounding of a sum.
    pub fn difference(&self, base: &Checkpoint, id: LinearId) -> Result<Matrix<f32>, CompressError> {
        let (outputs, inputs) = base.config().linear_shape(id.kind);
        if let Self::Adapter(on_base) = self
            && !on_base.adapter.replaced().contains_key(&id.weight())
        {
            let mut delta = Matrix::zeros(outputs, inputs);
            if let Some(difference) = on_base.adapter.difference(id) {
                difference.add_to(&mut delta.data);
            }
            on_base.check_finite(&id.weight(), &delta.data)?;
            return Ok(delta);
        }
        let ours = base.expect(&id.weight(), &[outputs, inputs])?;
        let theirs = self.expect(&id.weight(), &[outputs, inputs])?;
        let mut delta = Matrix::from_vec(outputs, inputs, theirs.view().to_f32());
        delta.data.iter_mut().zip(ours.to_f32()).for_each(|(t, w)| *t -= w);
        Ok(delta)
    }
}

/// Values as safetensors files hold them.
fn little_endian(values: Vec<f32>) -> Vec<u8> {
    if cfg!(target_endian = "little") {
        return bytemuck::cast_slice(&values).to_vec();
    }
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

impl OnBase {
    /// Finite A and B can have a product that is not.
    fn check_finite(&self, name: &str, values: &[f32]) -> Result<(), CompressError> {
        match values.iter().find(|x| !x.is_finite()) {
            None => Ok(()),
            Some(value) => Err(CompressError::Mismatch {
                finetuned: self.dir.clone(),
                what: format!("tensor {name}: merged with the base it holds {value}, expected finite weights"),
            }),
        }
    }

    /// The fine-tune's values of a tensor that the base has.
    fn merged(&self, name: &str) -> Option<Vec<f32>> {
        let mut values = self.base.tensor(name)?.to_f32();
        self.adapter.merge(name, &mut values);
        Some(values)
    }
}
