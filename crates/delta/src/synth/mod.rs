//! Models and artifacts of a real shape with random weights: for load tests of shapes whose weights are not at hand.
//!
//! ```text
//! DIR/
//!   synth.json         what was made, and of what
//!   base/              a checkpoint as Hugging Face writes it
//!   variants/v000 …    artifacts of that base
//!   full/v000 …        checkpoints of the first variants: what `restore` makes of their artifacts
//! ```
//!
//! Everything follows from the options: two runs give the same bytes, for any number of threads.

mod base;
mod random;
mod shapes;
mod text;
mod variant;

use std::io;
use std::path::Path;

use deltamux_kernels::Threads;
use deltamux_model::Checkpoint;
use serde::Serialize;

use crate::artifact::{ArtifactError, Target};
use crate::restore::{RestoreError, restore};

pub use shapes::{SHAPES, Shape};

/// The method in the manifests of made artifacts.
pub const METHOD: &str = "synth";

/// The file that says what a directory holds; also what marks one that may be replaced.
const DESCRIPTION: &str = "synth.json";

/// Variants that are made at most.
const MOST_VARIANTS: usize = 100_000;

/// Why nothing was made.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// The file system.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The target cannot be written.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// The made configuration was refused.
    #[error(transparent)]
    Config(#[from] deltamux_model::ConfigError),
    /// The made base was refused.
    #[error(transparent)]
    Checkpoint(#[from] deltamux_model::CheckpointError),
    /// A full checkpoint could not be made.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// An option has no meaning.
    #[error("{0}")]
    Option(String),
}

/// What is being made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The base's weights; counted in MiB.
    Base,
    /// Reading the base again for its digest; counted in steps.
    Digest,
    /// Variants.
    Variants,
    /// Full checkpoints; counted in tensors.
    Full,
}

/// Told how far a stage is: stage, done, total.
pub type Progress<'a> = &'a (dyn Fn(Stage, usize, usize) + Sync);

/// What to make.
#[derive(Debug, Clone)]
pub struct SynthOptions {
    /// The model's shape.
    pub shape: &'static Shape,
    /// Number of variants.
    pub variants: usize,
    /// Of so many of them, the first ones, the full checkpoints too.
    pub full: usize,
    /// Stored bytes of a variant's linears over their bf16 bytes, above 0 and at most 1.
    pub ratio: f64,
    /// Seed of all weights.
    pub seed: u64,
    /// Threads; 0 means one for each available core. The result does not depend on it.
    pub threads: usize,
    /// Replace what an earlier call made.
    pub force: bool,
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Made {
    /// Name of the shape.
    pub shape: &'static str,
    /// Weights of the base.
    pub parameters: u64,
    /// Digest of the base.
    pub base_digest: String,
    /// Bytes of the base's weights.
    pub base_bytes: u64,
    /// The variants in order.
    pub variants: Vec<MadeVariant>,
    /// The full checkpoints in order.
    pub full: Vec<MadeFull>,
}

/// A variant that was made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MadeVariant {
    /// Name: its folder's.
    pub name: String,
    /// Content digest.
    pub generation: String,
    /// Bytes of its files, without the manifest.
    pub bytes: u64,
    /// Stored bytes of the linears over their bf16 bytes.
    pub linear_ratio: Option<f64>,
}

/// A full checkpoint that was made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MadeFull {
    /// Name of its variant, and of its folder.
    pub name: String,
    /// Bytes of its weights.
    pub bytes: u64,
}

/// Makes the directory `out`. On an error nothing is left there.
pub fn synth(out: &Path, options: &SynthOptions, progress: Progress<'_>) -> Result<Made, SynthError> {
    check(options)?;
    let target = Target::new(out, options.force, DESCRIPTION)?;
    Threads::new(options.threads).install(|| make(target, options, progress))
}

fn check(options: &SynthOptions) -> Result<(), SynthError> {
    let refuse = |what: String| Err(SynthError::Option(what));
    if !(options.ratio > 0.0 && options.ratio <= 1.0) {
        return refuse(format!(
            "ratio {}: expected a share above 0 and at most 1, such as 1/16 or 0.0625",
            options.ratio
        ));
    }
    if options.variants > MOST_VARIANTS {
        return refuse(format!(
            "{} variants: expected at most {MOST_VARIANTS}",
            options.variants
        ));
    }
    if options.full > options.variants {
        return refuse(format!(
            "{} full checkpoints of {} variants: lower --full or raise --variants",
            options.full, options.variants
        ));
    }
    Ok(())
}

