//! `compress`, `inspect` and `restore` through the real binary, on the bundled tiny family.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/tiny")
        .join(name)
}

fn deltamux(args: &[&dyn AsRef<std::ffi::OsStr>]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deltamux"))
        .args(args)
        .output()
        .unwrap()
}

fn json(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The one line of a refusal, with exit code 2.
fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    text
}

#[test]
fn compress_inspect_and_restore_report_the_same_artifact() {
    let dir = tempfile::tempdir().unwrap();
    let (out, full) = (dir.path().join("sql"), dir.path().join("full"));
    let made = json(&deltamux(&[
        &"compress",
        &"--base",
        &tiny("base"),
        &"--finetuned",
        &tiny("sql"),
        &"--out",
        &out,
        &"--ratio",
        &"1/16",
        &"--calibration",
        &tiny("data/sql.calibration.jsonl"),
        &"--json",
    ]));
    assert_eq!(made["method"], "best");
    assert_eq!(made["ratio_requested"], 0.0625);
    let number = |value: &Value, key: &str| value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"));
    assert!(number(&made, "linear_bytes") <= number(&made, "linear_bf16_bytes") / 16.0);
    assert!(number(&made, "linear_ratio") <= 0.0625);
    assert_eq!(
        number(&made, "total_bytes"),
        number(&made, "linear_bytes") + number(&made, "other_bytes")
    );
    assert!(number(&made["rel_output_error"], "heldout") < 0.2);
    assert!(number(&made["rel_output_error"], "calibration") < 0.2);
    assert!(number(&made, "allocation_gap") < 0.01);
    assert!(number(&made, "seconds") > 0.0);
    assert!(made["peak_rss_bytes"].is_u64() || made["peak_rss_bytes"].is_null());
    let tensors = made["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 28);
    for tensor in tensors {
        let bits = tensor["bits"].as_object().unwrap();
        let sum = |bits: &Value| -> u64 { bits.as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum() };
        let count = sum(&tensor["bits"]);
        assert_eq!(sum(&tensor["bits_u"]), count, "{tensor}");
        let shape = [
            tensor["shape"][0].as_u64().unwrap(),
            tensor["shape"][1].as_u64().unwrap(),
        ];
        assert_eq!(count, shape[0].min(shape[1]), "{tensor}");
        assert_eq!(count - bits["0"].as_u64().unwrap(), tensor["ranks"].as_u64().unwrap());
        assert!(tensor["rel_output_error_heldout"].is_f64());
    }

    let seen = json(&deltamux(&[&"inspect", &out, &"--json"]));
    for key in [
        "linear_bytes",
        "linear_bf16_bytes",
        "other_bytes",
        "total_bytes",
        "allocation_gap",
        "tensors",
    ] {
        assert_eq!(seen[key], made[key], "{key}");
    }
    assert_eq!(seen["name"], "sql");
    let table = deltamux(&[&"inspect", &out]);
    assert!(String::from_utf8(table.stdout).unwrap().contains("digests match"));

    let restored = json(&deltamux(&[
        &"restore",
        &"--base",
        &tiny("base"),
        &"--variant",
        &out,
        &"--out",
        &full,
        &"--json",
    ]));
    assert_eq!(restored["name"], "sql");
    assert!(full.join("model.safetensors").is_file());
}

#[test]
fn refusals_are_one_line_with_exit_code_2_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("x");
    let compress = |extra: &[&dyn AsRef<std::ffi::OsStr>]| {
        let mut args: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"compress", &"--out", &out];
        args.extend_from_slice(extra);
        let output = deltamux(&args);
        assert!(!out.exists());
        output
    };
    let (base, sql) = (tiny("base"), tiny("sql"));
    let empty = dir.path().join("empty.jsonl");
    fs_err::write(&empty, "").unwrap();
    let line = refusal(&compress(&[
        &"--base",
        &base,
        &"--finetuned",
        &sql,
        &"--calibration",
        &empty,
    ]));
    assert!(line.contains("empty.jsonl") && line.contains("no texts"), "{line}");
    let line = refusal(&compress(&[&"--base", &base, &"--finetuned", &tiny("data")]));
    assert!(line.contains("config.json"), "{line}");
    for bad in ["0", "2", "x"] {
        let output = compress(&[&"--base", &base, &"--finetuned", &sql, &"--ratio", &bad]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("is not a ratio"));
    }
    let output = compress(&[&"--base", &base, &"--finetuned", &sql, &"--method", &"bit-delta"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("unknown method `bit-delta`"));
    let signs: [&dyn AsRef<std::ffi::OsStr>; 8] = [
        &"--base",
        &base,
        &"--finetuned",
        &sql,
        &"--method",
        &"bitdelta",
        &"--ratio",
        &"1/32",
    ];
    let line = refusal(&compress(&signs));
    assert!(line.contains("0.03125") && line.contains("at least 0.06"), "{line}");
    assert!(refusal(&deltamux(&[&"inspect", &base])).contains("not an artifact"));
    assert!(refusal(&deltamux(&[&"inspect", &out])).contains("manifest.json"));
}

