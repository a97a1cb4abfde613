//! The folder in which a run keeps what it has finished, so that it can go on after a crash.
//!
//! ```text
//! .NAME.work/            beside the artifact that is being made
//!   inputs.json          what the work was made from; a run that resumes must have the same
//!   lock                 held by the run that is at work
//!   calibration/         second moments, unless they have a folder of their own (--calibration-cache)
//!   surveys/             what each linear's ranks would gain at each width
//!   linears/             finished linears
//! ```
//!
//! Files appear as a whole or not at all. The folder is removed when the artifact is published.

use std::fs::TryLockError;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use deltamux_model::LinearId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::error::CompressError;
use crate::temp;

/// Goes up whenever the pipeline would make something else from the same inputs.
pub(crate) const PIPELINE_VERSION: u32 = 1;

/// Everything that the result depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Inputs {
    /// [`PIPELINE_VERSION`].
    pub pipeline: u32,
    /// Digest of the base's weights and arithmetic.
    pub base: String,
    /// Digest of the fine-tune's.
    pub finetuned: String,
    /// Digest of the calibration's tokens with the fine-tune.
    pub calibration: String,
    pub method: String,
    /// Absent when the method takes what it takes.
    pub ratio: Option<f64>,
    pub budget: String,
    pub widths: String,
    pub embeddings: String,
    pub shard: super::Shard,
}

impl Inputs {
    /// The fields in which `other` differs, with both values.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let fields = |inputs: &Self| match serde_json::to_value(inputs) {
            Ok(serde_json::Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        let theirs = fields(other);
        fields(self)
            .into_iter()
            .filter_map(|(name, ours)| {
                let theirs = theirs.get(&name).cloned().unwrap_or_default();
                (ours != theirs).then(|| format!("{name} is {ours}, but was {theirs}"))
            })
            .collect()
    }
}

/// A run's folder, locked.
#[derive(Debug)]
pub(crate) struct Work {
    dir: PathBuf,
    lock: fs_err::File,
}

/// Kinds of records that a linear has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Record {
    Survey,
    Linear,
}

impl Record {
    const fn folder(self) -> &'static str {
        match self {
            Self::Survey => "surveys",
            Self::Linear => "linears",
        }
    }
}

/// The folder beside `out`.
pub fn work_dir(out: &Path) -> PathBuf {
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    out.with_file_name(format!(".{name}.work"))
}

impl Work {
    /// Makes or takes over the folder of `out`. With `resume`, finished work of the same inputs is kept and that of
    /// others refused; without, it is thrown away.
    pub fn open(out: &Path, inputs: &Inputs, resume: bool) -> Result<Self, CompressError> {
        let dir = work_dir(out);
        let lock = loop {
            fs_err::create_dir_all(&dir)?;
            let path = dir.join("lock");
            let options = {
                let mut options = fs_err::File::options();
                options.create(true).truncate(false).write(true);
                options
            };
            let lock = options.open(&path)?;
            match lock.file().try_lock() {
                Ok(()) if is_at(&lock, &path)? => break lock,
                // A run that ended meanwhile has removed the folder.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(CompressError::Option(format!(
                        "{}: another compress is at work on {}; wait for it, or choose another --out",
                        dir.display(),
                        out.display()
                    )));
                }
                Err(TryLockError::Error(error)) => {
                    tracing::warn!(
                        "{}: the file system has no locks ({error}); nothing keeps two runs from the same --out",
                        dir.display()
                    );
                    break lock;
                }
            }
        };
        let work = Self { dir, lock };
        let path = work.dir.join("inputs.json");
        if resume && path.is_file() {
            let found: Inputs =
                serde_json::from_slice(&fs_err::read(&path)?).map_err(|e| work.refuse(format!("inputs.json: {e}")))?;
            let differences = inputs.differences(&found);
            if !differences.is_empty() {
                return Err(work.refuse(format!(
                    "was made from other inputs: {}; give the same ones, or start afresh without --resume",
                    differences.join("; ")
                )));
            }
        } else {
            clear(&work.dir)?;
            let text = serde_json::to_vec_pretty(inputs).map_err(std::io::Error::from)?;
            work.put("inputs.json", &text)?;
        }
        for folder in ["calibration", Record::Survey.folder(), Record::Linear.folder()] {
            fs_err::create_dir_all(work.dir.join(folder))?;
        }
        Ok(work)
    }

    fn refuse(&self, what: String) -> CompressError {
        CompressError::Option(format!("{}: {what}", self.dir.display()))
    }

    /// Where second moments go when they have no folder of their own.
    pub fn calibration_dir(&self) -> PathBuf {
        self.dir.join("calibration")
    }

    /// What was stored of a linear, if anything: the description and the bytes.
    ///
    /// # Errors
    /// A record that is not what was written.
    pub fn load<T: DeserializeOwned>(
        &self,
        record: Record,
        id: LinearId,
    ) -> Result<Option<(T, Vec<u8>)>, CompressError> {
        let path = self.dir.join(record.folder()).join(id.to_string());
        let file = match fs_err::read(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        parse(&file).map(Some).ok_or_else(|| CompressError::Damaged {
            path,
            what: "is damaged; delete this file and run again with --resume".to_string(),
        })
    }

    /// Stores a description and bytes of a linear.
    pub fn store<T: Serialize>(
        &self,
        record: Record,
        id: LinearId,
        about: &T,
        bytes: &[u8],
    ) -> Result<(), CompressError> {
        let about = serde_json::to_vec(about).map_err(std::io::Error::from)?;
        let mut file = Vec::with_capacity(8 + about.len() + bytes.len() + 32);
        file.extend((about.len() as u64).to_le_bytes());
        file.extend(&about);
        file.extend(bytes);
        let digest = Sha256::digest(&file);
        file.extend(digest);
        self.put(&format!("{}/{id}", record.folder()), &file)?;
        Ok(())
    }

    fn put(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        let path = self.dir.join(name);
        let mut temp = temp::create_in(path.parent().unwrap_or(&self.dir))?;
        temp.write_all(bytes).map_err(|e| temp::named(&path, e))?;
        temp::persist(temp, &path)
    }

    /// Removes the folder: the artifact is there, or nothing is worth keeping. What stays is only in the way, so a
    /// failure is a warning.
    pub fn remove(self) {
        let Self { dir, lock } = self;
        let removed = clear(&dir).and_then(|()| {
            // An open file would stay in the folder on some network file systems.
            drop(lock);
            fs_err::remove_file(dir.join("lock"))?;
            fs_err::remove_dir(&dir)
        });
        if let Err(error) = removed {
            tracing::warn!("finished work could not be removed: {error}");
        }
    }

    /// Removes the folder if it holds nothing that a later run could use.
    pub fn remove_if_unused(self) {
        let used = |folder: &str| fs_err::read_dir(self.dir.join(folder)).is_ok_and(|mut files| files.next().is_some());
        if !["calibration", Record::Survey.folder(), Record::Linear.folder()]
            .into_iter()
            .any(used)
        {
            self.remove();
        }
    }
}

