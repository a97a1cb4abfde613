//! A model's predictions beside those of the full fine-tune it stands for, along right answers.
//!
//! Exact match says whether answers are right; it moves in steps of one answer and says nothing of how near the others
//! came. Here both models read each task and its right answer, and the distributions that they predict each of the
//! answer's tokens by are compared.

mod statistics;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use deltamux_delta::Artifact;
use deltamux_kernels::Threads;
use deltamux_model::{
    Backend, ChatTemplate, Checkpoint, CpuBackend, LoadOptions, LogitRows, PAGE_TOKENS, Precision, SequenceChunk,
    TemplateError, Tokenizer, VariantWeights, WeightCache,
};

use crate::tasks::Task;
pub use statistics::{Agreement, Sums};

/// Tokens of one forward pass, about.
const BATCH_TOKENS: usize = 1024;

/// Positions whose logits are in memory at once, about.
const BATCH_POSITIONS: usize = 128;

/// What to compare.
#[derive(Debug, Clone)]
pub struct AgreementOptions {
    /// Directory of the model: the base, or a full checkpoint.
    pub model: PathBuf,
    /// Artifact of the variant that answers from it, if one does.
    pub variant: Option<PathBuf>,
    /// Directory of the reference, the full fine-tune: loaded as it is stored, with its own tokenizer and chat template.
    pub reference: PathBuf,
    /// How the model's matrices are kept.
    pub precision: Precision,
    /// Where the model's packed matrices are kept for the next time.
    pub weight_cache: WeightCache,
}

/// Why nothing could be compared.
#[derive(Debug, thiserror::Error)]
pub enum AgreementError {
    /// A model cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] deltamux_model::CheckpointError),
    /// The variant cannot be used.
    #[error(transparent)]
    Artifact(#[from] deltamux_delta::ArtifactError),
    /// The reference's tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] deltamux_model::TokenizerError),
    /// The reference has no usable chat template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A task does not suit the models.
    #[error("task in line {line}: {what}")]
    Task {
        /// Line of the file.
        line: usize,
        /// Why.
        what: String,
    },
    /// A model computes what is no number.
    #[error(
        "a model's logits are not finite, or give a token of the reference no probability: its weights are damaged, or \
         the variant is of another base; check it with `deltamux inspect`"
    )]
    NotFinite,
    /// No answer has a token.
    #[error("no task has an answer with a token that both models know; give answers that are not empty")]
    NoAnswer,
}

/// What a comparison gave.
#[derive(Debug, Clone)]
pub struct Compared {
    /// Digest of the reference's weights.
    pub reference_digest: String,
    /// One for each task, in their order; without positions where the right answer has no token.
    pub tasks: Vec<Sums>,
}

/// A task as tokens.
struct Text {
    /// Its place among the tasks.
    task: usize,
    line: usize,
    /// Prompt and right answer.
    tokens: Vec<u32>,
    /// Tokens of the prompt; at least one.
    prompt: usize,
}

impl Text {
    /// Tokens of the right answer.
    fn answer(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }
}

/// Both models read every task; `progress` gets the number of tasks done. Both are in memory at once.
pub fn agreement(
    options: &AgreementOptions,
    tasks: &[Task],
    progress: &dyn Fn(usize),
) -> Result<Agreement, AgreementError> {
    let mut sums = Sums::default();
    for task in &compare(options, tasks, progress)?.tasks {
        sums.merge(task);
    }
    sums.agreement().ok_or(AgreementError::NoAnswer)
}

/// The same, task by task. At least one has positions.
pub fn compare(
    options: &AgreementOptions,
    tasks: &[Task],
    progress: &dyn Fn(usize),
) -> Result<Compared, AgreementError> {
    let texts = texts(&options.reference, tasks)?;
    let threads = Threads::new(0);
    let checkpoint = Checkpoint::open(&options.model)?;
    let variant = options
        .variant
        .as_deref()
        .map(|artifact| load_variant(artifact, &checkpoint))
        .transpose()?;
    let load = LoadOptions {
        precision: options.precision,
        cache: &options.weight_cache,
        ..LoadOptions::default()
    };
    let mut model = CpuBackend::load_with(&checkpoint, threads.clone(), &load)?;
    let full = Checkpoint::open(&options.reference)?;
    let mut reference = CpuBackend::load(&full, threads)?;
    let mut sums = vec![Sums::default(); tasks.len()];
    let mut done = 0;
    for batch in batches(&texts) {
        let mut model = Reader::new(&mut model, variant.as_ref(), batch)?;
        let mut reference = Reader::new(&mut reference, None, batch)?;
        let longest = batch.iter().map(|text| text.answer().len()).max().unwrap_or(0);
        for first in (0..longest).step_by(BATCH_POSITIONS) {
            let window = |text: &Text| {
                let end = text.answer().len().min(first + BATCH_POSITIONS);
                first.min(end)..end
            };
            let (logits, expected) = (model.predict(&window)?, reference.predict(&window)?);
            let tokens = batch
                .iter()
                .flat_map(|text| text.answer()[window(text)].iter().map(|token| (text.task, *token)));
            for ((logits, expected), (task, token)) in logits.iter().zip(&expected).zip(tokens) {
                if !sums[task].add(logits, expected, token) {
                    return Err(AgreementError::NotFinite);
                }
            }
        }
        done += batch.len();
        progress(done);
    }
    if texts.is_empty() {
        return Err(AgreementError::NoAnswer);
    }
    Ok(Compared {
        reference_digest: full.digest(),
        tasks: sums,
    })
}

fn load_variant(artifact: &Path, base: &Checkpoint) -> Result<Arc<VariantWeights>, AgreementError> {
    Ok(Arc::new(Artifact::open(artifact)?.load(base.config(), &base.digest())?))
}

