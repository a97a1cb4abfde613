//! `adapter_config.json`: what scales the tensors, and what would make them mean something else.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::PeftError;

/// Longest configuration that is read; PEFT writes about a kilobyte.
const MAX_BYTES: u64 = 1 << 20;
/// Largest compiled pattern, in bytes.
const MAX_PATTERN: usize = 1 << 20;
/// Most patterns that are more than a name.
const MAX_COMPILED: usize = 32;
/// Most patterns; a model of a hundred layers has some seven hundred linears.
const MAX_PATTERNS: usize = 10_000;

/// Initialisations that leave the base's weights as they are.
const HARMLESS_INITS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// A checked configuration.
#[derive(Debug)]
pub(super) struct AdapterConfig {
    pub path: PathBuf,
    pub base: Option<String>,
    rank: u32,
    alpha: f64,
    ranks: Vec<(Pattern, u32)>,
    alphas: Vec<(Pattern, f64)>,
    rank_stabilised: bool,
}

/// The fields that matter; the rest is about training, or is told by the tensors themselves.
#[derive(Debug, Deserialize)]
struct Raw {
    peft_type: Option<String>,
    r: Option<u32>,
    lora_alpha: Option<f64>,
    #[serde(default)]
    rank_pattern: Option<Map<String, Value>>,
    #[serde(default)]
    alpha_pattern: Option<Map<String, Value>>,
    #[serde(default)]
    use_rslora: Option<bool>,
    #[serde(default)]
    use_dora: Option<bool>,
    #[serde(default)]
    lora_bias: Option<bool>,
    #[serde(default)]
    bias: Option<String>,
    #[serde(default)]
    base_model_name_or_path: Option<String>,
    #[serde(default)]
    init_lora_weights: Value,
    /// Any other field.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Fields that are refused when they are set, and why.
const REFUSED: [(&str, &str); 8] = [
    (
        "layer_replication",
        "it repeats layers, so the variant has others than the base",
    ),
    ("target_parameters", "it adapts parameters outside of linears"),
    ("trainable_token_indices", "single trained tokens are not read"),
    (
        "alora_invocation_tokens",
        "the adapter is switched on by tokens in the text",
    ),
    ("arrow_config", "the adapter is chosen among others for each token"),
    ("use_qalora", "QA-LoRA pools the inputs before A"),
    ("velora_config", "VeLoRA is another method"),
    ("megatron_config", "its linears are Megatron's"),
];

impl AdapterConfig {
    pub fn read(path: &Path) -> Result<Self, PeftError> {
        let mut text = Vec::new();
        fs_err::File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut text)?;
        Self::parse(&text, path).map_err(|what| PeftError::invalid(path, what))
    }

    fn parse(text: &[u8], path: &Path) -> Result<Self, String> {
        if text.len() as u64 > MAX_BYTES {
            return Err(format!("longer than {MAX_BYTES} bytes: not a PEFT configuration"));
        }
        let raw: Raw = serde_json::from_slice(text).map_err(|e| format!("not a PEFT configuration: {e}"))?;
        let kind = raw.peft_type.as_deref().unwrap_or("(none)");
        if kind != "LORA" {
            return Err(format!(
                "peft_type is {kind}, but only LORA is read; merge the adapter into the model and compress that"
            ));
        }
        if raw.use_dora == Some(true) {
            return Err(DORA.to_string());
        }
        if raw.lora_bias == Some(true) {
            return Err(
                "lora_bias is true: biases of B are not read; merge the adapter into the model and compress that"
                    .to_string(),
            );
        }
        if let Some(bias) = raw.bias.as_deref()
            && !["none", "all", "lora_only"].contains(&bias)
        {
            return Err(format!("bias is {bias:?}: expected none, all or lora_only"));
        }
        check_initialisation(&raw.init_lora_weights)?;
        for (field, why) in REFUSED {
            if raw.rest.get(field).is_some_and(is_set) {
                return Err(format!("{field} is set: {why}; {REMEDY}"));
            }
        }
        let rank = raw
            .r
            .ok_or("`r` is missing: expected the rank; save the adapter again with PEFT")?;
        let alpha = raw
            .lora_alpha
            .ok_or("`lora_alpha` is missing: expected a number; save the adapter again with PEFT")?;
        Ok(Self {
            path: path.to_path_buf(),
            base: raw.base_model_name_or_path,
            rank,
            alpha,
            ranks: patterns("rank_pattern", raw.rank_pattern, |v| {
                v.as_u64().and_then(|r| u32::try_from(r).ok())
            })?,
            alphas: patterns("alpha_pattern", raw.alpha_pattern, Value::as_f64)?,
            rank_stabilised: raw.use_rslora.unwrap_or(false),
        })
    }

