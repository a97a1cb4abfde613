//! The text side of a model: tokenizer, chat template, generation defaults.

use std::path::Path;
use std::sync::Arc;

use deltamux_delta::Artifact;
use deltamux_model::{ChatTemplate, CheckpointError, GenerationConfig, ModelConfig, Tokenizer};

use crate::registry::BaseModel;
use crate::request::{EngineError, ModelText};

/// Reads the text files of a model directory.
pub(crate) fn of_directory(dir: &Path, config: &ModelConfig) -> Result<Arc<ModelText>, EngineError> {
    Ok(Arc::new(ModelText {
        tokenizer: Tokenizer::from_dir(dir)?,
        template: ChatTemplate::from_dir(dir)?,
        generation: GenerationConfig::from_dir(dir, config)?,
    }))
}

/// The text side of an artifact: its own files where it brings some, the base's for the rest.
pub(crate) fn of_artifact(artifact: &Artifact, base: &BaseModel) -> Result<Arc<ModelText>, EngineError> {
    let own = |name: &str| artifact.text_file(name).is_some();
    let tokenizer = own("tokenizer.json");
    let template = [
        "chat_template.jinja",
        "tokenizer_config.json",
        "special_tokens_map.json",
    ]
    .into_iter()
    .any(own);
    let config = own("config.json");
    let generation = config || own("generation_config.json");
    if !(tokenizer || template || generation) {
        return Ok(base.text.clone());
    }
    Ok(Arc::new(ModelText {
        tokenizer: if tokenizer {
            Tokenizer::from_dir(artifact.dir())?
        } else {
            base.text.tokenizer.clone()
        },
        template: if template {
            ChatTemplate::from_files(&|name| artifact.text_file(name).unwrap_or_else(|| base.root.join(name)))?
        } else {
            base.text.template.clone()
        },
        generation: if generation {
            // End-of-sequence ids stand in either file, and either may be the variant's own.
            let config = match config {
                true => &ModelConfig::from_dir(artifact.dir()).map_err(CheckpointError::from)?,
                false => &base.config,
            };
            let dir = match own("generation_config.json") {
                true => artifact.dir(),
                false => &base.root,
            };
            GenerationConfig::from_dir(dir, config)?
        } else {
            base.text.generation.clone()
        },
    }))
}
