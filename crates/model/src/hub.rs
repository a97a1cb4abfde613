//! From what a user calls a model to a directory: a path, or an id of the Hugging Face hub.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use crate::checkpoint::shard_names;

/// Files beside the weights that are fetched where the model has them.
const SMALL_FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];
/// Without these a model cannot be served, so a cached copy that lacks one is not complete.
const NEEDED: [&str; 2] = ["config.json", "tokenizer.json"];
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Why a model was not found.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Neither a directory nor a hub id.
    #[error("{0}: no such directory, and not the id of a model on the hub (org/name)")]
    NotFound(String),
    /// A path to something else.
    #[error("{0} is a file: expected the model's directory")]
    NotADirectory(PathBuf),
    /// The hub does not have the model, or not all that is needed, or cannot be reached.
    #[error("{model}: no such directory here, and as a model of the hub: {what}")]
    Hub {
        /// The id.
        model: String,
        /// What failed, and the remedy.
        what: String,
    },
}

/// The directory of a model: `model` itself if it is one; else, if it looks like a hub id (`org/name`), the copy in the
/// hub's cache, which is downloaded if it is not complete.
///
/// `HF_HOME` moves the cache, `HF_ENDPOINT` the hub; `HF_TOKEN` or the token that `hf auth login` stores opens gated
/// models; `HF_HUB_OFFLINE=1` forbids downloads. A complete cached copy is used as it is, without asking the hub for a
/// newer one.
pub fn resolve(model: &str) -> Result<PathBuf, HubError> {
    if let Some(dir) = local(model)? {
        return Ok(dir);
    }
    let Some(cache) = cache_dir() else {
        return Err(HubError::Hub {
            model: model.to_owned(),
            what: "there is no home directory to keep it in: set HF_HOME".to_owned(),
        });
    };
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let hub = Hub {
        cache: Cache::new(cache),
        endpoint: variable("HF_ENDPOINT"),
        token: variable("HF_TOKEN"),
        offline: variable("HF_HUB_OFFLINE").is_some_and(|value| value != "0"),
        progress: true,
    };
    hub.resolve(model).map_err(|what| HubError::Hub {
        model: model.to_owned(),
        what,
    })
}

/// The directory, if `model` is one; `None` if it is a hub id.
fn local(model: &str) -> Result<Option<PathBuf>, HubError> {
    let path = Path::new(model);
    if path.is_dir() {
        return Ok(Some(path.to_path_buf()));
    }
    if path.exists() {
        return Err(HubError::NotADirectory(path.to_path_buf()));
    }
    if is_hub_id(model) {
        Ok(None)
    } else {
        Err(HubError::NotFound(model.to_owned()))
    }
}

/// Whether a text has the form `org/name`.
fn is_hub_id(model: &str) -> bool {
    let valid = |part: &str| {
        (1..=96).contains(&part.len())
            && part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
            && !part.contains("..")
    };
    model
        .split_once('/')
        .is_some_and(|(org, name)| valid(org) && valid(name))
}

fn cache_dir() -> Option<PathBuf> {
    let home = match std::env::var_os("HF_HOME").filter(|home| !home.is_empty()) {
        Some(home) => PathBuf::from(home),
        None => std::env::home_dir()?.join(".cache/huggingface"),
    };
    Some(home.join("hub"))
}

/// Where models come from and go to.
struct Hub {
    cache: Cache,
    endpoint: Option<String>,
    token: Option<String>,
    offline: bool,
    progress: bool,
}

impl Hub {
    /// The model's directory in the cache; an error is what failed and the remedy.
    fn resolve(&self, model: &str) -> Result<PathBuf, String> {
        if let Some(dir) = self.cached(model) {
            return Ok(dir);
        }
        if self.offline {
            return Err("the cache has no complete copy and HF_HUB_OFFLINE forbids a download".to_owned());
        }
        let mut builder = ApiBuilder::from_cache(self.cache.clone()).with_progress(self.progress);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        if let Some(token) = &self.token {
            builder = builder.with_token(Some(token.clone()));
        }
        let api = builder.build().map_err(|e| describe(&e))?;
        self.download(&api, model)
    }

    /// The cached copy, if all that is needed is there.
    fn cached(&self, model: &str) -> Option<PathBuf> {
        let cached = self.cache.repo(repo(model));
        let dir = cached.get(NEEDED[0])?.parent()?.to_path_buf();
        let complete = NEEDED.into_iter().all(|name| dir.join(name).exists())
            && (dir.join(SINGLE).exists()
                || shard_names(&dir.join(INDEX))
                    .is_ok_and(|shards| shards.iter().all(|shard| dir.join(shard).exists())));
        complete.then_some(dir)
    }

    fn download(&self, api: &Api, model: &str) -> Result<PathBuf, String> {
        let files = api.repo(repo(model));
        let info = files.info().map_err(|e| describe(&e))?;
        let offered: BTreeSet<_> = info.siblings.iter().map(|file| file.rfilename.as_str()).collect();
        if let Some(missing) = NEEDED.into_iter().find(|name| !offered.contains(name)) {
            let remedy = match offered.contains("adapter_config.json") {
                true => "it is an adapter; download it to a directory and give that",
                false => "it is not a model that deltamux reads",
            };
            return Err(format!("it has no {missing}: {remedy}"));
        }
        // Weights come last: where they are, everything is.
        let mut dirs = BTreeSet::new();
        for name in SMALL_FILES.into_iter().filter(|name| offered.contains(name)) {
            dirs.insert(fetch(&files, name)?);
        }
        if offered.contains(SINGLE) {
            dirs.insert(fetch(&files, SINGLE)?);
        } else if offered.contains(INDEX) {
            let dir = fetch(&files, INDEX)?;
            let shards = shard_names(&dir.join(INDEX)).map_err(|e| e.to_string())?;
            dirs.insert(dir);
            for shard in shards {
                dirs.insert(fetch(&files, &shard)?);
            }
        } else {
            return Err(format!(
                "it has neither {SINGLE} nor {INDEX}: pickled and other weights are not read"
            ));
        }
        match dirs.pop_first() {
            Some(dir) if dirs.is_empty() => Ok(dir),
            _ => Err("it was changed on the hub while it was downloaded: run the command again".to_owned()),
        }
    }
}

fn repo(model: &str) -> Repo {
    Repo::new(model.to_owned(), RepoType::Model)
}

/// Downloads a file and returns the directory it is in.
fn fetch(files: &ApiRepo, name: &str) -> Result<PathBuf, String> {
    let path = files.get(name).map_err(|e| format!("{name}: {}", describe(&e)))?;
    match path.parent() {
        Some(dir) => Ok(dir.to_path_buf()),
        None => Err(format!("{name}: not in a directory")),
    }
}

/// What a failed request means, with the remedy.
fn describe(error: &ApiError) -> String {
    if let ApiError::RequestError(request) = error {
        // ureq writes a refusal as "URL: status code N", everything else is a failure on the way.
        let text = request.to_string();
        return match text.rsplit_once(": status code ").map(|(_, code)| code.trim()) {
            Some("401" | "403") => "access is refused: check the name; if the model is gated or private, set HF_TOKEN \
                                    or run `hf auth login`"
                .to_owned(),
            Some("404") => "there is none of this name".to_owned(),
            Some(code) => format!("the hub answers with status {code}: try again later"),
            None => format!(
                "the hub cannot be reached ({}): check the network, or give a directory",
                one_line(&text)
            ),
        };
    }
    one_line(&error.to_string())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
