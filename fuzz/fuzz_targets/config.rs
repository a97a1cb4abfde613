//! `config.json`: never panics, and what it accepts divides as the forward pass needs it.
#![no_main]

use std::path::Path;

use deltamux_model::ModelConfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(config) = ModelConfig::from_json(data, Path::new("config.json")) {
        assert_eq!(config.num_heads % config.num_kv_heads, 0);
        assert_eq!(config.head_dim % 2, 0);
    }
});
