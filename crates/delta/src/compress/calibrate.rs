//! Second moments of every linear's input: the texts go through the fine-tune one layer at a time.
//!
//! A later layer sees what the fine-tune's own earlier layers make of the texts. In memory are one layer's weights, one
//! batch of texts and the sums of one layer; hidden states and finished sums are in files, so that the number of tokens
//! is limited by the disk alone.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use deltamux_model::{LayerWeights, LayerwiseModel, LinearId, LinearKind, ModelConfig};
use sha2::{Digest as _, Sha256};

use super::error::CompressError;
use super::linalg::Matrix;
use super::moments::{self, Moments};
use super::samples::Samples;
use crate::temp;

/// Tokens of one batch of texts; a longer text is a batch of its own.
const BATCH_TOKENS: usize = 1024;

/// A distinct linear input of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct InputId {
    pub layer: usize,
    /// The first linear that reads it: q (also k and v), o, gate (also up) or down.
    pub first: LinearKind,
}

impl InputId {
    /// The input that a linear reads.
    pub fn of(id: LinearId) -> Self {
        let first = match id.kind {
            LinearKind::Q | LinearKind::K | LinearKind::V => LinearKind::Q,
            LinearKind::O => LinearKind::O,
            LinearKind::Gate | LinearKind::Up => LinearKind::Gate,
            LinearKind::Down => LinearKind::Down,
        };
        Self { layer: id.layer, first }
    }
}

/// Which texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Split {
    /// Those that the method sees.
    Calibration,
    /// Those on which only the error is measured.
    Heldout,
}

/// The finished sums of one fine-tune on one set of texts: a folder with a file for each input and split.
#[derive(Debug, Clone)]
pub(crate) struct Calibration {
    dir: PathBuf,
    has_heldout: bool,
}

/// What the sums depend on: the fine-tune's weights and the tokens.
pub(crate) fn digest(finetuned_digest: &str, samples: &Samples) -> String {
    let mut hash = Sha256::new();
    hash.update("deltamux calibration 1\n");
    hash.update(finetuned_digest);
    for texts in [&samples.calibration, &samples.heldout] {
        hash.update((texts.len() as u64).to_le_bytes());
        for text in texts {
            hash.update((text.len() as u64).to_le_bytes());
            text.iter().for_each(|token| hash.update(token.to_le_bytes()));
        }
    }
    hex::encode(hash.finalize())
}

impl Calibration {
    /// `C` of an input on a split; `None` when there are no such texts.
    pub fn moments<T>(&self, input: InputId, split: Split, inputs: usize) -> Result<Option<Matrix<T>>, CompressError>
    where
        T: From<f32> + Copy + Default,
    {
        if split == Split::Heldout && !self.has_heldout {
            return Ok(None);
        }
        moments::read(&self.path(input, split), inputs).map(Some)
    }

    fn path(&self, input: InputId, split: Split) -> PathBuf {
        let module = match input.first {
            LinearKind::Q | LinearKind::K | LinearKind::V => "q",
            LinearKind::O => "o",
            LinearKind::Gate | LinearKind::Up => "gate",
            LinearKind::Down => "down",
        };
        let split = match split {
            Split::Calibration => "calibration",
            Split::Heldout => "heldout",
        };
        self.dir.join(format!("L{:03}-{module}.{split}", input.layer))
    }
}

/// Gathers in `dir` the sums of the inputs `wanted` that are not there yet; `progress` gets layers done and all layers.
pub(crate) fn calibrate(
    model: &mut LayerwiseModel<'_>,
    config: &ModelConfig,
    samples: &Samples,
    wanted: &BTreeSet<InputId>,
    dir: &Path,
    progress: &dyn Fn(usize, usize),
) -> Result<Calibration, CompressError> {
    fs_err::create_dir_all(dir)?;
    let calibration = Calibration {
        dir: dir.to_path_buf(),
        has_heldout: !samples.heldout.is_empty(),
    };
    let width = |input: &InputId| config.linear_shape(input.first).1;
    let splits = [
        (Split::Calibration, &samples.calibration),
        (Split::Heldout, &samples.heldout),
    ];
    let missing: BTreeSet<InputId> = wanted
        .iter()
        .copied()
        .filter(|input| {
            let missing = |split| !moments::is_complete(&calibration.path(*input, split), width(input));
            splits.iter().any(|(split, texts)| !texts.is_empty() && missing(*split))
        })
        .collect();
    let Some(last) = missing.last().map(|input| input.layer) else {
        return Ok(calibration);
    };
    let layers = last + 1;
    progress(0, layers);
    let mut states = splits
        .iter()
        .map(|(_, texts)| HiddenStates::embed(model, texts, config.hidden_size, dir))
        .collect::<Result<Vec<_>, _>>()?;
    for layer in 0..layers {
        let weights = model.layer(layer)?;
        for ((split, texts), states) in splits.iter().zip(&mut states) {
            let wanted: Vec<InputId> = missing.iter().copied().filter(|input| input.layer == layer).collect();
            let mut sums: BTreeMap<InputId, Moments> = wanted.iter().map(|i| (*i, Moments::new(width(i)))).collect();
            run(model, &weights, texts, states, &mut sums)?;
            if texts.is_empty() {
                continue;
            }
            for (input, moments) in sums {
                moments.write(&calibration.path(input, *split))?;
            }
        }
        progress(layer + 1, layers);
    }
    Ok(calibration)
}

