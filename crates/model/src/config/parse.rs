//! From the JSON of `config.json` to a [`ModelConfig`]: defaults as transformers has them, everything that would change
//! the arithmetic in a way deltamux does not compute refused by name.

use serde_json::{Map, Value};

use super::{Architecture, ModelConfig, RopeScaling};

/// Bounds far beyond any real dense model: a hostile file must not make sizes overflow or exhaust memory.
mod limit {
    pub const HIDDEN: usize = 1 << 17;
    pub const INTERMEDIATE: usize = 1 << 20;
    pub const LAYERS: usize = 1 << 10;
    pub const HEADS: usize = 1 << 12;
    /// What the attention kernel keeps on its stack.
    pub const HEAD_DIM: usize = deltamux_kernels::attention::MAX_HEAD_DIM;
    pub const VOCABULARY: usize = 1 << 22;
    pub const POSITIONS: usize = 1 << 26;
    pub const EOS_IDS: usize = 256;
}

/// Parses and validates; an error is what was found, what is expected, and where it helps the remedy.
pub(super) fn parse(text: &[u8]) -> Result<ModelConfig, String> {
    let raw: Value = serde_json::from_slice(text).map_err(|e| format!("not valid JSON: {e}"))?;
    let Some(object) = raw.as_object() else {
        return Err(format!("found {}, expected a JSON object", kind(&raw)));
    };
    let fields = Fields(object);
    let architecture = architecture(fields)?;
    refuse_what_is_not_computed(fields, architecture)?;

    let hidden_size = fields.size("hidden_size", limit::HIDDEN)?;
    let num_heads = fields.size("num_attention_heads", limit::HEADS)?;
    let num_kv_heads = match fields.optional_size("num_key_value_heads", limit::HEADS)? {
        Some(count) => count,
        // The other classes default to a constant (8 or 32) that has nothing to do with the model at hand.
        None if architecture == Architecture::Llama || object.contains_key("num_key_value_heads") => num_heads,
        None => return Err("num_key_value_heads is missing: expected a positive integer".to_owned()),
    };
    if !num_heads.is_multiple_of(num_kv_heads) {
        return Err(format!(
            "num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
        ));
    }
    let head_dim = match fields.optional_size("head_dim", limit::HEAD_DIM)? {
        Some(width) => width,
        None if architecture == Architecture::Qwen3 => 128,
        None if !hidden_size.is_multiple_of(num_heads) => {
            return Err(format!(
                "hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}, and head_dim is missing"
            ));
        }
        None => hidden_size / num_heads,
    };
    if head_dim % 2 == 1 {
        return Err(format!(
            "head_dim is {head_dim}: rotary embeddings need an even head width"
        ));
    }
    let attention_bias = match architecture {
        Architecture::Llama | Architecture::Qwen3 => fields.flag("attention_bias", false)?,
        Architecture::Mistral | Architecture::Qwen2 => false,
    };
    let (rope_theta, rope_scaling) = rope(fields)?;
    let rms_norm_eps = fields.number("rms_norm_eps", Some(1e-6))?;
    if rms_norm_eps > 1.0 || (rms_norm_eps as f32) < f32::MIN_POSITIVE {
        return Err(format!(
            "rms_norm_eps is {rms_norm_eps}: expected a small positive number"
        ));
    }
    Ok(ModelConfig {
        architecture,
        hidden_size,
        intermediate_size: fields.size("intermediate_size", limit::INTERMEDIATE)?,
        num_layers: fields.size("num_hidden_layers", limit::LAYERS)?,
        num_heads,
        num_kv_heads,
        head_dim,
        vocab_size: fields.size("vocab_size", limit::VOCABULARY)?,
        max_position_embeddings: fields.size("max_position_embeddings", limit::POSITIONS)?,
        rms_norm_eps: rms_norm_eps as f32,
        rope_theta,
        rope_scaling,
        tie_word_embeddings: fields.flag("tie_word_embeddings", false)?,
        qkv_bias: attention_bias || architecture == Architecture::Qwen2,
        o_bias: attention_bias,
        mlp_bias: architecture == Architecture::Llama && fields.flag("mlp_bias", false)?,
        qk_norm: architecture == Architecture::Qwen3,
        eos_token_ids: token_ids(object.get("eos_token_id"), "eos_token_id")?,
        raw,
    })
}

