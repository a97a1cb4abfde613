//! Weights of a checkpoint, packed for the kernels.

use deltamux_kernels::{PackedMatrix, Threads};

use crate::linear::{LinearId, LinearKind};
use crate::{Checkpoint, CheckpointError, DType, layout};

/// All weights of a model.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) embedding: PackedMatrix,
    /// Absent when the embedding is the head.
    pub(super) head: Option<PackedMatrix>,
    pub(super) final_norm: Vector,
    pub(super) layers: Vec<Layer>,
}

/// One decoder layer.
#[derive(Debug)]
pub(super) struct Layer {
    /// In the order of [`LinearKind::ALL`].
    linears: Vec<Linear>,
    pub(super) input_norm: Vector,
    pub(super) post_attention_norm: Vector,
    /// Norms on the heads of q and k.
    pub(super) qk_norm: Option<(Vector, Vector)>,
}

impl Layer {
    pub(super) fn linear(&self, kind: LinearKind) -> &Linear {
        &self.linears[kind as usize]
    }
}

/// A linear with its identity.
#[derive(Debug)]
pub(super) struct Linear {
    pub(super) id: LinearId,
    pub(super) matrix: PackedMatrix,
    pub(super) bias: Option<Vector>,
}

/// A norm weight or bias with its tensor name, under which variants replace it.
#[derive(Debug)]
pub(super) struct Vector {
    pub(super) name: String,
    pub(super) values: Vec<f32>,
}

impl Weights {
    pub(super) fn load(checkpoint: &Checkpoint, threads: &Threads) -> Result<Self, CheckpointError> {
        let config = checkpoint.config();
        let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
        let embedding = matrix(checkpoint, layout::EMBEDDING, vocabulary, hidden, threads)?;
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(matrix(checkpoint, layout::HEAD, vocabulary, hidden, threads)?),
        };
        let final_norm = vector(checkpoint, layout::FINAL_NORM.to_owned(), hidden)?;
        let layers = (0..config.num_layers)
            .map(|i| Layer::load(checkpoint, i, threads))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            embedding,
            head,
            final_norm,
            layers,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        let linears = self.layers.iter().flat_map(|l| &l.linears).map(|l| l.matrix.bytes());
        self.embedding.bytes() + self.head.as_ref().map_or(0, PackedMatrix::bytes) + linears.sum::<usize>()
    }
}

impl Layer {
    fn load(checkpoint: &Checkpoint, layer: usize, threads: &Threads) -> Result<Self, CheckpointError> {
        let config = checkpoint.config();
        let norm = |module: &str, len| vector(checkpoint, format!("model.layers.{layer}.{module}.weight"), len);
        let linears = LinearKind::ALL.into_iter().map(|kind| {
            let id = LinearId { layer, kind };
            let (outputs, inputs) = config.linear_shape(kind);
            let matrix = matrix(checkpoint, &id.weight(), outputs, inputs, threads)?;
            let bias = if config.linear_has_bias(kind) {
                Some(vector(checkpoint, id.bias(), outputs)?)
            } else {
                None
            };
            Ok(Linear { id, matrix, bias })
        });
        Ok(Self {
            linears: linears.collect::<Result<_, CheckpointError>>()?,
            input_norm: norm("input_layernorm", config.hidden_size)?,
            post_attention_norm: norm("post_attention_layernorm", config.hidden_size)?,
            qk_norm: match config.qk_norm {
                true => Some((
                    norm("self_attn.q_norm", config.head_dim)?,
                    norm("self_attn.k_norm", config.head_dim)?,
                )),
                false => None,
            },
        })
    }
}

fn matrix(
    checkpoint: &Checkpoint,
    name: &str,
    outputs: usize,
    inputs: usize,
    threads: &Threads,
) -> Result<PackedMatrix, CheckpointError> {
    let tensor = checkpoint.expect(name, &[outputs, inputs])?;
    Ok(match tensor.dtype {
        DType::Bf16 => PackedMatrix::from_bf16_bytes(tensor.bytes, outputs, inputs, threads),
        DType::F16 | DType::F32 => {
            PackedMatrix::from_f32_rows(outputs, inputs, threads, |o, row| tensor.read_row(o, row))
        }
    })
}

fn vector(checkpoint: &Checkpoint, name: String, len: usize) -> Result<Vector, CheckpointError> {
    let values = checkpoint.expect(&name, &[len])?.to_f32();
    Ok(Vector { name, values })
}
