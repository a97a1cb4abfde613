//! `deltamux eval` as a user runs it.

mod common;

use common::{deltamux, json, refusal, tiny};

/// transformers answers 186 of the 200 tasks right (greedy, f32 on the bf16 weights); a near tie may fall otherwise.
#[test]
fn a_full_fine_tune_answers_as_many_tasks_as_under_transformers() {
    let mut command = deltamux(&["eval"]);
    command.arg("--base").arg(tiny("base")).arg("--full").arg(tiny("sql"));
    command.arg("--tasks").arg(tiny("data/sql.heldout.jsonl"));
    let result = json(&mut command);
    assert_eq!(result["n"], 200);
    let share = result["exact_match"].as_f64().unwrap();
    assert!((share - 0.93).abs() <= 0.01, "{share}");
    assert!(result["seconds"].is_f64() && !result["wrong"].as_array().unwrap().is_empty());
}

#[test]
fn the_base_has_not_learned_the_task() {
    let mut command = deltamux(&["eval", "--limit", "20", "--max-tokens", "40"]);
    command
        .arg("--base")
        .arg(tiny("base"))
        .arg("--tasks")
        .arg(tiny("data/sql.heldout.jsonl"));
    let result = json(&mut command);
    assert_eq!((&result["n"], &result["exact_match"]), (&20.into(), &0.0.into()));
}

#[test]
fn a_users_error_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let tasks = folder.path().join("tasks.jsonl");
    fs_err::write(&tasks, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n").unwrap();
    let eval = |base: &str, tasks: &std::path::Path| {
        deltamux(&["eval"])
            .arg("--base")
            .arg(tiny(base))
            .arg("--tasks")
            .arg(tasks)
            .output()
            .unwrap()
    };
    assert!(refusal(&eval("base", &tasks)).contains("tasks.jsonl:1: missing field `answer`"));
    assert!(refusal(&eval("base", &folder.path().join("none.jsonl"))).contains("none.jsonl"));
    assert!(refusal(&eval("nowhere", &tiny("data/sql.heldout.jsonl"))).contains("nowhere"));
}

fn against(model: &[&str], reference: &str) -> serde_json::Value {
    let mut command = deltamux(&["eval", "--limit", "30", "--max-tokens", "1"]);
    command.arg("--base").arg(tiny("base"));
    if let [flag, path] = model {
        command.arg(flag).arg(tiny(path));
    }
    command.arg("--against").arg(tiny(reference));
    command.arg("--tasks").arg(tiny("data/sql.heldout.jsonl"));
    json(&mut command)["agreement"].clone()
}

#[test]
fn a_model_agrees_with_itself_and_the_base_does_not_agree_with_its_fine_tune() {
    let same = against(&["--full", "sql"], "sql");
    assert_eq!((&same["mean_kl"], &same["top1_agreement"]), (&0.0.into(), &1.0.into()));
    assert_eq!(same["perplexity"], same["reference_perplexity"]);
    assert!(same["positions"].as_u64().unwrap() > 100);
    let base = against(&[], "sql");
    assert_eq!(base["positions"], same["positions"]);
    assert_eq!(base["reference_perplexity"], same["reference_perplexity"]);
    assert!(base["mean_kl"].as_f64().unwrap() > 1.0, "{base}");
    let (own, reference) = (&base["perplexity"], &base["reference_perplexity"]);
    assert!(own.as_f64().unwrap() > 2.0 * reference.as_f64().unwrap(), "{base}");
}
