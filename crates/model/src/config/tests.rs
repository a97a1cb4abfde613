use serde_json::{Value, json};

use super::*;

/// A valid configuration of an architecture, with `changes` made to it; a change to null removes the field.
fn with(architecture: &str, changes: Value) -> Result<ModelConfig, String> {
    let mut config = json!({
        "architectures": [architecture],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 128,
        "hidden_act": "silu",
    });
    if architecture == "MistralForCausalLM" {
        config["sliding_window"] = Value::Null;
    }
    let fields = config.as_object_mut().expect("an object");
    for (name, value) in changes.as_object().expect("an object") {
        if value.is_null() {
            fields.remove(name);
        } else {
            fields.insert(name.clone(), value.clone());
        }
    }
    ModelConfig::from_json(config.to_string().as_bytes(), Path::new("m/config.json")).map_err(|e| e.to_string())
}

fn llama(changes: Value) -> Result<ModelConfig, String> {
    with("LlamaForCausalLM", changes)
}

#[test]
fn each_architecture_has_its_biases_norms_and_defaults() {
    let config = llama(json!({})).expect("valid");
    assert_eq!(config.architecture, Architecture::Llama);
    assert_eq!(
        (config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm),
        (false, false, false, false)
    );
    // The defaults of transformers' configuration classes.
    assert_eq!(
        (config.rms_norm_eps, config.rope_theta, config.tie_word_embeddings),
        (1e-6, 10_000.0, false)
    );
    assert_eq!(config.rope_scaling, RopeScaling::None);
    assert_eq!(config.head_dim, 16);
    assert!(config.eos_token_ids.is_empty());

    let config = llama(json!({"attention_bias": true, "mlp_bias": true})).expect("valid");
    assert_eq!((config.qkv_bias, config.o_bias, config.mlp_bias), (true, true, true));

    let config = with("Qwen2ForCausalLM", json!({"attention_bias": false})).expect("valid");
    assert_eq!(
        (config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm),
        (true, false, false, false)
    );

    let config = with("Qwen3ForCausalLM", json!({})).expect("valid");
    assert_eq!(
        (config.qkv_bias, config.o_bias, config.qk_norm, config.head_dim),
        (false, false, true, 128)
    );

    let config = with("MistralForCausalLM", json!({"head_dim": 32})).expect("valid");
    assert_eq!((config.qkv_bias, config.qk_norm, config.head_dim), (false, false, 32));
}

#[test]
fn the_architecture_may_come_from_the_model_type() {
    let config = llama(json!({"architectures": null, "model_type": "qwen2"})).expect("valid");
    assert_eq!(config.architecture, Architecture::Qwen2);
}

#[test]
fn missing_heads_count_as_transformers_counts_them() {
    assert_eq!(
        llama(json!({"num_key_value_heads": null})).expect("valid").num_kv_heads,
        4
    );
    let error = with("Qwen2ForCausalLM", json!({"num_key_value_heads": null})).expect_err("ambiguous");
    assert_eq!(
        error,
        "m/config.json: num_key_value_heads is missing: expected a positive integer"
    );
}

#[test]
fn end_ids_are_one_many_or_none() {
    assert_eq!(llama(json!({"eos_token_id": 2})).expect("valid").eos_token_ids, [2]);
    assert_eq!(
        llama(json!({"eos_token_id": [128001, 128009]}))
            .expect("valid")
            .eos_token_ids,
        [128_001, 128_009]
    );
}