    /// The rank and the scale of a module, named without PEFT's prefix.
    pub fn of(&self, module: &str) -> Result<(usize, f32), String> {
        let rank = first(&self.ranks, module).unwrap_or(self.rank);
        let alpha = first(&self.alphas, module).unwrap_or(self.alpha);
        if rank == 0 {
            return Err(format!(
                "`{module}` has rank 0: an adapter has at least 1; save it again with PEFT"
            ));
        }
        let divisor = if self.rank_stabilised {
            f64::from(rank).sqrt()
        } else {
            f64::from(rank)
        };
        let scale = (alpha / divisor) as f32;
        if !scale.is_finite() {
            return Err(format!(
                "`{module}` has a lora_alpha of {alpha}: expected a finite number"
            ));
        }
        Ok((rank as usize, scale))
    }
}

/// What always helps.
const REMEDY: &str = "merge the adapter into the model and compress that";

/// What is said of DoRA, wherever it shows.
pub(super) const DORA: &str = "DoRA (use_dora) scales whole columns of the weights by a trained magnitude, which no \
    low-rank difference is; merge the adapter into the model and compress that";

/// The first pattern that matches wins, in the order of the file, as in PEFT.
fn first<T: Copy>(patterns: &[(Pattern, T)], module: &str) -> Option<T> {
    patterns
        .iter()
        .find(|(pattern, _)| pattern.is_match(module))
        .map(|(_, value)| *value)
}

/// What a module's name is held against: the whole of it, or the end of it after a dot.
#[derive(Debug)]
enum Pattern {
    /// A name, in which a dot stands for any character, as in every pattern.
    Name(String),
    Compiled(Regex),
}

impl Pattern {
    /// `None` when it takes a compiled one.
    fn name(text: &str) -> Option<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        (!text.is_empty() && text.chars().all(plain)).then(|| Self::Name(text.to_string()))
    }

    fn is_match(&self, module: &str) -> bool {
        let name = match self {
            Self::Compiled(regex) => return regex.is_match(module.as_bytes()),
            Self::Name(name) => name.as_bytes(),
        };
        let Some((before, end)) = module
            .as_bytes()
            .split_at_checked(module.len().wrapping_sub(name.len()))
        else {
            return false;
        };
        let same = end.iter().zip(name).all(|(c, wanted)| c == wanted || *wanted == b'.');
        same && before.last().is_none_or(|&c| c == b'.')
    }
}

