//! The parameters of generation that both endpoints share.

use std::collections::HashMap;

use deltamux_engine::{Request, SamplingParams};
use deltamux_model::GenerationConfig;
use serde_json::{Value, json};

use crate::errors::ApiError;
use crate::fields::{Fields, describe, integer_at};

/// Completions of one prompt at most.
const MAX_N: i64 = 128;
/// Alternatives at most in `logprobs`.
pub const MAX_LOGPROBS: i64 = 20;
/// Stop strings at most.
const MAX_STOPS: usize = 16;
/// Bytes of a stop string at most.
const MAX_STOP_BYTES: usize = 1024;
/// Stop ids at most.
const MAX_STOP_IDS: usize = 256;
/// Biased tokens at most.
const MAX_BIASES: usize = 1024;
const NO_STRUCTURE: &str = "structured output is not supported; remove the field and describe the format in the prompt";

/// Parameters as a request gave them; `None` is "not given".
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Params {
    /// Completions of each prompt.
    pub n: usize,
    /// Whether to answer with server-sent events.
    pub stream: bool,
    /// Whether the last event before the end has the usage.
    pub include_usage: bool,
    /// Completion tokens at most.
    pub max_tokens: Option<usize>,
    /// Completion tokens before the model may end.
    pub min_tokens: usize,
    /// End-of-sequence ids do not end.
    pub ignore_eos: bool,
    /// Strings that end.
    pub stop: Vec<String>,
    /// Ids that end.
    pub stop_token_ids: Vec<u32>,
    /// Sampling.
    pub temperature: Option<f32>,
    /// Nucleus.
    pub top_p: Option<f32>,
    /// 0 is off.
    pub top_k: Option<u32>,
    /// 0 is off.
    pub min_p: Option<f32>,
    /// Seed of the first completion; the others count on from it.
    pub seed: Option<u64>,
    /// OpenAI's presence penalty.
    pub presence_penalty: Option<f32>,
    /// OpenAI's frequency penalty.
    pub frequency_penalty: Option<f32>,
    /// Hugging Face's repetition penalty.
    pub repetition_penalty: Option<f32>,
    /// Added to logits.
    pub logit_bias: HashMap<u32, f32>,
    /// Alternatives wanted beside the chosen token; `None`: no log-probabilities.
    pub logprobs: Option<usize>,
}

