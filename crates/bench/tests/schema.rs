//! The published schema of run.json is current, and real output holds to it.

mod common;

use std::path::PathBuf;
use std::time::Duration;

use common::{Script, arrivals, constant, mock, settings, stream};
use deltamux_bench::bundle::{Limits, RUN_FILE, run_schema};
use serde_json::{Value, json};

fn published() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/run.schema.json")
}

#[test]
fn the_published_schema_is_current() {
    let text = fs_err::read_to_string(published()).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        found,
        run_schema(),
        "write it anew: deltamux bench schema > docs/run.schema.json"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_output_holds_to_the_schema() {
    let url = mock(|number, _| match number % 4 {
        3 => Script::Refuse(503, json!({ "error": { "message": "no room" } })),
        _ => stream(3, "one two ", Duration::from_millis(1), 6),
    })
    .await;
    let out = tempfile::tempdir().unwrap();
    let mut settings = settings(&url, &out);
    settings.repeats = 3;
    settings.label = Some("PrinMix".into());
    settings.limits = Some(Limits {
        ttft_ms: Some(500.0),
        tpot_ms: Some(100.0),
    });
    let mut profile = constant(200.0, 8);
    profile.max_in_flight = Some(64);
    let (finished, _) = arrivals(&settings, &profile).await;

    let schema = run_schema();
    let check = |run: &Value| violations(&schema, &schema, run, "run");
    let mut run: Value = serde_json::from_slice(&fs_err::read(finished.bundle.join(RUN_FILE)).unwrap()).unwrap();
    assert_eq!(check(&run), Vec::<String>::new());
    // The check is one that can fail.
    run["points"][0]["counts"]["completed"] = json!("many");
    run["colour"] = json!("blue");
    assert_eq!(check(&run).len(), 2);
}

/// What of `value` breaks `schema`: the part of JSON Schema that this document uses.
fn violations(root: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#')).unwrap();
        found.extend(violations(root, target, value, at));
    }
    for (key, few) in [("anyOf", false), ("oneOf", true)] {
        if let Some(options) = schema[key].as_array() {
            let fit = options
                .iter()
                .filter(|option| violations(root, option, value, at).is_empty())
                .count();
            if fit == 0 || (few && fit > 1) {
                found.push(format!("{at}: fits {fit} of {key}"));
            }
        }
    }
    if let Some(kinds) = schema.get("type") {
        let kinds: Vec<&str> = kinds.as_array().map_or_else(
            || kinds.as_str().into_iter().collect(),
            |kinds| kinds.iter().filter_map(Value::as_str).collect(),
        );
        let fits = |kind: &&str| match *kind {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "integer" => value.is_u64() || value.is_i64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            other => panic!("the check does not know the type {other}"),
        };
        if !kinds.iter().any(fits) {
            found.push(format!("{at}: is {value}, expected {kinds:?}"));
        }
    }
    if schema["const"] != Value::Null && schema["const"] != *value {
        found.push(format!("{at}: is {value}, expected {}", schema["const"]));
    }
    if schema["enum"]
        .as_array()
        .is_some_and(|allowed| !allowed.contains(value))
    {
        found.push(format!("{at}: is {value}, expected one of {}", schema["enum"]));
    }
    if let Some(items) = value.as_array().filter(|_| schema["items"].is_object()) {
        for (i, item) in items.iter().enumerate() {
            found.extend(violations(root, &schema["items"], item, &format!("{at}[{i}]")));
        }
    }
    if let Some(fields) = value.as_object() {
        for name in schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            if !fields.contains_key(name) {
                found.push(format!("{at}: has no {name}"));
            }
        }
        for (name, field) in fields {
            let at = format!("{at}.{name}");
            match (&schema["properties"][name], &schema["additionalProperties"]) {
                (Value::Null, Value::Bool(false)) => found.push(format!("{at}: is unknown")),
                (Value::Null, others @ Value::Object(_)) => found.extend(violations(root, others, field, &at)),
                (Value::Null, _) => {}
                (known, _) => found.extend(violations(root, known, field, &at)),
            }
        }
    }
    found
}
