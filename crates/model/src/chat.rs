//! Chat templates: Jinja as transformers renders it.
//!
//! Known differences from Jinja2, none of them in a template of a model that deltamux runs: the operator `%` on texts
//! (the filter `format` is there), `kwargs` in macros, the methods `index`, `zfill`, `ljust`, `rjust` and `swapcase` of
//! texts are refused; a loop over None is empty instead of an error.

mod environment;
mod generation_tag;
mod methods;
mod python;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use minijinja::Environment;
use serde_json::{Map, Value};

/// Name of the template that is used unless tools are offered and there is one for them.
const DEFAULT: &str = "default";
/// Name of the template for requests with tools, in models that have one of their own for them.
const TOOL_USE: &str = "tool_use";
/// The variables that every rendering sets; `kwargs` must not contradict them.
const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];
/// The special tokens of `tokenizer_config.json` that a template may name.
const SPECIAL: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Why a template was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// A file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The template does not parse.
    #[error("{path}: chat template: {what}", path = path.display())]
    Invalid {
        /// The file it came from.
        path: PathBuf,
        /// The parser's message.
        what: String,
    },
    /// The template raised an exception (`raise_exception`), or failed on these messages.
    #[error("chat template: {0}")]
    Render(String),
    /// The model has no chat template.
    #[error("the model has no chat template: send a prompt to /v1/completions, or add chat_template.jinja to {0}")]
    Missing(PathBuf),
}

/// A model's chat template with the special tokens it may name. Cloning shares it.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    special: Map<String, Value>,
    has_tool_use: bool,
}

impl ChatTemplate {
    /// Reads `chat_template.jinja`, or the field `chat_template` of `tokenizer_config.json` (a string, or a list with
    /// an entry named `default`, and perhaps `tool_use` for requests with tools), and the special tokens
    /// (`bos_token`, `eos_token`, …) of `tokenizer_config.json`, those it lacks of `special_tokens_map.json`.
    /// `Ok(None)` when the model has no template.
    pub fn from_dir(dir: &Path) -> Result<Option<Self>, TemplateError> {
        Self::from_files(&|name| dir.join(name))
    }

    /// As [`ChatTemplate::from_dir`], for files that lie in different directories (a variant that brings some of its
    /// own): `path_of` gives each file's path.
    pub fn from_files(path_of: &dyn Fn(&str) -> PathBuf) -> Result<Option<Self>, TemplateError> {
        let config_path = path_of("tokenizer_config.json");
        let config = read_object(&config_path)?.unwrap_or_default();
        let mut special = special_tokens(&config);
        if let Some(map) = read_object(&path_of("special_tokens_map.json"))? {
            for (name, token) in special_tokens(&map) {
                if !config.contains_key(&name) {
                    special.insert(name, token);
                }
            }
        }
        let file = path_of("chat_template.jinja");
        if let Some(source) = read(&file)? {
            return Self::build(&[(DEFAULT.to_owned(), source)], special, &file).map(Some);
        }
        let invalid = |what: &str| TemplateError::Invalid {
            path: config_path.clone(),
            what: what.to_owned(),
        };
        let sources = match config.get("chat_template") {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(source)) => vec![(DEFAULT.to_owned(), source.clone())],
            Some(Value::Array(entries)) => entries
                .iter()
                .map(|entry| {
                    Some((
                        entry.get("name")?.as_str()?.to_owned(),
                        entry.get("template")?.as_str()?.to_owned(),
                    ))
                })
                .collect::<Option<_>>()
                .ok_or_else(|| invalid("an entry of the list lacks its name or its template"))?,
            Some(_) => return Err(invalid("expected a string, or a list of named templates")),
        };
        if !sources.iter().any(|(name, _)| name == DEFAULT) {
            return Err(invalid("the list has no entry named \"default\""));
        }
        Self::build(&sources, special, &config_path).map(Some)
    }

    /// A template from its text and special tokens; `origin` is named in errors.
    pub fn new(source: &str, special: &[(String, String)], origin: &Path) -> Result<Self, TemplateError> {
        let special = special
            .iter()
            .map(|(name, token)| (name.clone(), Value::from(token.as_str())))
            .collect();
        Self::build(&[(DEFAULT.to_owned(), source.to_owned())], special, origin)
    }

    fn build(sources: &[(String, String)], special: Map<String, Value>, origin: &Path) -> Result<Self, TemplateError> {
        let mut environment = environment::environment();
        for (name, source) in sources {
            environment
                .add_template_owned(
                    name.clone(),
                    generation_tag::without_generation_tags(&one_kind_of_line_end(source)),
                )
                .map_err(|error| TemplateError::Invalid {
                    path: origin.to_path_buf(),
                    what: environment::message(&error),
                })?;
        }
        Ok(Self {
            has_tool_use: environment.get_template(TOOL_USE).is_ok(),
            environment: Arc::new(environment),
            special,
        })
    }

    /// The prompt text: byte for byte what transformers' `apply_chat_template(tokenize=False)` gives. `kwargs` are
    /// further template variables (`enable_thinking`, …).
    pub fn render(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
        kwargs: &Map<String, Value>,
    ) -> Result<String, TemplateError> {
        if let Some(name) = RESERVED.into_iter().find(|name| kwargs.contains_key(*name)) {
            return Err(TemplateError::Render(format!(
                "the argument {name} is set by the request itself and cannot be given once more"
            )));
        }
        let mut context = self.special.clone();
        context.extend(kwargs.clone());
        context.insert("messages".to_owned(), messages.into());
        context.insert("tools".to_owned(), tools.map_or(Value::Null, Value::from));
        context.insert("documents".to_owned(), Value::Null);
        context.insert("add_generation_prompt".to_owned(), add_generation_prompt.into());
        let name = if tools.is_some() && self.has_tool_use {
            TOOL_USE
        } else {
            DEFAULT
        };
        self.environment
            .get_template(name)
            .and_then(|template| template.render(python::from_json(&Value::Object(context))))
            .map_err(|error| TemplateError::Render(environment::message(&error)))
    }
}

/// The source with every line ended by `\n`, as Jinja2 reads it.
fn one_kind_of_line_end(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// The special tokens of a tokenizer's configuration; each a string, or an object with its `content`.
fn special_tokens(config: &Map<String, Value>) -> Map<String, Value> {
    let text = |token: &Value| match token {
        Value::String(text) => Some(Value::from(text.as_str())),
        Value::Object(token) => token.get("content").filter(|content| content.is_string()).cloned(),
        _ => None,
    };
    let mut tokens = Map::new();
    for name in SPECIAL {
        if let Some(token) = config.get(name).and_then(text) {
            tokens.insert(name.to_owned(), token);
        }
    }
    if let Some(Value::Array(additional)) = config.get("additional_special_tokens") {
        let additional: Vec<_> = additional.iter().filter_map(text).collect();
        tokens.insert("additional_special_tokens".to_owned(), additional.into());
    }
    tokens
}

/// The text of a file, `None` when there is none.
fn read(path: &Path) -> Result<Option<String>, TemplateError> {
    match fs_err::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The JSON object in a file, `None` when there is no file.
fn read_object(path: &Path) -> Result<Option<Map<String, Value>>, TemplateError> {
    let Some(text) = read(path)? else { return Ok(None) };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| TemplateError::Invalid {
            path: path.to_path_buf(),
            what: format!("the file is not a valid JSON object: {error}"),
        })
}