impl Params {
    /// Reads and checks everything but `max_tokens` and `logprobs`, whose forms differ between the endpoints.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        refuse_unsupported(fields)?;
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let positive = f64::from(f32::MIN_POSITIVE);
        Ok(Self {
            n: fields.integer("n", 1..=MAX_N)?.unwrap_or(1) as usize,
            stream,
            include_usage: read_include_usage(fields, stream)?,
            max_tokens: None,
            min_tokens: fields.integer("min_tokens", 0..=i64::MAX)?.unwrap_or(0) as usize,
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            stop: read_stop(fields)?,
            stop_token_ids: read_stop_ids(fields)?,
            temperature: fields.number("temperature", 0.0..=2.0)?,
            top_p: read_top_p(fields)?,
            // -1 is what others take for "off".
            top_k: fields
                .integer("top_k", -1..=i64::from(u32::MAX))?
                .map(|k| u32::try_from(k).unwrap_or(0)),
            min_p: fields.number("min_p", 0.0..=1.0)?,
            seed: read_seed(fields)?,
            presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?,
            frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?,
            repetition_penalty: fields.number("repetition_penalty", positive..=100.0)?,
            logit_bias: read_logit_bias(fields)?,
            logprobs: None,
        })
    }

    /// Sets the limit and checks it against `min_tokens`.
    pub fn with_max_tokens(mut self, max_tokens: Option<usize>) -> Result<Self, ApiError> {
        if let Some(max) = max_tokens
            && self.min_tokens > max
        {
            let what = format!(
                "{} is more than the {max} tokens that the completion may have",
                self.min_tokens
            );
            return Err(ApiError::invalid_value("min_tokens", what));
        }
        self.max_tokens = max_tokens;
        Ok(self)
    }

    /// The engine's requests for one prompt: `n` of them. What was not given comes from the model's
    /// `generation_config.json`, else it is OpenAI's default (temperature and top-p 1).
    pub fn requests(&self, model: &str, prompt: &[u32], defaults: &GenerationConfig) -> Vec<Request> {
        let neutral = SamplingParams::default();
        (0..self.n)
            .map(|choice| Request {
                model: model.to_owned(),
                prompt: prompt.to_vec(),
                max_tokens: self.max_tokens,
                min_tokens: self.min_tokens,
                ignore_eos: self.ignore_eos,
                stop: self.stop.clone(),
                stop_token_ids: self.stop_token_ids.clone(),
                sampling: SamplingParams {
                    temperature: self.temperature.or(defaults.temperature).unwrap_or(1.0),
                    top_p: self.top_p.or(defaults.top_p).unwrap_or(neutral.top_p),
                    top_k: self.top_k.or(defaults.top_k).unwrap_or(neutral.top_k),
                    min_p: self.min_p.unwrap_or(neutral.min_p),
                    seed: self.seed.map(|seed| seed.wrapping_add(choice as u64)),
                    presence_penalty: self.presence_penalty.unwrap_or(neutral.presence_penalty),
                    frequency_penalty: self.frequency_penalty.unwrap_or(neutral.frequency_penalty),
                    repetition_penalty: self
                        .repetition_penalty
                        .or(defaults.repetition_penalty)
                        .unwrap_or(neutral.repetition_penalty),
                    logit_bias: self.logit_bias.clone(),
                    logprobs: self.logprobs,
                },
            })
            .collect()
    }

    /// Refuses ids beyond a vocabulary.
    pub fn check_vocabulary(&self, vocabulary: usize) -> Result<(), ApiError> {
        let beyond = |id: &u32| *id as usize >= vocabulary;
        if let Some(id) = self.logit_bias.keys().filter(|id| beyond(id)).min() {
            let what = format!("the model has no token {id}, its ids are below {vocabulary}");
            return Err(ApiError::invalid_value(&format!("logit_bias.{id}"), what));
        }
        if let Some(at) = self.stop_token_ids.iter().position(beyond) {
            let what = format!("the model's token ids are below {vocabulary}");
            return Err(ApiError::invalid_value(&format!("stop_token_ids[{at}]"), what));
        }
        Ok(())
    }
}

/// Fields that change what an answer is, and that this server does not implement.
fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    if let Some(format) = fields.object("response_format")?
        && format.required_string("type")? != "text"
    {
        return Err(ApiError::unsupported("response_format.type", NO_STRUCTURE));
    }
    for name in [
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "structured_outputs",
    ] {
        fields.refuse(name, &[], NO_STRUCTURE)?;
    }
    fields.refuse("use_beam_search", &[json!(false)], "beam search is not supported")?;
    fields.refuse(
        "prompt_logprobs",
        &[],
        "log-probabilities of the prompt are not supported",
    )
}

fn read_include_usage(fields: &Fields<'_>, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = fields.object("stream_options")? else {
        return Ok(false);
    };
    if !stream {
        return Err(ApiError::invalid_value(
            "stream_options",
            "is allowed with `stream`: true only",
        ));
    }
    Ok(options.boolean("include_usage")?.unwrap_or(false))
}

fn read_top_p(fields: &Fields<'_>) -> Result<Option<f32>, ApiError> {
    let top_p = fields.number("top_p", 0.0..=1.0)?;
    if top_p == Some(0.0) {
        let what = "must be above 0 and at most 1, found 0; for greedy decoding set `temperature` to 0";
        return Err(ApiError::invalid_value("top_p", what));
    }
    Ok(top_p)
}

fn read_seed(fields: &Fields<'_>) -> Result<Option<u64>, ApiError> {
    if let Some(seed) = fields.value("seed").and_then(Value::as_u64) {
        return Ok(Some(seed));
    }
    // Negative seeds are allowed by OpenAI; their two's complement is as good a seed as any.
    Ok(fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64))
}