#[test]
fn llama_3_scaling_is_read_in_each_spelling() {
    let scaling = json!({
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    });
    let expected = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    for key in ["rope_type", "type"] {
        let mut scaling = scaling.clone();
        scaling[key] = "llama3".into();
        let config = llama(json!({"rope_scaling": scaling, "rope_theta": 5e5})).expect("valid");
        assert_eq!((config.rope_scaling, config.rope_theta), (expected.clone(), 5e5));
        // transformers 5 writes the base beside the scaling.
        scaling["rope_theta"] = 5e5.into();
        let config = llama(json!({"rope_parameters": scaling})).expect("valid");
        assert_eq!((config.rope_scaling, config.rope_theta), (expected.clone(), 5e5));
    }
    for plain in [
        json!({"rope_type": "default", "rope_theta": 1e6}),
        json!({"rope_theta": 1e6}),
    ] {
        let config = llama(json!({"rope_parameters": plain})).expect("valid");
        assert_eq!((config.rope_scaling, config.rope_theta), (RopeScaling::None, 1e6));
    }
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let llama_cases = [
        (
            json!({"hidden_act": "gelu"}),
            "hidden_act is \"gelu\": not supported; expected \"silu\"",
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2.0}}),
            "rope_scaling: rope_type is \"linear\": not supported",
        ),
        (
            json!({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
            "rope_type is \"dynamic\"",
        ),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
            "rope_type is \"yarn\"",
        ),
        (
            json!({"rope_parameters": {"rope_type": "longrope"}}),
            "rope_parameters: rope_type is \"longrope\"",
        ),
        (json!({"rope_scaling": {"factor": 2.0}}), "rope_type is missing"),
        (
            json!({"rope_scaling": {"type": "default"}, "rope_parameters": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64}}),
            "rope_scaling and rope_parameters contradict each other",
        ),
        (
            json!({"quantization_config": {"quant_method": "awq"}}),
            "quantization_config (\"awq\") is not supported",
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            "partial_rotary_factor is 0.5: not supported",
        ),
        (
            json!({"layer_types": ["full_attention", "sliding_attention"]}),
            "layer_types names \"sliding_attention\"",
        ),
    ];
    for (change, expected) in llama_cases {
        let error = llama(change).expect_err(expected);
        assert!(
            error.starts_with("m/config.json: ") && error.contains(expected),
            "{error}"
        );
    }
    for (architecture, change, expected) in [
        (
            "MistralForCausalLM",
            json!({"sliding_window": 4096}),
            "sliding_window is 4096: not supported",
        ),
        (
            "MistralForCausalLM",
            json!({"sliding_window": null}),
            "sliding_window is missing, which means a window of 4096",
        ),
        (
            "Qwen2ForCausalLM",
            json!({"use_sliding_window": true}),
            "use_sliding_window is true: not supported",
        ),
        (
            "Qwen3ForCausalLM",
            json!({"use_sliding_window": true}),
            "use_sliding_window is true: not supported",
        ),
    ] {
        let error = with(architecture, change).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_unknown_architecture_is_refused_with_the_known_ones() {
    let error = with("GPTNeoXForCausalLM", json!({})).expect_err("unknown");
    assert_eq!(
        error,
        "m/config.json: architectures is [\"GPTNeoXForCausalLM\"]: not supported; deltamux runs LlamaForCausalLM, \
         MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"
    );
    for change in [
        json!({"architectures": null}),
        json!({"architectures": null, "model_type": "mamba"}),
        json!({"architectures": "LlamaForCausalLM"}),
        json!({"architectures": []}),
    ] {
        assert!(llama(change).is_err());
    }
}

#[test]
fn wrong_fields_are_refused_by_name() {
    for (change, expected) in [
        (
            json!({"hidden_size": null}),
            "hidden_size is missing: expected a positive integer",
        ),
        (
            json!({"hidden_size": "64"}),
            "hidden_size is \"64\": expected a positive integer",
        ),
        (
            json!({"hidden_size": 64.5}),
            "hidden_size is 64.5: expected a positive integer",
        ),
        (
            json!({"num_hidden_layers": 0}),
            "num_hidden_layers is 0: expected a positive integer",
        ),
        (
            json!({"num_hidden_layers": -1}),
            "num_hidden_layers is -1: expected a positive integer",
        ),
        (
            json!({"vocab_size": 4_000_000_000_000u64}),
            "vocab_size is 4000000000000: expected at most",
        ),
        (
            json!({"hidden_size": 1u64 << 40}),
            "hidden_size is 1099511627776: expected at most",
        ),
        (
            json!({"max_position_embeddings": null}),
            "max_position_embeddings is missing",
        ),
        (
            json!({"num_attention_heads": 5}),
            "num_attention_heads 5 is not a multiple of num_key_value_heads 2",
        ),
        (
            json!({"num_attention_heads": 6}),
            "hidden_size 64 is not a multiple of num_attention_heads 6, and head_dim is missing",
        ),
        (
            json!({"head_dim": 15}),
            "head_dim is 15: rotary embeddings need an even head width",
        ),
        (
            json!({"rms_norm_eps": 0}),
            "rms_norm_eps is 0: expected a positive number",
        ),
        (json!({"rms_norm_eps": 1e-60}), "rms_norm_eps is"),
        (
            json!({"rope_theta": "big"}),
            "rope_theta is \"big\": expected a positive number",
        ),
        (
            json!({"rope_scaling": 8}),
            "rope_scaling is 8: expected an object or null",
        ),
        (
            json!({"tie_word_embeddings": "yes"}),
            "tie_word_embeddings is \"yes\": expected true or false",
        ),
        (
            json!({"eos_token_id": "</s>"}),
            "eos_token_id holds \"</s>\": expected token ids",
        ),
        (
            json!({"layer_types": "full_attention"}),
            "layer_types is \"full_attention\": expected a list",
        ),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0,
                "high_freq_factor": 1.0, "original_max_position_embeddings": 64}}),
            "rope_scaling: low_freq_factor 4 is not less than high_freq_factor 1",
        ),
        (
            json!({"rope_scaling": {"rope_type": "llama3"}}),
            "rope_scaling: factor is missing",
        ),
    ] {
        let error = llama(change).expect_err(expected);
        assert!(
            error.starts_with("m/config.json: ") && error.contains(expected),
            "{error}"
        );
    }
}

