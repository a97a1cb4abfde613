//! Text files that travel with a variant: those that differ from the base's.

use std::path::Path;

use crate::artifact::{ArtifactError, TEXT_FILES};

/// The fine-tune's text files that differ from the base's: names and contents.
pub(crate) fn differing(
    base: &Path,
    finetuned: &Path,
    is_adapter: bool,
) -> Result<Vec<(&'static str, Vec<u8>)>, ArtifactError> {
    let mut files = Vec::new();
    for name in TEXT_FILES {
        let theirs = read(&finetuned.join(name))?;
        let ours = read(&base.join(name))?;
        match theirs {
            Some(text) if ours.as_ref() != Some(&text) => files.push((name, text)),
            // The base's template file would win over the fine-tune's field in tokenizer_config.json.
            None if name == "chat_template.jinja" => {
                let template = match template_field(finetuned)? {
                    Some(own) => ours.is_some().then_some(own),
                    // An adapter's tokenizer may come without the template that its base has.
                    None if is_adapter && ours.is_none() && finetuned.join("tokenizer_config.json").is_file() => {
                        template_field(base)?
                    }
                    None => None,
                };
                files.extend(template.map(|template| (name, template.into_bytes())));
            }
            _ => {}
        }
    }
    Ok(files)
}

fn read(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    match fs_err::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        // A link that leads nowhere is there, but cannot be read.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !path.is_symlink() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The template in `tokenizer_config.json`: a string, or the entry named `default` of a list.
fn template_field(dir: &Path) -> Result<Option<String>, ArtifactError> {
    let path = dir.join("tokenizer_config.json");
    let Some(text) = read(&path)? else { return Ok(None) };
    let config: serde_json::Value =
        serde_json::from_slice(&text).map_err(|e| ArtifactError::invalid(&path, format!("not JSON: {e}")))?;
    Ok(match config.get("chat_template") {
        Some(serde_json::Value::String(template)) => Some(template.clone()),
        Some(serde_json::Value::Array(templates)) => templates
            .iter()
            .find(|t| t.get("name").and_then(|n| n.as_str()) == Some("default"))
            .and_then(|t| t.get("template")?.as_str().map(str::to_owned)),
        _ => None,
    })
}