fn read_stop(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let given: Vec<(String, &Value)> = match fields.value("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items
            .iter()
            .enumerate()
            .map(|(at, item)| (format!("stop[{at}]"), item))
            .collect(),
        Some(one) => vec![("stop".to_owned(), one)],
    };
    if given.len() > MAX_STOPS {
        let what = format!("at most {MAX_STOPS} strings, found {}", given.len());
        return Err(ApiError::invalid_value("stop", what));
    }
    given
        .into_iter()
        .map(|(path, value)| match value {
            Value::String(s) if s.is_empty() => Err(ApiError::invalid_value(&path, "must not be empty")),
            Value::String(s) if s.len() > MAX_STOP_BYTES => {
                let what = format!("at most {MAX_STOP_BYTES} bytes, found {}", s.len());
                Err(ApiError::invalid_value(&path, what))
            }
            Value::String(s) => Ok(s.clone()),
            other => {
                let expected = if path == "stop" {
                    "a string or a list of strings"
                } else {
                    "a string"
                };
                Err(ApiError::invalid_type(&path, expected, &describe(other)))
            }
        })
        .collect()
}

fn read_stop_ids(fields: &Fields<'_>) -> Result<Vec<u32>, ApiError> {
    let items = fields.list("stop_token_ids")?.unwrap_or_default();
    at_most("stop_token_ids", items.len(), MAX_STOP_IDS)?;
    token_ids(items, "stop_token_ids")
}

/// Refuses more entries than any honest request has: each is copied for every choice.
fn at_most(field: &str, found: usize, limit: usize) -> Result<(), ApiError> {
    if found > limit {
        return Err(ApiError::invalid_value(
            field,
            format!("at most {limit} entries, found {found}"),
        ));
    }
    Ok(())
}

/// A list of token ids at a path.
pub fn token_ids(items: &[Value], path: &str) -> Result<Vec<u32>, ApiError> {
    items
        .iter()
        .enumerate()
        .map(|(at, item)| {
            // The path is only made for what is wrong: prompts have many ids.
            match item.as_u64().and_then(|id| u32::try_from(id).ok()) {
                Some(id) => Ok(id),
                None => integer_at(item, &format!("{path}[{at}]"), &(0..=i64::from(u32::MAX))).map(|id| id as u32),
            }
        })
        .collect()
}

