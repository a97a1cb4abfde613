//! The JSON Schema of `run.json`, published as `docs/run.schema.json`.

use serde_json::Value;

use super::{Run, SCHEMA_VERSION};

/// The schema (draft 2020-12).
pub fn run_schema() -> Value {
    let mut schema = schemars::schema_for!(Run);
    schema.insert(
        "title".into(),
        format!("deltamux run.json, version {SCHEMA_VERSION}").into(),
    );
    schema.to_value()
}
