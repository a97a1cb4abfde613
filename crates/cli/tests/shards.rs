//! `compress --shard`, `--resume` and `merge` through the real binary, and the jobs under `deploy/` as their schedulers
//! would run them.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{deltamux, json, refusal, tiny};

fn compress(out: &Path, more: &[&str]) -> Command {
    let mut command = deltamux(&["compress", "--base"]);
    command.arg(tiny("base")).arg("--finetuned").arg(tiny("sql"));
    command.arg("--calibration").arg(tiny("data/sql.calibration.jsonl"));
    command.arg("--out").arg(out).args(more);
    command
}

fn delta(artifact: &Path) -> Vec<u8> {
    fs_err::read(artifact.join("delta.safetensors")).unwrap()
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[test]
fn a_killed_run_goes_on_with_resume() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, out) = (dir.path().join("whole"), dir.path().join("sql"));
    json(&mut compress(&whole, &["--threads", "1"]));
    let work = dir.path().join(".sql.work");
    let mut kills = 0;
    // Killed as soon as it has finished another linear, a few times.
    while kills < 3 {
        let mut child = compress(&out, &["--resume", "--threads", "1"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let finished = |name: &std::ffi::OsStr| !name.to_string_lossy().starts_with('.');
        let linears = || {
            let entries = fs_err::read_dir(work.join("linears")).into_iter().flatten().flatten();
            entries.filter(|entry| finished(&entry.file_name())).count()
        };
        let before = linears();
        while linears() <= before && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let _ = child.kill();
        child.wait().unwrap();
        kills += 1;
    }
    if !out.exists() {
        assert!(fs_err::read_dir(work.join("linears")).unwrap().count() > 0);
        // Without --resume it says what it throws away; with it, it goes on.
        json(&mut compress(&out, &["--resume"]));
    }
    assert!(delta(&out) == delta(&whole));
    let left: Vec<_> = fs_err::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn shards_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for shard in ["0/2", "3/2", "x", "1/0"] {
        let line = refusal(&compress(&dir.path().join("a"), &["--shard", shard]).output().unwrap());
        assert!(line.contains("such as 1/8"), "{line}");
    }
    let merge = |dirs: &[&Path]| {
        let mut command = deltamux(&["merge", "--out"]);
        refusal(&command.arg(dir.path().join("m")).args(dirs).output().unwrap())
    };
    assert!(merge(&[dir.path()]).contains("not a shard"));
    let first = dir.path().join("first");
    json(&mut compress(&first, &["--shard", "1/2"]));
    assert!(merge(&[&first]).contains("1 of 2 shards are missing: 2/2"));
    // A shard among variants is told from an artifact.
    let mut generate = deltamux(&["generate", "--prompt", "x", "--base"]);
    let line = refusal(
        &generate
            .arg(tiny("base"))
            .arg("--variant")
            .arg(&first)
            .output()
            .unwrap(),
    );
    assert!(line.contains("deltamux merge"), "{line}");
}

#[test]
fn a_finished_shard_is_taken_as_it_is_and_one_of_other_inputs_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("2");
    let shard = ["--shard", "2/2", "--resume"];
    json(&mut compress(&out, &shard));
    let written = fs_err::metadata(out.join("shard.json")).unwrap().modified().unwrap();
    json(&mut compress(&out, &shard));
    assert_eq!(
        fs_err::metadata(out.join("shard.json")).unwrap().modified().unwrap(),
        written
    );
    let other = [&shard[..], &["--ratio", "1/8"]].concat();
    let line = refusal(&compress(&out, &other).output().unwrap());
    assert!(line.contains("ratio is 0.125, but was 0.0625"), "{line}");
    let line = refusal(&compress(&out, &["--shard", "2/2"]).output().unwrap());
    assert!(line.contains("exists already"), "{line}");
}

#[test]
fn the_slurm_job_compresses_all_shards_and_asks_for_their_merge() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("sql");
    // `sbatch` that keeps what it was asked for.
    let bin = dir.path().join("bin");
    fs_err::create_dir_all(&bin).unwrap();
    let asked = dir.path().join("asked");
    let script = "#!/bin/bash\nfor arg in \"$@\"; do echo \"$arg\"; done > \"$ASKED\"\n";
    fs_err::write(bin.join("sbatch"), script).unwrap();
    Command::new("chmod")
        .arg("+x")
        .arg(bin.join("sbatch"))
        .status()
        .unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    for task in ["1", "2", "2"] {
        let output = Command::new("bash")
            .arg(repository("deploy/slurm/compress.sbatch"))
            .env("PATH", &path)
            .env("ASKED", &asked)
            .env("DELTAMUX", env!("CARGO_BIN_EXE_deltamux"))
            .env("BASE", tiny("base"))
            .env("FINETUNED", tiny("sql"))
            .env("CALIBRATION", tiny("data/sql.calibration.jsonl"))
            .env("OUT", &out)
            .env("ARGS", "--budget matrix")
            .env("SLURM_ARRAY_JOB_ID", "77")
            .env("SLURM_ARRAY_TASK_ID", task)
            .env("SLURM_ARRAY_TASK_MIN", "1")
            .env("SLURM_ARRAY_TASK_MAX", "2")
            .env("SLURM_JOB_PARTITION", "long")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let asked = fs_err::read_to_string(asked).unwrap();
    assert!(asked.contains("--dependency=afterok:77"), "{asked}");
    assert!(
        asked.contains("--partition=long") && !asked.contains("--account"),
        "{asked}"
    );
    let wrapped = asked.lines().find_map(|line| line.strip_prefix("--wrap=")).unwrap();
    assert!(Command::new("bash").args(["-c", wrapped]).status().unwrap().success());
    let whole = dir.path().join("whole");
    json(&mut compress(&whole, &["--budget", "matrix"]));
    assert!(delta(&out) == delta(&whole));
}

#[test]
fn the_kubernetes_jobs_compress_all_shards_and_merge_them() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("sql");
    let bin = dir.path().join("bin");
    fs_err::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_deltamux"), bin.join("deltamux")).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let manifest = fs_err::read_to_string(repository("deploy/kubernetes/compress.yaml")).unwrap();
    let scripts: Vec<String> = manifest
        .split("            - |\n")
        .skip(1)
        .map(|rest| {
            let lines = rest.lines().take_while(|line| line.starts_with("              "));
            lines.map(|line| format!("{}\n", line.trim_start())).collect()
        })
        .collect();
    let [shard, merge] = scripts.as_slice() else {
        panic!("two jobs, found {}", scripts.len())
    };
    let run = |script: &str, index: &str| {
        let output = Command::new("/bin/sh")
            .args(["-euc", script])
            .env("PATH", &path)
            .env("BASE", tiny("base"))
            .env("FINETUNED", tiny("sql"))
            .env("CALIBRATION", tiny("data/sql.calibration.jsonl"))
            .env("OUT", &out)
            .env("SHARDS", "2")
            .env("JOB_COMPLETION_INDEX", index)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(shard, "0");
    run(shard, "1");
    run(shard, "1"); // a pod that is started again after it had finished
    run(merge, "");
    let inspected = json(deltamux(&["inspect"]).arg(&out));
    assert_eq!(inspected["name"], "sql");
}