fn read_logit_bias(fields: &Fields<'_>) -> Result<HashMap<u32, f32>, ApiError> {
    let Some(bias) = fields.object("logit_bias")? else {
        return Ok(HashMap::new());
    };
    at_most("logit_bias", bias.entries().len(), MAX_BIASES)?;
    let mut read = HashMap::new();
    for name in bias.entries().keys() {
        let id = name.parse().map_err(|_| {
            ApiError::invalid_value("logit_bias", format_args!("its keys are token ids, found {name:?}"))
        })?;
        if let Some(value) = bias.number(name, -100.0..=100.0)? {
            read.insert(id, value);
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Params, ApiError> {
        Params::read(&Fields::body(body.as_object().unwrap()))
    }

    #[test]
    fn what_is_not_given_comes_from_the_generation_config_then_from_openai() {
        let params = read(json!({"top_p": 0.5})).unwrap();
        let defaults = GenerationConfig {
            temperature: Some(0.6),
            top_p: Some(0.9),
            top_k: Some(20),
            ..GenerationConfig::default()
        };
        let sampling = &params.requests("m", &[1], &defaults)[0].sampling;
        assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.6, 0.5, 20));
        let sampling = &params.requests("m", &[1], &GenerationConfig::default())[0].sampling;
        assert_eq!((sampling.temperature, sampling.top_k), (1.0, 0));
    }

    #[test]
    fn what_is_copied_for_every_choice_is_bounded() {
        let ids: Vec<u32> = (0..=MAX_STOP_IDS as u32).collect();
        let biases: serde_json::Map<String, Value> = (0..=MAX_BIASES).map(|id| (id.to_string(), json!(1))).collect();
        for (field, body) in [
            ("stop", json!({"stop": "x".repeat(MAX_STOP_BYTES + 1)})),
            ("stop_token_ids", json!({"stop_token_ids": ids})),
            ("logit_bias", json!({"logit_bias": biases})),
        ] {
            let refusal = format!("{:?}", read(body).unwrap_err());
            assert!(refusal.contains(field) && refusal.contains("at most"), "{refusal}");
        }
    }

    #[test]
    fn each_of_n_completions_has_its_own_seed() {
        let params = read(json!({"n": 3, "seed": -1})).unwrap();
        let seeds: Vec<_> = params
            .requests("m", &[1], &GenerationConfig::default())
            .iter()
            .map(|request| request.sampling.seed)
            .collect();
        assert_eq!(seeds, [Some(u64::MAX), Some(0), Some(1)]);
    }

    #[test]
    fn stop_is_a_string_or_a_list_of_strings() {
        assert_eq!(read(json!({"stop": "a"})).unwrap().stop, ["a"]);
        assert_eq!(read(json!({"stop": ["a", "b"]})).unwrap().stop, ["a", "b"]);
        assert_eq!(
            read(json!({"stop": ["a", 1]})).unwrap_err().param.as_deref(),
            Some("stop[1]")
        );
        assert_eq!(read(json!({"stop": 1})).unwrap_err().param.as_deref(), Some("stop"));
        assert_eq!(read(json!({"stop": ""})).unwrap_err().param.as_deref(), Some("stop"));
    }

    #[test]
    fn wrong_values_name_their_field() {
        for (body, param) in [
            (json!({"temperature": 2.5}), "temperature"),
            (json!({"top_p": 0}), "top_p"),
            (json!({"top_k": -2}), "top_k"),
            (json!({"min_p": "x"}), "min_p"),
            (json!({"n": 0}), "n"),
            (json!({"seed": 1.5}), "seed"),
            (json!({"presence_penalty": 3}), "presence_penalty"),
            (json!({"frequency_penalty": -3}), "frequency_penalty"),
            (json!({"repetition_penalty": 0}), "repetition_penalty"),
            (json!({"logit_bias": {"5": 101}}), "logit_bias.5"),
            (json!({"logit_bias": {"x": 1}}), "logit_bias"),
            (json!({"logit_bias": [1]}), "logit_bias"),
            (json!({"stop_token_ids": [1, -1]}), "stop_token_ids[1]"),
            (json!({"stream": "yes"}), "stream"),
            (json!({"stream_options": {"include_usage": true}}), "stream_options"),
            (
                json!({"stream": true, "stream_options": {"include_usage": 1}}),
                "stream_options.include_usage",
            ),
            (json!({"ignore_eos": 1}), "ignore_eos"),
            (
                json!({"response_format": {"type": "json_schema"}}),
                "response_format.type",
            ),
            (json!({"guided_json": {}}), "guided_json"),
        ] {
            let error = read(body.clone()).expect_err(&body.to_string());
            assert_eq!(error.param.as_deref(), Some(param), "{body}: {error}");
        }
    }

    #[test]
    fn fields_that_change_nothing_are_accepted() {
        let body = json!({"response_format": {"type": "text"}, "use_beam_search": false, "user": "u", "store": 1});
        assert!(read(body).is_ok());
    }

    #[test]
    fn ids_beyond_the_vocabulary_are_refused() {
        let params = read(json!({"logit_bias": {"9": 1.0, "100": 1.0}})).unwrap();
        assert!(params.check_vocabulary(101).is_ok());
        let error = params.check_vocabulary(100).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("logit_bias.100"));
    }

    #[test]
    fn a_minimum_above_the_maximum_is_refused() {
        let params = read(json!({"min_tokens": 5})).unwrap();
        assert!(params.clone().with_max_tokens(Some(5)).is_ok());
        assert_eq!(
            params.with_max_tokens(Some(4)).unwrap_err().param.as_deref(),
            Some("min_tokens")
        );
    }
}
