//! API keys: `Authorization: Bearer KEY` for everything under `/v1/`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest as _, Sha256};

use crate::app::Shared;
use crate::errors::{ApiError, codes};

/// The keys that open the API, kept as SHA-256 digests.
#[derive(Debug, Clone)]
pub struct ApiKeys {
    digests: Arc<[[u8; 32]]>,
}

/// Why a key file was refused.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeysError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The file has no key.
    #[error("{path}: no key in it; write one key a line (lines that begin with # are comments)", path = .0.display())]
    Empty(PathBuf),
}

impl ApiKeys {
    /// Keys from their texts.
    pub fn new<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self {
            digests: keys.into_iter().map(|key| digest(key.as_ref().as_bytes())).collect(),
        }
    }

    /// Reads a file with one key a line; empty lines and lines that begin with `#` are skipped.
    pub fn from_file(path: &Path) -> Result<Self, ApiKeysError> {
        let text = fs_err::read_to_string(path)?;
        let keys = Self::new(
            text.lines()
                .map(str::trim)
                .filter(|line| !line.is_empty() && !line.starts_with('#')),
        );
        if keys.digests.is_empty() {
            return Err(ApiKeysError::Empty(path.to_owned()));
        }
        Ok(keys)
    }

    /// Whether `key` is one of them. The time taken says nothing about the keys: digests are compared, all of them and
    /// in full, and nobody can choose a digest's first bytes.
    pub fn contains(&self, key: &[u8]) -> bool {
        let found = digest(key);
        self.digests.iter().fold(false, |any, known| {
            let difference = known.iter().zip(&found).fold(0, |acc, (a, b)| acc | (a ^ b));
            any | (difference == 0)
        })
    }
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Refuses requests to `/v1/…` without a key. Probes and scrapers (`/health`, `/metrics`) need none.
pub async fn check(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Result<Response, ApiError> {
    if let Some(keys) = &shared.config.api_keys
        && request.uri().path().starts_with("/v1/")
    {
        let given = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|value| bearer(value.as_bytes()));
        let refusal = match given {
            Some(key) if keys.contains(key) => None,
            Some(_) => Some("the API key is not valid"),
            None => Some("an API key is required: send the header `Authorization: Bearer KEY`"),
        };
        if let Some(refusal) = refusal {
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, codes::INVALID_API_KEY, refusal));
        }
    }
    Ok(next.run(request).await)
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_keys_are_accepted() {
        let keys = ApiKeys::new(["alpha", "beta"]);
        assert!(keys.contains(b"alpha") && keys.contains(b"beta"));
        for key in ["", "alph", "alphaa", "Alpha", "alpha beta"] {
            assert!(!keys.contains(key.as_bytes()), "{key:?}");
        }
    }

    #[test]
    fn a_key_file_has_one_key_a_line_and_comments() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        fs_err::write(&path, "# the team\n alpha \n\nbeta\r\n").unwrap();
        let keys = ApiKeys::from_file(&path).unwrap();
        assert!(keys.contains(b"alpha") && keys.contains(b"beta") && !keys.contains(b"# the team"));
        fs_err::write(&path, "# nobody\n\n").unwrap();
        let error = ApiKeys::from_file(&path).unwrap_err().to_string();
        assert!(error.contains("keys") && error.contains("no key in it"), "{error}");
        let error = ApiKeys::from_file(&dir.path().join("absent")).unwrap_err().to_string();
        assert!(error.contains("absent"), "{error}");
    }

    #[test]
    fn the_scheme_is_case_insensitive_and_the_key_is_not_empty_by_accident() {
        assert_eq!(bearer(b"Bearer abc"), Some(&b"abc"[..]));
        assert_eq!(bearer(b"bearer abc "), Some(&b"abc"[..]));
        assert_eq!(bearer(b"Basic abc"), None);
        assert_eq!(bearer(b"abc"), None);
    }
}
