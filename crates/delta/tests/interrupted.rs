//! Runs that end early and go on, and runs that are split over machines: the artifact is the same.

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{options, run, tiny};
use deltamux_delta::compress::work_dir;
use deltamux_delta::{Artifact, Budget, CompressError, CompressOptions, Method, Shard, Stage, compress, merge};

fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs_err::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, fs_err::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// Runs until `count` steps of `stage` are done and panics there, as a crash would end it.
fn crash(out: &Path, options: &CompressOptions, stage: Stage, count: usize) {
    let steps = AtomicUsize::new(0);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        compress(&tiny("base"), &tiny("sql"), out, options, &|now, done, _| {
            if now == stage && done > 0 && steps.fetch_add(1, Ordering::SeqCst) + 1 == count {
                panic!("crash");
            }
        })
    }));
    assert!(result.is_err(), "the run ended before it could crash");
    assert!(!out.exists(), "nothing half-written");
}

#[test]
fn a_run_that_goes_on_after_a_crash_makes_the_same_artifact() {
    let dir = tempfile::tempdir().unwrap();
    for (method, budget) in [(Method::Best, Budget::Model), (Method::Prinmix, Budget::Matrix)] {
        let options = CompressOptions {
            method,
            budget,
            threads: 1,
            name: Some("sql".to_string()),
            ..options("sql", 8, dir.path())
        };
        let whole = dir.path().join(format!("{}-whole", method.name()));
        run(&tiny("base"), &tiny("sql"), &whole, &options).unwrap();
        let out = dir.path().join(method.name());
        let resumed = CompressOptions {
            resume: true,
            ..options.clone()
        };
        let shared = budget == Budget::Model;
        let stages = [(Stage::Calibrate, 2), (Stage::Factor, 5), (Stage::Quantise, 9)];
        for (stage, count) in stages
            .into_iter()
            .filter(|(stage, _)| shared || *stage != Stage::Factor)
        {
            crash(&out, &resumed, stage, count);
            assert!(work_dir(&out).is_dir());
        }
        run(&tiny("base"), &tiny("sql"), &out, &resumed).unwrap();
        assert!(files(&out) == files(&whole), "{} differs after crashes", method.name());
        assert!(!work_dir(&out).exists(), "the work is done with");
    }
}

#[test]
fn finished_work_is_used_and_that_of_other_inputs_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("sql");
    let options = CompressOptions {
        threads: 1,
        resume: true,
        ..options("sql", 8, dir.path())
    };
    crash(&out, &options, Stage::Quantise, 9);
    let refused = |options: &CompressOptions| run(&tiny("base"), &tiny("sql"), &out, options).unwrap_err().to_string();
    let error = refused(&CompressOptions {
        ratio: Some(0.5),
        method: Method::Prinmix,
        ..options.clone()
    });
    assert!(
        error.contains("method is \"prinmix\", but was \"best\"; ratio is 0.5, but was 0.0625"),
        "{error}"
    );
    assert!(error.contains("start afresh without --resume"), "{error}");

    // A record that is damaged proves that it is read.
    let linears = work_dir(&out).join("linears");
    let (name, mut bytes) = files(&linears).remove(3);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs_err::write(linears.join(&name), bytes).unwrap();
    let error = refused(&options);
    assert!(
        error.contains(&name) && error.contains("is damaged; delete this file"),
        "{error}"
    );
    fs_err::remove_file(linears.join(&name)).unwrap();
    run(&tiny("base"), &tiny("sql"), &out, &options).unwrap();
}

#[test]
fn a_refused_run_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("sql");
    let options = CompressOptions {
        ratio: Some(1e-6),
        ..options("sql", 8, dir.path())
    };
    let error = run(&tiny("base"), &tiny("sql"), &out, &options).unwrap_err();
    assert!(error.to_string().contains("raise --ratio"), "{error}");
    let left: Vec<_> = files_and_folders(dir.path());
    assert_eq!(left, ["sql.8.jsonl"]);
}

fn files_and_folders(dir: &Path) -> Vec<String> {
    let entries = fs_err::read_dir(dir).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn a_second_method_takes_the_moments_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let layers = |method: Method, texts: usize, name: &str| {
        let options = CompressOptions {
            method,
            calibration_cache: Some(cache.clone()),
            ..options("sql", texts, dir.path())
        };
        let steps = AtomicUsize::new(0);
        let count = |stage, done, _| {
            if stage == Stage::Calibrate && done > 0 {
                steps.fetch_add(1, Ordering::SeqCst);
            }
        };
        compress(&tiny("base"), &tiny("sql"), &dir.path().join(name), &options, &count).unwrap();
        steps.into_inner()
    };
    let all = layers(Method::Best, 8, "a");
    assert!(all > 0);
    assert_eq!(layers(Method::LowRank, 8, "b"), 0);
    assert_eq!(layers(Method::Best, 8, "a2"), 0);
    assert_eq!(layers(Method::LowRank, 6, "c"), all, "other texts");
    let (a, a2) = (dir.path().join("a"), dir.path().join("a2"));
    let delta = |dir: &PathBuf| fs_err::read(dir.join("delta.safetensors")).unwrap();
    assert!(delta(&a) == delta(&a2));
}