/// Patterns match a whole module name, or the end of one after a dot.
fn patterns<T>(
    field: &str,
    map: Option<Map<String, Value>>,
    value: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<(Pattern, T)>, String> {
    let map = map.unwrap_or_default();
    if map.len() > MAX_PATTERNS {
        return Err(format!(
            "{field} has {} patterns, at most {MAX_PATTERNS} are expected",
            map.len()
        ));
    }
    let mut compiled = 0;
    map.into_iter()
        .map(|(text, stored)| {
            let value =
                value(&stored).ok_or_else(|| format!("{field}: {text:?} has the value {stored}, expected a number"))?;
            if let Some(name) = Pattern::name(&text) {
                return Ok((name, value));
            }
            compiled += 1;
            if compiled > MAX_COMPILED {
                return Err(format!(
                    "{field} has more than {MAX_COMPILED} patterns that are not plain names; {REMEDY}"
                ));
            }
            // Names of modules are ASCII.
            let regex = RegexBuilder::new(&format!(r"^(?:.*\.)?(?:{text})$"))
                .unicode(false)
                .size_limit(MAX_PATTERN)
                .build()
                .map_err(|e| {
                    let reason = e.to_string();
                    let reason = reason.lines().last().unwrap_or_default();
                    format!("{field}: {text:?} cannot be read as a pattern ({reason}); {REMEDY}")
                })?;
            Ok((Pattern::Compiled(regex), value))
        })
        .collect()
}

/// Refuses initialisations that take something out of the base's weights: the adapter is relative to what is left.
fn check_initialisation(value: &Value) -> Result<(), String> {
    let harmless = match value {
        Value::Null | Value::Bool(_) => true,
        Value::String(name) => HARMLESS_INITS.contains(&name.as_str()),
        _ => false,
    };
    if harmless {
        return Ok(());
    }
    Err(format!(
        "init_lora_weights is {value}: such an adapter is relative to changed weights of the base; save it with \
         path_initial_model_for_weight_conversion, or merge it into the model and compress that"
    ))
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(fields: &str) -> Result<AdapterConfig, String> {
        let text = format!(r#"{{"peft_type": "LORA", "r": 8, "lora_alpha": 16, {fields}}}"#);
        AdapterConfig::parse(text.as_bytes(), Path::new("adapter_config.json"))
    }

    #[test]
    fn scales_are_those_of_peft() {
        assert_eq!(
            parse(r#""bias": "none""#).unwrap().of("model.layers.0.mlp.up_proj"),
            Ok((8, 2.0))
        );
        let config = parse(r#""use_rslora": true, "rank_pattern": {"up_proj": 4}"#).unwrap();
        assert_eq!(config.of("model.layers.0.mlp.up_proj"), Ok((4, 8.0)));
        let config = parse(
            r#""rank_pattern": {"model.layers.1.self_attn.q_proj": 2, "q_proj": 16},
               "alpha_pattern": {"layers\\.[0-3]\\..*": 32, "q_proj": 1}"#,
        )
        .unwrap();
        assert_eq!(config.of("model.layers.1.self_attn.q_proj"), Ok((2, 16.0)));
        assert_eq!(config.of("model.layers.7.self_attn.q_proj"), Ok((16, 1.0 / 16.0)));
        assert_eq!(config.of("model.layers.7.self_attn.v_proj"), Ok((8, 2.0)));
        // The first of the file wins, whatever sorts first; two classes of characters are no large pattern.
        let config = parse(r#""alpha_pattern": {"q_proj": 2, "layers\\.\\d+\\.\\w+\\.\\w+_proj": 4}"#).unwrap();
        assert_eq!(config.of("model.layers.7.self_attn.q_proj"), Ok((8, 0.25)));
        assert_eq!(config.of("model.layers.7.self_attn.k_proj"), Ok((8, 0.5)));
        let config = parse(r#""alpha_pattern": {"self_attn.q_proj": 2}"#).unwrap();
        assert_eq!(config.of("model.layers.7.self_attn.q_proj"), Ok((8, 0.25)));
        assert_eq!(config.of("q_proj"), Ok((8, 2.0)));
        // The whole name or the end of it after a dot: `xq_proj` is another module.
        assert_eq!(config.of("model.layers.7.self_attn.xq_proj"), Ok((8, 2.0)));
    }

    #[test]
    fn what_is_no_plain_lora_is_refused_by_its_field() {
        for (fields, word) in [
            (r#""use_dora": true"#, "DoRA"),
            (r#""lora_bias": true"#, "lora_bias"),
            (r#""bias": "some""#, "bias"),
            (r#""init_lora_weights": "pissa_niter_4""#, "init_lora_weights"),
            (r#""init_lora_weights": "loftq""#, "init_lora_weights"),
            (r#""layer_replication": [[0, 4], [2, 5]]"#, "layer_replication"),
            (r#""trainable_token_indices": [1]"#, "trainable_token_indices"),
            (r#""alora_invocation_tokens": [1]"#, "alora_invocation_tokens"),
            (r#""rank_pattern": {"(": 3}"#, "rank_pattern"),
            (r#""rank_pattern": {"q_proj": -3}"#, "rank_pattern"),
            (r#""alpha_pattern": {"(a{500}){500}": 3}"#, "alpha_pattern"),
            (r#""alpha_pattern": {"q_proj": "x"}"#, "alpha_pattern"),
        ] {
            let message = parse(fields).unwrap_err();
            assert!(message.contains(word), "{fields}: {message}");
        }
        let other = AdapterConfig::parse(br#"{"peft_type": "IA3"}"#, Path::new("x")).unwrap_err();
        assert!(other.contains("IA3"), "{other}");
        assert!(
            AdapterConfig::parse(b"{}", Path::new("x"))
                .unwrap_err()
                .contains("peft_type")
        );
        assert!(parse(r#""r": 0"#).is_err(), "a field that occurs twice");
        let zero = AdapterConfig::parse(br#"{"peft_type": "LORA", "r": 0, "lora_alpha": 1}"#, Path::new("x")).unwrap();
        assert!(zero.of("a").unwrap_err().contains("rank 0"));
    }

    #[test]
    fn what_only_training_needs_is_not_looked_at() {
        let fields = r#""layer_replication": null, "layers_to_transform": [1], "target_modules": "all-linear",
            "fan_in_fan_out": true, "loftq_config": {}, "lora_dropout": 0.1, "auto_mapping": null,
            "init_lora_weights": true, "inference_mode": true, "megatron_config": null, "revision": null"#;
        assert!(parse(fields).is_ok());
    }
}