/// Token ids given as an integer, a list of integers, null or not at all.
pub(crate) fn token_ids(value: Option<&Value>, field: &str) -> Result<Vec<u32>, String> {
    let id = |value: &Value| {
        value
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| format!("{field} holds {}: expected token ids", show(value)))
    };
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(ids)) if ids.len() > limit::EOS_IDS => Err(format!(
            "{field} lists {} ids: expected at most {}",
            ids.len(),
            limit::EOS_IDS
        )),
        Some(Value::Array(ids)) => ids.iter().map(id).collect(),
        Some(value) => Ok(vec![id(value)?]),
    }
}

fn architecture(fields: Fields<'_>) -> Result<Architecture, String> {
    let supported = || {
        let names: Vec<_> = Architecture::ALL.iter().map(|a| a.class_name()).collect();
        format!("deltamux runs {}", names.join(", "))
    };
    match fields.0.get("architectures") {
        None | Some(Value::Null) => {}
        Some(Value::Array(names)) => {
            let names: Vec<_> = names.iter().filter_map(Value::as_str).collect();
            return match Architecture::ALL.into_iter().find(|a| names == [a.class_name()]) {
                Some(architecture) => Ok(architecture),
                None => Err(format!(
                    "architectures is {}: not supported; {}",
                    show(&fields.0["architectures"]),
                    supported()
                )),
            };
        }
        Some(other) => {
            return Err(format!(
                "architectures is {}: expected a list with one class name",
                show(other)
            ));
        }
    }
    let Some(model_type) = fields.0.get("model_type") else {
        return Err(format!(
            "architectures and model_type are missing: expected what the model is; {}",
            supported()
        ));
    };
    Architecture::ALL
        .into_iter()
        .find(|a| model_type.as_str() == Some(a.model_type()))
        .ok_or_else(|| format!("model_type is {}: not supported; {}", show(model_type), supported()))
}

/// Everything that selects arithmetic which the forward pass does not have.
fn refuse_what_is_not_computed(fields: Fields<'_>, architecture: Architecture) -> Result<(), String> {
    let get = |name: &str| fields.0.get(name).filter(|v| !v.is_null());
    if let Some(quantization) = get("quantization_config") {
        let method = quantization.get("quant_method").unwrap_or(quantization);
        return Err(format!(
            "quantization_config ({}) is not supported: use the model's unquantised checkpoint (bf16, f16 or f32)",
            show(method)
        ));
    }
    if let Some(activation) = get("hidden_act")
        && !matches!(activation.as_str(), Some("silu" | "swish"))
    {
        return Err(format!(
            "hidden_act is {}: not supported; expected \"silu\"",
            show(activation)
        ));
    }
    match architecture {
        Architecture::Mistral => {
            if !fields.0.contains_key("sliding_window") {
                // The class default is a window of 4096, so absence is not the same as null.
                return Err(
                    "sliding_window is missing, which means a window of 4096: not supported; set it to null if the \
                     model attends to its whole context"
                        .to_owned(),
                );
            }
            if let Some(window) = get("sliding_window") {
                return Err(format!(
                    "sliding_window is {}: not supported; only null (full attention) is",
                    show(window)
                ));
            }
        }
        Architecture::Qwen2 | Architecture::Qwen3 => {
            if fields.flag("use_sliding_window", false)? {
                return Err("use_sliding_window is true: not supported; only full attention is".to_owned());
            }
        }
        Architecture::Llama => {}
    }
    if let Some(types) = get("layer_types")
        && let Some(other) = types
            .as_array()
            .ok_or_else(|| format!("layer_types is {}: expected a list", show(types)))?
            .iter()
            .find(|t| t.as_str() != Some("full_attention"))
    {
        return Err(format!(
            "layer_types names {}: not supported; only \"full_attention\" is",
            show(other)
        ));
    }
    if let Some(share) = get("partial_rotary_factor")
        && share.as_f64() != Some(1.0)
    {
        return Err(format!("partial_rotary_factor is {}: not supported", show(share)));
    }
    Ok(())
}