fn shards(dir: &Path, count: usize, options: &CompressOptions, finetuned: &str) -> Vec<PathBuf> {
    let make = |index| {
        let out = dir.join(format!("{finetuned}-{index}-of-{count}"));
        let options = CompressOptions {
            shard: Shard { index, count },
            ..options.clone()
        };
        run(&tiny("base"), &tiny(finetuned), &out, &options).unwrap();
        out
    };
    (1..=count).rev().map(make).collect()
}

#[test]
fn shards_put_together_are_what_one_run_makes() {
    let dir = tempfile::tempdir().unwrap();
    // `date` has other norms and biases, too.
    for (task, count) in [("date", 2), ("sql", 3)] {
        let options = CompressOptions {
            budget: Budget::Matrix,
            ..options(task, 8, dir.path())
        };
        let whole = dir.path().join(task);
        run(&tiny("base"), &tiny(task), &whole, &options).unwrap();
        let merged = dir.path().join(format!("merged-{task}"));
        merge(&shards(dir.path(), count, &options, task), &merged, Some(task), false).unwrap();
        for ((name, a), (_, b)) in files(&whole).iter().zip(&files(&merged)) {
            assert!(a == b, "{task}: {name} differs");
        }
        assert_eq!(files(&whole).len(), files(&merged).len());
    }
}

#[test]
fn shards_share_out_their_own_budgets_and_lose_little() {
    let dir = tempfile::tempdir().unwrap();
    let options = options("route", 40, dir.path());
    let whole = run(&tiny("base"), &tiny("route"), &dir.path().join("whole"), &options).unwrap();
    let out = dir.path().join("merged");
    let merged = merge(&shards(dir.path(), 2, &options, "route"), &out, None, false).unwrap();
    assert!(merged.manifest.totals.linear_ratio.unwrap() <= 1.0 / 16.0);
    assert!(merged.manifest.allocation_gap.unwrap() < 0.01);
    let error = |made: &deltamux_delta::compress::Compressed| made.manifest.rel_output_error.heldout.unwrap();
    assert!(
        error(&merged) < 1.1 * error(&whole),
        "{} {}",
        error(&merged),
        error(&whole)
    );
    let found = Artifact::open(&out).unwrap().inspect().unwrap();
    assert_eq!(found.total_bytes, merged.total_bytes);
}

#[test]
fn shards_that_do_not_make_one_artifact_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let options = options("sql", 8, dir.path());
    let made = shards(dir.path(), 2, &options, "sql");
    let other = CompressOptions {
        ratio: Some(0.125),
        ..options
    };
    let others = shards(&dir.path().join("other"), 2, &other, "sql");
    let out = dir.path().join("merged");
    let refused = |dirs: &[PathBuf]| {
        let error: CompressError = merge(dirs, &out, None, false).unwrap_err();
        assert!(!out.exists());
        error.to_string()
    };
    let (second, first) = (&made[0], &made[1]);
    assert!(refused(&[]).contains("no shard"));
    assert!(refused(std::slice::from_ref(first)).contains("1 of 2 shards are missing: 2/2"));
    assert!(refused(&[first.clone(), first.clone()]).contains("are both shard 1/2"));
    assert!(refused(&[first.clone(), others[0].clone()]).contains("ratio is 0.125, but was 0.0625"));
    assert!(refused(&[first.clone(), dir.path().to_path_buf()]).contains("not a shard"));
    // A shard is no artifact.
    let error = Artifact::open(first).unwrap_err().to_string();
    assert!(error.contains("deltamux merge"), "{error}");
    // A changed byte in either file is found.
    for name in ["delta.safetensors", "shard.json"] {
        let path = second.join(name);
        let good = fs_err::read(&path).unwrap();
        let mut bad = good.clone();
        let at = bad.len() / 2;
        bad[at] ^= 1;
        fs_err::write(&path, bad).unwrap();
        let error = refused(&made);
        assert!(error.contains("SHA-256") && error.contains(name), "{error}");
        fs_err::write(&path, good).unwrap();
    }
    merge(&made, &out, None, false).unwrap();
    assert!(
        merge(&made, &out, None, false)
            .unwrap_err()
            .to_string()
            .contains("--force")
    );
    merge(&made, &out, None, true).unwrap();
}