#[test]
fn text_that_is_no_configuration_is_refused() {
    for (text, expected) in [
        ("", "not valid JSON"),
        ("{\"hidden_size\": 6", "not valid JSON"),
        ("[]", "found a list, expected a JSON object"),
        ("null", "found null, expected a JSON object"),
    ] {
        let error = ModelConfig::from_json(text.as_bytes(), Path::new("config.json"))
            .expect_err(text)
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let error = ModelConfig::from_dir(dir.path()).expect_err("no file");
    assert!(
        matches!(error, ConfigError::Io(_)) && error.to_string().contains("config.json"),
        "{error}"
    );
}

#[test]
fn a_long_value_is_shortened_in_the_message() {
    let error = llama(json!({"hidden_act": "é".repeat(10_000)})).expect_err("unknown");
    assert!(error.len() < 400, "{}", error.len());
}

#[test]
fn arithmetic_fields_differ_exactly_when_the_arithmetic_does() {
    let base = llama(json!({})).expect("valid");
    for same in [
        json!({"vocab_size": 101}),
        json!({"max_position_embeddings": 4096}),
        json!({"eos_token_id": 3}),
    ] {
        assert_eq!(
            llama(same).expect("valid").arithmetic_fields(),
            base.arithmetic_fields()
        );
    }
    for (field, other) in [
        ("rope_theta", json!({"rope_theta": 20_000.0})),
        ("rms_norm_eps", json!({"rms_norm_eps": 1e-5})),
        ("head_dim", json!({"head_dim": 32})),
        ("tie_word_embeddings", json!({"tie_word_embeddings": true})),
    ] {
        let other = llama(other).expect("valid").arithmetic_fields();
        let differing: Vec<_> = base
            .arithmetic_fields()
            .into_iter()
            .zip(other)
            .filter(|(a, b)| a != b)
            .map(|(a, _)| a.0)
            .collect();
        assert_eq!(differing, [field]);
    }
}