fn make(target: Target, options: &SynthOptions, progress: Progress<'_>) -> Result<Made, SynthError> {
    let shape = options.shape;
    let base_dir = target.dir().join("base");
    base::write(shape, options.seed, &base_dir, base::SHARD_BYTES, progress)?;
    let base = Checkpoint::open(&base_dir)?;
    progress(Stage::Digest, 0, 1);
    let base_digest = base.digest();
    progress(Stage::Digest, 1, 1);
    let sizes = base.config().tensors().into_iter().map(|(_, shape)| shape);
    let parameters: u64 = sizes.map(|shape| shape.iter().product::<usize>() as u64).sum();

    let names: Vec<String> = (0..options.variants).map(|i| format!("v{i:03}")).collect();
    let variants_dir = target.dir().join("variants");
    fs_err::create_dir(&variants_dir)?;
    let mut variants = Vec::new();
    for (done, name) in names.iter().enumerate() {
        progress(Stage::Variants, done, names.len());
        let manifest = variant::write(&base, name, options.seed, options.ratio, &variants_dir.join(name))?;
        variants.push(MadeVariant {
            name: name.clone(),
            generation: manifest.generation(),
            bytes: manifest.files.iter().map(|file| file.bytes).sum(),
            linear_ratio: manifest.totals.linear_ratio,
        });
    }
    progress(Stage::Variants, names.len(), names.len());

    let mut full = Vec::new();
    for (done, name) in names.iter().take(options.full).enumerate() {
        let out = target.dir().join("full").join(name);
        let restored = restore(&base_dir, &variants_dir.join(name), &out, false, &|tensors, of| {
            progress(Stage::Full, done * of + tensors, options.full * of);
        })?;
        full.push(MadeFull {
            name: name.clone(),
            bytes: restored.bytes,
        });
    }
    let description = serde_json::json!({
        "made_by": format!("deltamux synth {}", env!("CARGO_PKG_VERSION")),
        "weights": "random",
        "shape": shape.name,
        "model": shape.model,
        "variants": options.variants,
        "full": options.full,
        "ratio": options.ratio,
        "seed": options.seed,
    });
    target.write(DESCRIPTION, &pretty(&description)?)?;
    target.publish()?;
    Ok(Made {
        shape: shape.name,
        parameters,
        base_digest,
        base_bytes: 2 * parameters,
        variants,
        full,
    })
}

/// JSON with a line for each field, as Hugging Face writes it.
fn pretty(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value).map_err(io::Error::from)?;
    text.push(b'\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::*;

    fn options() -> SynthOptions {
        SynthOptions {
            shape: Shape::from_name("tiny").unwrap(),
            variants: 2,
            full: 1,
            ratio: 1.0 / 16.0,
            seed: 3,
            threads: 1,
            force: false,
        }
    }

    /// Every file below `dir`, by its path there.
    fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut dirs = vec![dir.to_path_buf()];
        while let Some(next) = dirs.pop() {
            for entry in fs_err::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else {
                    let bytes = fs_err::read(&path).unwrap();
                    files.insert(path.strip_prefix(dir).unwrap().to_path_buf(), bytes);
                }
            }
        }
        files
    }

    #[test]
    fn the_same_options_give_the_same_bytes_for_any_number_of_threads() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, options: &SynthOptions| {
            let out = dir.path().join(name);
            synth(&out, options, &|_, _, _| {}).unwrap();
            files(&out)
        };
        let once = make("once", &options());
        let again = make(
            "again",
            &SynthOptions {
                threads: 3,
                ..options()
            },
        );
        assert!(once == again);
        let other = make("other", &SynthOptions { seed: 4, ..options() });
        assert_eq!(once.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
        for name in ["base/model.safetensors", "variants/v001/delta.safetensors"] {
            assert!(once[Path::new(name)] != other[Path::new(name)], "{name}");
        }
    }

    #[test]
    fn a_full_checkpoint_is_what_restore_makes() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let made = synth(&out, &options(), &|_, _, _| {}).unwrap();
        assert_eq!(made.full.len(), 1);
        let restored = dir.path().join("restored");
        restore(
            &out.join("base"),
            &out.join("variants/v000"),
            &restored,
            false,
            &|_, _| {},
        )
        .unwrap();
        assert!(files(&out.join("full/v000")) == files(&restored));
        assert!(
            files(&out.join("base"))[Path::new("model.safetensors")]
                != files(&restored)[Path::new("model.safetensors")]
        );
    }

    #[test]
    fn what_cannot_be_made_is_refused_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        for (options, expected) in [
            (
                SynthOptions { full: 3, ..options() },
                "lower --full or raise --variants",
            ),
            (
                SynthOptions {
                    ratio: 0.0,
                    ..options()
                },
                "ratio 0",
            ),
            (
                SynthOptions {
                    ratio: 1e-7,
                    ..options()
                },
                "raise --ratio",
            ),
            (
                SynthOptions {
                    variants: MOST_VARIANTS + 1,
                    ..options()
                },
                "at most",
            ),
        ] {
            let error = synth(&out, &options, &|_, _, _| {}).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn only_what_was_made_here_is_replaced_and_only_when_asked_to() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let small = SynthOptions {
            variants: 1,
            full: 0,
            ..options()
        };
        let digest = |options: &SynthOptions| synth(&out, options, &|_, _, _| {}).map(|made| made.base_digest);
        let first = digest(&small).unwrap();
        let other = SynthOptions {
            seed: 9,
            ..small.clone()
        };
        let error = digest(&other).unwrap_err().to_string();
        assert!(
            error.contains("choose another --out or replace it with --force"),
            "{error}"
        );
        let forced = SynthOptions { force: true, ..other };
        assert_ne!(digest(&forced).unwrap(), first);
        fs_err::remove_file(out.join(DESCRIPTION)).unwrap();
        let error = digest(&forced).unwrap_err().to_string();
        assert!(error.contains("not ours to replace"), "{error}");
    }
}
