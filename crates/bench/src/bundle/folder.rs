//! A bundle as a folder: written whole or not at all, and read back.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use super::{
    ANSWERS_FILE, AnswerRecord, DIGESTS_FILE, ENVIRONMENT_FILE, EVENTS_FILE, Environment, EventsError, RUN_FILE,
    RequestRecord, Run, SCHEMA_VERSION, SERVER_FILE, ServerReport, read_answers, read_events, write_answers,
    write_events,
};

/// Why a bundle could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The file system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The raw events.
    #[error("{path}: {source}", path = path.display())]
    Events {
        /// The bundle.
        path: PathBuf,
        /// What is wrong.
        source: EventsError,
    },
    /// A JSON file of the bundle.
    #[error("{path}: {what}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Another version of the format.
    #[error(
        "{path}: schema_version is {found}, this deltamux reads {SCHEMA_VERSION}; use the version that wrote it",
        path = path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: u64,
    },
    /// The run's folder is already there.
    #[error("{path} is already there; a bundle is never overwritten", path = .0.display())]
    Exists(PathBuf),
}

/// A bundle in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundle {
    /// Summary.
    pub run: Run,
    /// Raw events.
    pub records: Vec<RequestRecord>,
    /// Answers to tasks; kept only in the quality profile.
    pub answers: Vec<AnswerRecord>,
    /// The client's machine.
    pub environment: Environment,
    /// The server's own report.
    pub server: ServerReport,
}

impl Bundle {
    /// Writes the bundle as the folder `out`/`<id>`, which appears with all of its files at once, and gives its path.
    pub fn write(&self, out: &Path) -> Result<PathBuf, BundleError> {
        fs_err::create_dir_all(out)?;
        let path = out.join(&self.run.id);
        if path.symlink_metadata().is_ok() {
            return Err(BundleError::Exists(path));
        }
        let events = write_events(&self.records).map_err(|source| BundleError::Events {
            path: path.clone(),
            source,
        })?;
        let mut files = Vec::new();
        if self.run.quality.is_some() {
            let answers = write_answers(&self.answers).map_err(|e| BundleError::Json {
                path: path.join(ANSWERS_FILE),
                what: e.to_string(),
            })?;
            files.push((ANSWERS_FILE, answers));
        }
        files.extend([
            (ENVIRONMENT_FILE, json(&self.environment, &path)?),
            (EVENTS_FILE, events),
            (RUN_FILE, json(&self.run, &path)?),
            (SERVER_FILE, json(&self.server, &path)?),
        ]);
        let digests = digests(files.iter().map(|(name, bytes)| (*name, bytes.as_slice())));

        let temporary = tempfile::Builder::new().prefix(".run-").tempdir_in(out)?;
        for (name, bytes) in files
            .iter()
            .map(|(n, b)| (*n, b.as_slice()))
            .chain([(DIGESTS_FILE, digests.as_bytes())])
        {
            write_synced(&temporary.path().join(name), bytes)?;
        }
        // Temporary folders are private; a bundle is to be shared.
        share(temporary.path())?;
        fs_err::File::open(temporary.path())?.sync_all()?;
        fs_err::rename(temporary.path(), &path)?;
        // It is no longer where its guard would look for it.
        let _ = temporary.keep();
        fs_err::File::open(out)?.sync_all()?;
        Ok(path)
    }

    /// Reads the files of a bundle. Digests and figures are [`verify`](crate::verify::verify)'s to check.
    pub fn read(path: &Path) -> Result<Self, BundleError> {
        let events = fs_err::read(path.join(EVENTS_FILE))?;
        let run = Run::read(path)?;
        let answers = match &run.quality {
            Some(_) => {
                let file = path.join(ANSWERS_FILE);
                read_answers(&fs_err::read(&file)?).map_err(|e| BundleError::Json {
                    path: file,
                    what: e.to_string(),
                })?
            }
            None => Vec::new(),
        };
        Ok(Self {
            run,
            answers,
            records: read_events(events).map_err(|source| BundleError::Events {
                path: path.into(),
                source,
            })?,
            environment: read_json(&path.join(ENVIRONMENT_FILE))?,
            server: read_json(&path.join(SERVER_FILE))?,
        })
    }
}

impl Run {
    /// Reads the summary of the bundle in the folder `path`.
    pub fn read(path: &Path) -> Result<Self, BundleError> {
        let file = path.join(RUN_FILE);
        let bytes = fs_err::read(&file)?;
        Self::parse(&bytes, &file)
    }

    /// Reads a summary from the bytes of `file`.
    pub fn parse(bytes: &[u8], file: &Path) -> Result<Self, BundleError> {
        #[derive(serde::Deserialize)]
        struct Version {
            schema_version: u64,
        }
        let version: Version = parse_json(bytes, file)?;
        if version.schema_version != u64::from(SCHEMA_VERSION) {
            return Err(BundleError::Version {
                path: file.into(),
                found: version.schema_version,
            });
        }
        parse_json(bytes, file)
    }
}

/// The bytes of a JSON file of a bundle. There is one form of each document, so that verification can compare bytes.
pub(crate) fn json(value: &impl serde::Serialize, path: &Path) -> Result<Vec<u8>, BundleError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|e| BundleError::Json {
        path: path.into(),
        what: e.to_string(),
    })?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn read_json<T: DeserializeOwned>(file: &Path) -> Result<T, BundleError> {
    parse_json(&fs_err::read(file)?, file)
}

pub(crate) fn parse_json<T: DeserializeOwned>(bytes: &[u8], file: &Path) -> Result<T, BundleError> {
    serde_json::from_slice(bytes).map_err(|e| BundleError::Json {
        path: file.into(),
        what: e.to_string(),
    })
}

/// The text of `SHA256SUMS`, in the form that `sha256sum --check` reads.
pub(crate) fn digests<'a>(files: impl Iterator<Item = (&'a str, &'a [u8])>) -> String {
    files
        .map(|(name, bytes)| format!("{}  {name}\n", hex::encode(Sha256::digest(bytes))))
        .collect()
}

fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut file = fs_err::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(unix)]
fn share(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs_err::set_permissions(folder, std::fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn share(_: &Path) -> std::io::Result<()> {
    Ok(())
}
