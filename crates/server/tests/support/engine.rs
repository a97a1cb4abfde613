//! The real engine with the tiny family, and what transformers says of it.

use std::path::PathBuf;

use deltamux_engine::{Engine, EngineConfig};
use serde_json::Value;

use super::tiny;

const END: &str = "<|im_end|>";

/// An engine that takes little of the machine, because tests run side by side.
pub fn engine(base: PathBuf, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let mut config = EngineConfig::new(base);
    config.threads = 1;
    config.kv_memory = Some(16 << 20);
    config.variant_memory = Some(64 << 20);
    change(&mut config);
    Engine::start(config).unwrap()
}

/// The base alone.
pub fn base_engine() -> Engine {
    engine(tiny("base"), |_| {})
}

/// Prompts and greedy continuations that transformers computed.
pub fn golden(model: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../models/golden/tiny-{model}.json"));
    let mut golden: Value = serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap();
    serde_json::from_value(golden["cases"].take()).unwrap()
}

/// The text of a golden case without the token that ended it.
pub fn golden_text(case: &Value) -> &str {
    let text = case["greedy_text"].as_str().unwrap();
    text.strip_suffix(END).unwrap()
}