/// Whether the open file is the one at `path`.
fn is_at(file: &fs_err::File, path: &Path) -> std::io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let ours = file.metadata()?;
        Ok(match fs_err::metadata(path) {
            Ok(there) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        })
    }
    #[cfg(not(unix))]
    {
        let _ = (file, path);
        Ok(true)
    }
}

/// Removes everything in the folder but the lock.
fn clear(dir: &Path) -> std::io::Result<()> {
    for entry in fs_err::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() == "lock" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs_err::remove_dir_all(entry.path())?;
        } else {
            fs_err::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn parse<T: DeserializeOwned>(file: &[u8]) -> Option<(T, Vec<u8>)> {
    let (content, digest) = file.split_at_checked(file.len().checked_sub(32)?)?;
    if *digest != *Sha256::digest(content) {
        return None;
    }
    let (length, rest) = content.split_first_chunk::<8>()?;
    let (about, bytes) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some((serde_json::from_slice(about).ok()?, bytes.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::super::Shard;
    use super::*;
    use deltamux_model::LinearKind;

    fn inputs() -> Inputs {
        Inputs {
            pipeline: PIPELINE_VERSION,
            base: "b".into(),
            finetuned: "f".into(),
            calibration: "c".into(),
            method: "best".into(),
            ratio: Some(0.0625),
            budget: "model".into(),
            widths: "4 of 2,3,4,8".into(),
            embeddings: "auto".into(),
            shard: Shard::WHOLE,
        }
    }

    const ID: LinearId = LinearId {
        layer: 3,
        kind: LinearKind::Up,
    };

    #[test]
    fn finished_work_is_found_again_by_the_same_inputs_only() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("sql");
        let work = Work::open(&out, &inputs(), false).unwrap();
        work.store(Record::Linear, ID, &(0.1f64, "x"), &[1, 2, 3]).unwrap();
        assert!(
            Work::open(&out, &inputs(), true)
                .unwrap_err()
                .to_string()
                .contains("another compress is at work")
        );
        drop(work);

        let work = Work::open(&out, &inputs(), true).unwrap();
        let found: Option<((f64, String), Vec<u8>)> = work.load(Record::Linear, ID).unwrap();
        assert_eq!(found, Some(((0.1, "x".to_string()), vec![1, 2, 3])));
        assert!(work.load::<f64>(Record::Survey, ID).unwrap().is_none());
        drop(work);

        let other = Inputs {
            ratio: Some(0.5),
            ..inputs()
        };
        let error = Work::open(&out, &other, true).unwrap_err().to_string();
        assert!(error.contains("ratio is 0.5, but was 0.0625"), "{error}");
        // Starting afresh throws it away.
        let work = Work::open(&out, &other, false).unwrap();
        assert!(work.load::<(f64, String)>(Record::Linear, ID).unwrap().is_none());
        work.remove_if_unused();
        assert!(!work_dir(&out).exists());
    }

    #[test]
    fn a_damaged_record_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("sql");
        let work = Work::open(&out, &inputs(), false).unwrap();
        work.store(Record::Linear, ID, &1u8, &[1, 2, 3]).unwrap();
        let path = work_dir(&out).join("linears").join(ID.to_string());
        let good = fs_err::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs_err::write(&path, &bad).unwrap();
            let error = work.load::<u8>(Record::Linear, ID).unwrap_err().to_string();
            assert!(error.contains("model.layers.3.mlp.up_proj: is damaged"), "{error}");
        }
        for length in 0..good.len() {
            fs_err::write(&path, &good[..length]).unwrap();
            assert!(work.load::<u8>(Record::Linear, ID).is_err());
        }
    }
}