/// Renders and tokenises the tasks as the reference sees them; those whose answers have no tokens are left out.
fn texts(reference: &Path, tasks: &[Task]) -> Result<Vec<Text>, AgreementError> {
    let tokenizer = Tokenizer::from_dir(reference)?;
    let template = ChatTemplate::from_dir(reference)?.ok_or_else(|| TemplateError::Missing(reference.to_path_buf()))?;
    let mut texts = Vec::new();
    for (place, task) in tasks.iter().enumerate() {
        let refused = |what: String| AgreementError::Task { line: task.line, what };
        let prompt = template
            .render(&task.messages, None, true, &serde_json::Map::new())
            .map_err(|e| refused(e.to_string()))?;
        let alone = tokenizer.encode(&prompt, false)?;
        let tokens = tokenizer.encode(&format!("{prompt}{}", task.answer.trim()), false)?;
        // A token may span the end of the prompt: it then belongs to the answer.
        let prompt = alone.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        if prompt == 0 {
            return Err(refused("the prompt has no tokens before the answer".to_owned()));
        }
        if tokens.len() > prompt {
            texts.push(Text {
                task: place,
                line: task.line,
                tokens,
                prompt,
            });
        }
    }
    Ok(texts)
}

/// Cuts texts into runs of about [`BATCH_TOKENS`] tokens and [`BATCH_POSITIONS`] answer tokens.
fn batches(texts: &[Text]) -> Vec<&[Text]> {
    let mut batches = Vec::new();
    let (mut start, mut tokens, mut positions) = (0, 0, 0);
    for (i, text) in texts.iter().enumerate() {
        let own = text.answer().len();
        if i > start && (tokens + text.tokens.len() > BATCH_TOKENS || positions + own > BATCH_POSITIONS) {
            batches.push(&texts[start..i]);
            (start, tokens, positions) = (i, 0, 0);
        }
        tokens += text.tokens.len();
        positions += own;
    }
    if start < texts.len() {
        batches.push(&texts[start..]);
    }
    batches
}

/// A model that reads a batch of texts.
struct Reader<'a> {
    model: &'a mut CpuBackend,
    variant: Option<&'a Arc<VariantWeights>>,
    batch: &'a [Text],
    /// KV pages of each text.
    pages: Vec<Vec<u32>>,
}

impl<'a> Reader<'a> {
    /// Reads the prompts up to their last token.
    fn new(
        model: &'a mut CpuBackend,
        variant: Option<&'a Arc<VariantWeights>>,
        batch: &'a [Text],
    ) -> Result<Self, AgreementError> {
        let mut next = 0u32;
        let pages = batch.iter().map(|text| {
            let count = text.tokens.len().div_ceil(PAGE_TOKENS) as u32;
            next += count;
            (next - count..next).collect()
        });
        let pages = pages.collect();
        model.allocate_kv(next as usize);
        let mut reader = Self {
            model,
            variant,
            batch,
            pages,
        };
        reader.check()?;
        reader.step(&|text| 0..text.prompt - 1, LogitRows::None)?;
        Ok(reader)
    }

    /// Refuses tokens that the model does not have.
    fn check(&self) -> Result<(), AgreementError> {
        let own = self.variant.and_then(|variant| variant.vocab_size);
        let vocabulary = own.unwrap_or(self.model.config().vocab_size);
        for text in self.batch {
            let longest = self.model.config().max_position_embeddings;
            if text.tokens.len() > longest {
                let what = format!("{} tokens, but the model reads {longest} at most", text.tokens.len());
                return Err(AgreementError::Task { line: text.line, what });
            }
            if let Some(token) = text.tokens.iter().find(|token| **token as usize >= vocabulary) {
                let what = format!(
                    "the reference's token {token} is beyond the model's vocabulary of {vocabulary}; compare with the \
                     fine-tune that the variant was made of"
                );
                return Err(AgreementError::Task { line: text.line, what });
            }
        }
        Ok(())
    }

    /// The logits by which these tokens of each answer are predicted, one text after another.
    fn predict(&mut self, of: &dyn Fn(&Text) -> Range<usize>) -> Result<Vec<Vec<f32>>, AgreementError> {
        let before = |text: &Text| {
            let Range { start, end } = of(text);
            text.prompt - 1 + start..text.prompt - 1 + end
        };
        self.step(&before, LogitRows::All)
    }

    fn step(&mut self, of: &dyn Fn(&Text) -> Range<usize>, logits: LogitRows) -> Result<Vec<Vec<f32>>, AgreementError> {
        let chunks: Vec<SequenceChunk<'_>> = self
            .batch
            .iter()
            .zip(&self.pages)
            .filter(|(text, _)| !of(text).is_empty())
            .map(|(text, pages)| SequenceChunk {
                tokens: &text.tokens[of(text)],
                start: of(text).start,
                pages,
                variant: self.variant,
                logits,
            })
            .collect();
        if chunks.is_empty() {
            return Ok(Vec::new());
        }
        self.model.forward(&chunks).map_err(|e| AgreementError::Task {
            line: self.batch[0].line,
            what: e.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_keep_every_text_and_bound_what_is_in_memory() {
        let text = |tokens: usize, prompt: usize| Text {
            task: 0,
            line: 1,
            tokens: vec![0; tokens],
            prompt,
        };
        let texts = [
            text(100, 50),
            text(100, 30),
            text(100, 90),
            text(3000, 2990),
            text(10, 9),
        ];
        let sizes: Vec<usize> = batches(&texts).iter().map(|b| b.len()).collect();
        assert_eq!(sizes, [2, 1, 1, 1]);
        assert!(batches(&[]).is_empty());
    }
}
