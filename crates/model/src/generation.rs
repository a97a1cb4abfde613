//! `generation_config.json`: end-of-sequence ids and default sampling.

use std::path::Path;

use serde_json::{Map, Value};

use crate::config::token_ids;
use crate::{CheckpointError, ModelConfig};

/// Defaults of a model's generation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationConfig {
    /// Ids that end a sequence: those of `generation_config.json`, else of `config.json`.
    pub eos_token_ids: Vec<u32>,
    /// Default temperature; this and the following are `None` unless `do_sample` is true, as without it transformers
    /// decodes greedily whatever they say.
    pub temperature: Option<f32>,
    /// Default nucleus.
    pub top_p: Option<f32>,
    /// Default top-k.
    pub top_k: Option<u32>,
    /// Default repetition penalty; it applies to greedy decoding too.
    pub repetition_penalty: Option<f32>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` in `dir`, with `config` for what it does not say; a missing file is no error.
    pub fn from_dir(dir: &Path, config: &ModelConfig) -> Result<Self, CheckpointError> {
        let path = dir.join("generation_config.json");
        let text = match fs_err::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => b"{}".to_vec(),
            Err(error) => return Err(error.into()),
        };
        Self::from_json(&text, config).map_err(|what| CheckpointError::Invalid { path, what })
    }

    /// Reads the text of a `generation_config.json`; an error is what was found and what is expected.
    fn from_json(text: &[u8], config: &ModelConfig) -> Result<Self, String> {
        let fields: Map<String, Value> =
            serde_json::from_slice(text).map_err(|e| format!("not a valid JSON object: {e}"))?;
        let number = |name: &str, min: f64, max: f64| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value
                .as_f64()
                .filter(|n| (min..=max).contains(n))
                .map(Some)
                .ok_or_else(|| format!("{name} is {value}: expected a number between {min} and {max}")),
        };
        let samples = match fields.get("do_sample") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(samples)) => *samples,
            Some(value) => return Err(format!("do_sample is {value}: expected true or false")),
        };
        let temperature = number("temperature", 0.0, 100.0)?;
        let top_p = number("top_p", 0.0, 1.0)?;
        let top_k = match fields.get("top_k") {
            None | Some(Value::Null) => None,
            Some(value) => Some(
                value
                    .as_u64()
                    .and_then(|k| u32::try_from(k).ok())
                    .ok_or_else(|| format!("top_k is {value}: expected a whole number from 0"))?,
            ),
        };
        let repetition_penalty = number("repetition_penalty", f64::from(f32::MIN_POSITIVE), 100.0)?;
        let mut eos_token_ids = token_ids(fields.get("eos_token_id"), "eos_token_id")?;
        if eos_token_ids.is_empty() {
            eos_token_ids.clone_from(&config.eos_token_ids);
        }
        Ok(Self {
            eos_token_ids,
            temperature: temperature.filter(|_| samples).map(|t| t as f32),
            top_p: top_p.filter(|_| samples).map(|p| p as f32),
            // 0 switches the filter off.
            top_k: top_k.filter(|k| samples && *k > 0),
            repetition_penalty: repetition_penalty.map(|p| p as f32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelConfig {
        let text = br#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16, "max_position_embeddings": 32,
            "eos_token_id": 7}"#;
        ModelConfig::from_json(text, Path::new("config.json")).expect("a configuration")
    }

    fn read(text: &str) -> Result<GenerationConfig, String> {
        GenerationConfig::from_json(text.as_bytes(), &config())
    }

    /// Case o7: github.com/QwenLM/Qwen3/issues/927. Both of the ids of generation_config.json end a sequence.
    #[test]
    fn case_o7_all_end_ids_of_the_generation_config_count() {
        let generation = read(r#"{"eos_token_id": [151645, 151643]}"#).expect("valid");
        assert_eq!(generation.eos_token_ids, [151_645, 151_643]);
        assert_eq!(read(r#"{"eos_token_id": 2}"#).expect("valid").eos_token_ids, [2]);
    }

    #[test]
    fn end_ids_come_from_the_config_when_the_generation_config_has_none() {
        for text in ["{}", r#"{"eos_token_id": null}"#, r#"{"eos_token_id": []}"#] {
            assert_eq!(read(text).expect("valid").eos_token_ids, [7]);
        }
        let dir = tempfile::tempdir().expect("a directory");
        let generation = GenerationConfig::from_dir(dir.path(), &config()).expect("no file is no error");
        assert_eq!(generation.eos_token_ids, [7]);
    }

    #[test]
    fn sampling_defaults_count_only_with_do_sample() {
        let fields = r#""temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05"#;
        let generation = read(&format!(r#"{{"do_sample": true, {fields}}}"#)).expect("valid");
        assert_eq!(generation.temperature, Some(0.7));
        assert_eq!(generation.top_p, Some(0.8));
        assert_eq!(generation.top_k, Some(20));
        assert_eq!(generation.repetition_penalty, Some(1.05));
        let generation = read(&format!("{{{fields}}}")).expect("valid");
        assert_eq!(
            (generation.temperature, generation.top_p, generation.top_k),
            (None, None, None)
        );
        assert_eq!(generation.repetition_penalty, Some(1.05));
    }

    #[test]
    fn wrong_fields_are_refused_by_name() {
        for (text, expected) in [
            ("[]", "not a valid JSON object"),
            ("{", "not a valid JSON object"),
            (
                r#"{"eos_token_id": "</s>"}"#,
                "eos_token_id holds \"</s>\": expected token ids",
            ),
            (r#"{"eos_token_id": [1, -1]}"#, "eos_token_id holds -1"),
            (
                r#"{"temperature": "hot"}"#,
                "temperature is \"hot\": expected a number between 0 and 100",
            ),
            (r#"{"top_p": 1.5}"#, "top_p is 1.5: expected a number between 0 and 1"),
            (r#"{"top_k": -1}"#, "top_k is -1: expected a whole number"),
            (r#"{"do_sample": 1}"#, "do_sample is 1: expected true or false"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty is 0"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(expected), "{error}");
        }
        let dir = tempfile::tempdir().expect("a directory");
        fs_err::write(dir.path().join("generation_config.json"), "{").expect("written");
        let error = GenerationConfig::from_dir(dir.path(), &config())
            .expect_err("not JSON")
            .to_string();
        assert!(
            error.contains("generation_config.json: not a valid JSON object"),
            "{error}"
        );
    }
}
