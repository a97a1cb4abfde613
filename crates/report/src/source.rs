//! A run bundle as the site needs it: its summary, its raw events as far as they can be read, and the verdict on it.

use std::path::{Path, PathBuf};

use deltamux_bench::bundle::{
    self, ANSWERS_FILE, AnswerRecord, DIGESTS_FILE, ENVIRONMENT_FILE, EVENTS_FILE, RUN_FILE, RequestRecord, Run,
    SERVER_FILE, ServerReport,
};
use deltamux_bench::verify::{Status, Verification};

use sha2::{Digest as _, Sha256};

use crate::error::ReportError;

/// Largest `run.json` that is read: far above any real one, far below what would exhaust the machine.
const MAX_SUMMARY_BYTES: u64 = 256 << 20;

/// Every file of a bundle, in the order they are listed. Answers are only in those of the quality profile.
const FILES: [&str; 6] = [
    RUN_FILE,
    EVENTS_FILE,
    ANSWERS_FILE,
    ENVIRONMENT_FILE,
    SERVER_FILE,
    DIGESTS_FILE,
];

/// A bundle that was read.
#[derive(Debug)]
pub struct Source {
    /// Its folder.
    pub dir: PathBuf,
    /// Its summary.
    pub run: Run,
    /// Its raw events; without them the page has no request of its own to show, and the verdict says why.
    pub events: Option<Vec<RequestRecord>>,
    /// Its answers to tasks; absent in other profiles, and when they cannot be read.
    pub answers: Option<Vec<AnswerRecord>>,
    /// The client's machine, as recorded.
    pub environment: Option<serde_json::Value>,
    /// What the server said about itself, as recorded.
    pub server: Option<ServerReport>,
    /// Its files.
    pub files: Vec<File>,
    /// Whether its figures could be recomputed.
    pub verdict: Verdict,
}

/// A file of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Name within the bundle.
    pub name: &'static str,
    /// Its size; absent when the file is.
    pub bytes: Option<u64>,
    /// Its digest as `SHA256SUMS` states it; that of `SHA256SUMS` itself is computed.
    pub digest: Option<String>,
}

/// The result of `deltamux_bench`'s verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// All digests hold and every figure was recomputed from the raw events.
    pub validated: bool,
    /// What did not hold.
    pub reasons: Vec<String>,
}

impl Source {
    /// Reads and verifies the bundle in `dir`. A bundle that fails verification is read all the same; one whose
    /// summary cannot be read is an error.
    pub fn read(dir: &Path) -> Result<Self, ReportError> {
        let unreadable = |reason: String| ReportError::Unreadable {
            path: dir.to_owned(),
            reason,
        };
        let size = fs_err::metadata(dir.join(RUN_FILE)).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => unreadable(format!("it has no {RUN_FILE}")),
            _ => unreadable(e.to_string()),
        })?;
        if size.len() > MAX_SUMMARY_BYTES {
            let found = size.len();
            return Err(unreadable(format!(
                "{RUN_FILE} has {found} bytes, expected at most {MAX_SUMMARY_BYTES}"
            )));
        }
        let run = Run::read(dir).map_err(|e| unreadable(e.to_string()))?;
        let events = fs_err::read(dir.join(EVENTS_FILE))
            .ok()
            .and_then(|bytes| bundle::read_events(bytes).ok());
        let answers = run
            .quality
            .as_ref()
            .and_then(|_| bundle::read_answers(&fs_err::read(dir.join(ANSWERS_FILE)).ok()?).ok());
        let server = fs_err::read(dir.join(SERVER_FILE))
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let environment = fs_err::read(dir.join(ENVIRONMENT_FILE))
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let digests = fs_err::read_to_string(dir.join(DIGESTS_FILE)).unwrap_or_default();
        // It names all other digests, so its own stands for the whole bundle.
        let fingerprint = (!digests.is_empty()).then(|| hex::encode(Sha256::digest(&digests)));
        let files = FILES
            .into_iter()
            .filter(|name| *name != ANSWERS_FILE || run.quality.is_some())
            .map(|name| File {
                name,
                bytes: fs_err::metadata(dir.join(name))
                    .ok()
                    .filter(|m| m.is_file())
                    .map(|m| m.len()),
                digest: if name == DIGESTS_FILE {
                    fingerprint.clone()
                } else {
                    stated_digest(&digests, name)
                },
            })
            .collect();
        Ok(Self {
            dir: dir.to_owned(),
            run,
            events,
            answers,
            environment,
            server,
            files,
            verdict: verify(dir)?,
        })
    }
}

fn verify(dir: &Path) -> Result<Verdict, ReportError> {
    let Verification { status, reasons, .. } = deltamux_bench::verify::verify(dir)?;
    Ok(Verdict {
        validated: status == Status::Validated,
        reasons,
    })
}

/// The digest of `name` in the form `sha256sum` writes: digest, two spaces (or space and asterisk), name.
fn stated_digest(digests: &str, name: &str) -> Option<String> {
    digests.lines().find_map(|line| {
        let (digest, file) = line.split_once(' ')?;
        let file = file.strip_prefix([' ', '*']).unwrap_or(file);
        (file == name && digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()))
            .then(|| digest.to_ascii_lowercase())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_found_by_its_exact_file_name() {
        let digest = "0123456789abcdef".repeat(4);
        let sums = format!(
            "{digest}  run.json\n{} *events.parquet\nshort  server.json\n",
            digest.to_uppercase()
        );
        assert_eq!(stated_digest(&sums, "run.json"), Some(digest.clone()));
        assert_eq!(stated_digest(&sums, "events.parquet"), Some(digest));
        assert_eq!(stated_digest(&sums, "server.json"), None);
        assert_eq!(stated_digest(&sums, "json"), None);
    }
}