/// Takes all texts through one layer and adds up what its linears see.
fn run(
    model: &mut LayerwiseModel<'_>,
    weights: &LayerWeights,
    texts: &[Vec<u32>],
    states: &mut HiddenStates,
    sums: &mut BTreeMap<InputId, Moments>,
) -> Result<(), CompressError> {
    let mut start = 0;
    for batch in batches(texts) {
        let lengths: Vec<usize> = batch.iter().map(Vec::len).collect();
        let rows = lengths.iter().sum();
        let mut x = states.read(start, rows)?;
        model.run(weights, &lengths, &mut x, &mut |id, rows| {
            let input = InputId::of(id);
            if input.first == id.kind
                && let Some(sum) = sums.get_mut(&input)
            {
                sum.add(rows);
            }
        })?;
        states.write(start, &x)?;
        start += rows;
    }
    Ok(())
}

/// Cuts texts into runs of about [`BATCH_TOKENS`] tokens.
fn batches(texts: &[Vec<u32>]) -> Vec<&[Vec<u32>]> {
    let mut batches = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (i, text) in texts.iter().enumerate() {
        if i > start && tokens + text.len() > BATCH_TOKENS {
            batches.push(&texts[start..i]);
            (start, tokens) = (i, 0);
        }
        tokens += text.len();
    }
    if start < texts.len() {
        batches.push(&texts[start..]);
    }
    batches
}

/// Hidden states of all tokens between two layers, in a file that goes with this.
struct HiddenStates {
    file: tempfile::NamedTempFile,
    hidden: usize,
}

impl HiddenStates {
    fn embed(model: &LayerwiseModel<'_>, texts: &[Vec<u32>], hidden: usize, dir: &Path) -> Result<Self, CompressError> {
        let mut states = Self {
            file: temp::create_in(dir)?,
            hidden,
        };
        let mut start = 0;
        for batch in batches(texts) {
            let tokens = batch.concat();
            let mut x = vec![0.0; tokens.len() * hidden];
            model.embed(&tokens, &mut x)?;
            states.write(start, &x)?;
            start += tokens.len();
        }
        Ok(states)
    }

    /// Rows `[rows, hidden]` from row `start`.
    fn read(&mut self, start: usize, rows: usize) -> std::io::Result<Vec<f32>> {
        let mut x = vec![0f32; rows * self.hidden];
        let bytes = bytemuck::cast_slice_mut(&mut x);
        self.at(start, |file| file.read_exact(bytes))?;
        Ok(x)
    }

    fn write(&mut self, start: usize, x: &[f32]) -> std::io::Result<()> {
        self.at(start, |file| file.write_all(bytemuck::cast_slice(x)))
    }

    fn at(&mut self, row: usize, work: impl FnOnce(&mut std::fs::File) -> std::io::Result<()>) -> std::io::Result<()> {
        let at = row as u64 * self.hidden as u64 * 4;
        let file = self.file.as_file_mut();
        let done = file.seek(SeekFrom::Start(at)).and_then(|_| work(file));
        done.map_err(|e| temp::named(self.file.path(), e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_keep_every_text_and_split_long_ones_off() {
        let texts = vec![vec![0; 600], vec![0; 500], vec![0; 3000], vec![0; 10]];
        let sizes: Vec<usize> = batches(&texts).iter().map(|b| b.len()).collect();
        assert_eq!(sizes, [1, 1, 1, 1]);
        assert_eq!(batches(&texts[..0]).len(), 0);
        assert_eq!(batches(&[vec![0; 10], vec![0; 10]]).len(), 1);
    }

    #[test]
    fn the_digest_depends_on_every_token_and_on_where_texts_end() {
        let samples = |calibration: &[&[u32]], heldout: &[&[u32]]| Samples {
            calibration: calibration.iter().map(|t| t.to_vec()).collect(),
            heldout: heldout.iter().map(|t| t.to_vec()).collect(),
            sha256: String::new(),
        };
        let all = [
            digest("a", &samples(&[&[1, 2]], &[&[3]])),
            digest("b", &samples(&[&[1, 2]], &[&[3]])),
            digest("a", &samples(&[&[1], &[2]], &[&[3]])),
            digest("a", &samples(&[&[1, 2], &[3]], &[])),
            digest("a", &samples(&[&[1, 2]], &[&[4]])),
        ];
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }
}