/// Rotary base and scaling, from `rope_theta` and `rope_scaling` or the `rope_parameters` of transformers 5.
fn rope(fields: Fields<'_>) -> Result<(f64, RopeScaling), String> {
    let scaling = fields.optional_object("rope_scaling")?;
    let parameters = fields.optional_object("rope_parameters")?;
    let theta = fields.number("rope_theta", Some(10_000.0))?;
    let (name, chosen) = match (scaling, parameters) {
        (None, None) => return Ok((theta, RopeScaling::None)),
        (Some(scaling), Some(parameters)) => {
            let parsed = (
                rope_object("rope_scaling", scaling, theta)?,
                rope_object("rope_parameters", parameters, theta)?,
            );
            if parsed.0.1 != parsed.1.1 {
                return Err("rope_scaling and rope_parameters contradict each other: keep one of them".to_owned());
            }
            return Ok(parsed.1);
        }
        (Some(scaling), None) => ("rope_scaling", scaling),
        (None, Some(parameters)) => ("rope_parameters", parameters),
    };
    rope_object(name, chosen, theta)
}

fn rope_object(name: &str, object: Fields<'_>, theta: f64) -> Result<(f64, RopeScaling), String> {
    let within = |what: String| format!("{name}: {what}");
    let theta = object.number("rope_theta", Some(theta)).map_err(within)?;
    if let Some(share) = object.0.get("partial_rotary_factor")
        && share.as_f64() != Some(1.0)
    {
        return Err(within(format!(
            "partial_rotary_factor is {}: not supported",
            show(share)
        )));
    }
    let Some(rope_type) = object.0.get("rope_type").or_else(|| object.0.get("type")) else {
        if object.0.keys().all(|key| key == "rope_theta") {
            return Ok((theta, RopeScaling::None));
        }
        return Err(within(
            "rope_type is missing: expected \"default\" or \"llama3\"".to_owned(),
        ));
    };
    match rope_type.as_str() {
        Some("default") => Ok((theta, RopeScaling::None)),
        Some("llama3") => {
            let factor = object.number("factor", None).map_err(within)?;
            let low_freq_factor = object.number("low_freq_factor", None).map_err(within)?;
            let high_freq_factor = object.number("high_freq_factor", None).map_err(within)?;
            if factor < 1.0 {
                return Err(within(format!("factor is {factor}: expected at least 1")));
            }
            if low_freq_factor >= high_freq_factor {
                return Err(within(format!(
                    "low_freq_factor {low_freq_factor} is not less than high_freq_factor {high_freq_factor}"
                )));
            }
            let original_max_position_embeddings = object
                .size("original_max_position_embeddings", limit::POSITIONS)
                .map_err(within)?;
            Ok((
                theta,
                RopeScaling::Llama3 {
                    factor,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_position_embeddings,
                },
            ))
        }
        _ => Err(within(format!(
            "rope_type is {}: not supported; expected \"default\" or \"llama3\"",
            show(rope_type)
        ))),
    }
}

/// The fields of a JSON object, read with their expected types.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// A positive integer of at most `max`; missing and null are errors.
    fn size(self, name: &str, max: usize) -> Result<usize, String> {
        self.optional_size(name, max)?
            .ok_or_else(|| format!("{name} is missing: expected a positive integer"))
    }

    /// As [`Fields::size`], `None` when missing or null.
    fn optional_size(self, name: &str, max: usize) -> Result<Option<usize>, String> {
        let Some(value) = self.0.get(name).filter(|v| !v.is_null()) else {
            return Ok(None);
        };
        match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) if n > max => Err(format!("{name} is {n}: expected at most {max}")),
            Some(n) if n > 0 => Ok(Some(n)),
            _ => Err(format!("{name} is {}: expected a positive integer", show(value))),
        }
    }

    /// A positive finite number; `default` when missing or null.
    fn number(self, name: &str, default: Option<f64>) -> Result<f64, String> {
        match (self.0.get(name).filter(|v| !v.is_null()), default) {
            (None, Some(default)) => Ok(default),
            (None, None) => Err(format!("{name} is missing: expected a positive number")),
            (Some(value), _) => value
                .as_f64()
                .filter(|n| n.is_finite() && *n > 0.0)
                .ok_or_else(|| format!("{name} is {}: expected a positive number", show(value))),
        }
    }

    /// A boolean; `default` when missing or null.
    fn flag(self, name: &str, default: bool) -> Result<bool, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => Err(format!("{name} is {}: expected true or false", show(value))),
        }
    }

    /// An object, `None` when missing or null.
    fn optional_object(self, name: &str) -> Result<Option<Fields<'a>>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Fields(object))),
            Some(value) => Err(format!("{name} is {}: expected an object or null", show(value))),
        }
    }
}

/// A value as JSON, short enough for a one-line message.
fn show(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// What kind of JSON value this is.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