/// `--method bitdelta` end to end: what it takes is what was asked for, and the base with it answers as the restored
/// checkpoint does.
#[test]
fn signs_are_compressed_inspected_restored_and_answer() {
    let dir = tempfile::tempdir().unwrap();
    let (out, full) = (dir.path().join("sql"), dir.path().join("full"));
    let calibration = tiny("data").join("sql.calibration.jsonl");
    let made = json(&deltamux(&[
        &"compress",
        &"--base",
        &tiny("base"),
        &"--finetuned",
        &tiny("sql"),
        &"--out",
        &out,
        &"--method",
        &"bitdelta",
        &"--calibration",
        &calibration,
        &"--json",
    ]));
    assert_eq!(made["method"], "bitdelta");
    assert_eq!(made["ratio_requested"], made["linear_ratio"]);
    let tensor = &made["tensors"][0];
    assert_eq!((&tensor["storage"], &tensor["ranks"]), (&"signs".into(), &0.into()));
    let seen = json(&deltamux(&[&"inspect", &out, &"--json"]));
    assert_eq!(seen["tensors"], made["tensors"]);
    let table = deltamux(&[&"inspect", &out]);
    assert!(String::from_utf8(table.stdout).unwrap().contains("signs"));

    json(&deltamux(&[
        &"restore",
        &"--base",
        &tiny("base"),
        &"--variant",
        &out,
        &"--out",
        &full,
        &"--json",
    ]));
    let prompt = "Number of products where the brand equals Zento";
    let generate = |model: &std::path::Path, variant: Option<&std::path::Path>| {
        let mut args: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![
            &"generate",
            &"--base",
            &model,
            &"--prompt",
            &prompt,
            &"--max-tokens",
            &"12",
            &"--json",
        ];
        if let Some(variant) = &variant {
            args.extend([&"--variant" as &dyn AsRef<std::ffi::OsStr>, variant]);
        }
        json(&deltamux(&args))
    };
    let with_signs = generate(&tiny("base"), Some(&out));
    assert_eq!(with_signs["token_ids"], generate(&full, None)["token_ids"]);
}

#[test]
fn a_changed_artifact_is_refused_by_every_command_that_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("route");
    json(&deltamux(&[
        &"compress",
        &"--base",
        &tiny("base"),
        &"--finetuned",
        &tiny("route"),
        &"--out",
        &out,
        &"--json",
    ]));
    let file = out.join("delta.safetensors");
    let mut bytes = fs_err::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs_err::write(&file, bytes).unwrap();
    assert!(refusal(&deltamux(&[&"inspect", &out])).contains("SHA-256"));
    let full = dir.path().join("full");
    let line = refusal(&deltamux(&[
        &"restore",
        &"--base",
        &tiny("base"),
        &"--variant",
        &out,
        &"--out",
        &full,
    ]));
    assert!(line.contains("SHA-256") && !full.exists());
}

/// `compress` of the tiny `sql` under a file-size limit in units of 512 bytes, which fails writes as a full disk does,
/// half-way through a file.
#[cfg(unix)]
fn limited(blocks: u32, out: &Path, more: &[&dyn AsRef<std::ffi::OsStr>]) -> Output {
    let limit = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
    Command::new("sh")
        .args(["-c", &limit, "sh"])
        .arg(env!("CARGO_BIN_EXE_deltamux"))
        .args(["compress", "--base"])
        .arg(tiny("base"))
        .arg("--finetuned")
        .arg(tiny("sql"))
        .arg("--out")
        .arg(out)
        .args(more)
        .output()
        .unwrap()
}

#[cfg(unix)]
#[test]
fn a_disk_that_is_full_is_one_line_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let line = refusal(&limited(16, &dir.path().join("x"), &[]));
    assert!(line.contains(".x.work") && line.contains("File too large"), "{line}");
    let left: Vec<_> = fs_err::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The last file is the first that is too large: what it is made from is kept, and is enough to go on.
#[cfg(unix)]
#[test]
fn a_disk_that_is_full_at_the_end_keeps_what_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, out, cache) = (dir.path().join("whole"), dir.path().join("x"), dir.path().join("cache"));
    let cached: [&dyn AsRef<std::ffi::OsStr>; 2] = [&"--calibration-cache", &cache];
    assert!(limited(1 << 20, &whole, &cached).status.success());
    let line = refusal(&limited(300, &out, &cached));
    assert!(
        line.contains("delta.safetensors") && line.contains("--resume goes on"),
        "{line}"
    );
    assert!(!out.exists());
    let resumed = limited(1 << 20, &out, &[&"--calibration-cache", &cache, &"--resume"]);
    assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
    let delta = |dir: &Path| fs_err::read(dir.join("delta.safetensors")).unwrap();
    assert!(delta(&out) == delta(&whole));
    let mut left: Vec<_> = fs_err::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["cache", "whole", "x"]);
}
