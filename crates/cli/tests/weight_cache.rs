//! `--weight-cache` through the real binary: the second start reads it, and nothing that is wrong with it changes an
//! answer.
#![cfg(unix)]

mod common;

use std::path::Path;
use std::process::Command;

use common::{deltamux, json, refusal, tiny};
use serde_json::Value;

/// An answer of a model, with log-probabilities, and what was said about the cache.
fn ask(base: &Path, cache: &Path, dtype: &str) -> (Value, String) {
    answer(&mut generate(base, cache, dtype))
}

fn generate(base: &Path, cache: &Path, dtype: &str) -> Command {
    let mut command = deltamux(&[
        "generate",
        "--prompt",
        "Number of products",
        "--max-tokens",
        "6",
        "--json",
    ]);
    command.args(["--temperature", "0", "--logprobs", "2", "--base-dtype", dtype, "--base"]);
    command.arg(base).arg("--weight-cache").arg(cache);
    command
}

fn answer(command: &mut Command) -> (Value, String) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

/// What must not depend on the cache.
fn same(a: &Value, b: &Value) {
    for field in ["text", "token_ids", "logprobs"] {
        assert_eq!(a[field], b[field]);
    }
}

/// The only file in a folder.
fn only(dir: &Path) -> std::path::PathBuf {
    let mut files: Vec<_> = fs_err::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

#[test]
fn the_second_start_reads_the_cache_and_answers_the_same() {
    for dtype in ["bf16", "q8", "q4"] {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        let (without, _) = ask(&tiny("base"), Path::new("off"), dtype);
        assert_eq!(without["weight_cache"], "off");
        for expected in ["written", "read", "read"] {
            let (with, said) = ask(&tiny("base"), &cache, dtype);
            assert_eq!(with["weight_cache"], expected, "{said}");
            assert_eq!(said, "");
            same(&with, &without);
        }
        only(&cache);
    }
}

#[test]
fn a_changed_model_is_packed_again() {
    let model = tempfile::tempdir().unwrap();
    for entry in fs_err::read_dir(tiny("base")).unwrap() {
        let entry = entry.unwrap();
        fs_err::copy(entry.path(), model.path().join(entry.file_name())).unwrap();
    }
    let beside = Path::new("beside");
    assert_eq!(ask(model.path(), beside, "q8").0["weight_cache"], "written");
    assert_eq!(ask(model.path(), beside, "q8").0["weight_cache"], "read");
    fs_err::copy(
        tiny("sql").join("model.safetensors"),
        model.path().join("model.safetensors"),
    )
    .unwrap();
    let (changed, said) = ask(model.path(), beside, "q8");
    assert_eq!(changed["weight_cache"], "written");
    assert!(
        said.contains("made from other files") && said.lines().count() == 1,
        "{said}"
    );
    same(&changed, &ask(model.path(), Path::new("off"), "q8").0);
    only(&model.path().join(".deltamux-cache"));
}

#[test]
fn a_damaged_cache_is_one_line_and_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (first, _) = ask(&tiny("base"), dir.path(), "q8");
    let file = only(dir.path());
    let whole = fs_err::read(&file).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for (bytes, why) in [
        (&flipped[..], "damaged: the digest of matrix"),
        (&whole[..5000], "truncated"),
    ] {
        fs_err::write(&file, bytes).unwrap();
        let (again, said) = ask(&tiny("base"), dir.path(), "q8");
        assert_eq!(again["weight_cache"], "written");
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
        same(&again, &first);
        assert_eq!(ask(&tiny("base"), dir.path(), "q8").0["weight_cache"], "read");
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_one_line_and_no_error() {
    let dir = tempfile::tempdir().unwrap();
    // A folder that cannot be made, whoever asks.
    let file = dir.path().join("file");
    fs_err::write(&file, "").unwrap();
    // A folder that may not be written to, where the user is not the one who may everything.
    let sealed = dir.path().join("sealed");
    fs_err::create_dir(&sealed).unwrap();
    let mut permissions = fs_err::metadata(&sealed).unwrap().permissions();
    permissions.set_readonly(true);
    fs_err::set_permissions(&sealed, permissions).unwrap();
    let mut places = vec![file.join("cache"), "/proc/no/such".into()];
    match fs_err::write(sealed.join("probe"), "") {
        Ok(()) => println!("not run: this user may write to folders that are sealed"),
        Err(_) => places.push(sealed),
    }
    for place in places {
        let (answer, said) = ask(&tiny("base"), &place, "q8");
        assert_eq!(answer["weight_cache"], "not_written");
        let last = said.lines().last().unwrap_or_default();
        assert!(last.contains("weight cache not written"), "{said}");
    }
}

/// The shell's limit on the size of a file stands for a full disk.
#[test]
fn a_write_that_fails_half_way_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let inner = generate(&tiny("base"), dir.path(), "q8");
    let mut outer = Command::new("sh");
    outer.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"]);
    outer.arg(inner.get_program()).args(inner.get_args());
    let (answer, said) = answer(&mut outer);
    assert_eq!(answer["weight_cache"], "not_written");
    assert!(said.contains("File too large") && said.lines().count() == 1, "{said}");
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn every_command_with_a_base_takes_it() {
    let dir = tempfile::tempdir().unwrap();
    let cached = |command: &mut Command| {
        let command = command.arg("--base").arg(tiny("base"));
        json(command.arg("--weight-cache").arg(dir.path()))
    };
    let eval = |command: &mut Command| {
        let tasks = tiny("data").join("route.heldout.jsonl");
        cached(command.args(["eval", "--limit", "2", "--tasks"]).arg(tasks))
    };
    assert_eq!(eval(&mut deltamux(&[]))["n"], 2);
    only(dir.path());
    let shape = [
        "bench",
        "forward",
        "--steps",
        "1",
        "--prefill",
        "4",
        "--sequences",
        "1",
        "--context",
        "8",
    ];
    let report = cached(&mut deltamux(&shape));
    assert_eq!(report["weight_cache"], "read");
    assert!(report["load_seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn swap_mode_has_no_cache() {
    let output = deltamux(&[
        "serve",
        "--mode",
        "swap",
        "--weight-cache",
        "beside",
        "--port",
        "0",
        "--base",
    ])
    .arg(tiny("base"))
    .output()
    .unwrap();
    let said = refusal(&output);
    assert!(
        said.contains("--weight-cache") && said.contains("--mode swap"),
        "{said}"
    );
    assert!(!tiny("base").join(".deltamux-cache").exists());
}
