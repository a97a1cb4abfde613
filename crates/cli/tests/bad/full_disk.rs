//! A disk that fills up while something is written: one line, exit code 2, nothing half-written.

use std::path::Path;
use std::process::Command;

use crate::support::{assert_refused, command, compress, names, tiny};

/// `compress` and `restore` into `dir`, which has no room for either.
fn nothing_fits(dir: &Path, wrap: impl Fn(Command) -> Command, words: &[&str]) {
    let artifacts = tempfile::tempdir().expect("a temporary folder");
    let artifact = artifacts.path().join("route");
    compress("route", &artifact);

    let arguments = args![
        "compress",
        "--base",
        tiny("base"),
        "--finetuned",
        tiny("route"),
        "--calibration",
        tiny("data").join("route.calibration.jsonl"),
        "--out",
        dir.join("artifact"),
    ];
    assert_refused(&wrap(command(arguments)).output().expect("started"), words);
    assert_eq!(names(dir), Vec::<String>::new(), "compress leaves nothing behind");

    let arguments = args![
        "restore",
        "--base",
        tiny("base"),
        "--variant",
        artifact,
        "--out",
        dir.join("model")
    ];
    assert_refused(&wrap(command(arguments)).output().expect("started"), words);
    assert_eq!(names(dir), Vec::<String>::new(), "restore leaves nothing behind");
}

/// The shell's limit on the size of a file, with the signal that would end the process ignored: writes fail half-way,
/// as they do on a full disk, on every machine.
#[test]
fn a_write_that_fails_half_way() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let limited = |inner: Command| {
        let mut outer = Command::new("sh");
        // 64 blocks of 512 or 1024 bytes: less than the smallest artifact.
        outer
            .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"])
            .arg(inner.get_program());
        outer.args(inner.get_args());
        outer
    };
    nothing_fits(dir.path(), limited, &["File too large"]);
}

/// A file system of 64 KiB. Mounting one takes root's rights.
#[test]
fn a_full_disk() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
        .arg(dir.path())
        .output();
    if !mount.is_ok_and(|output| output.status.success()) {
        println!("not run: a small file system cannot be mounted here");
        return;
    }
    let result = std::panic::catch_unwind(|| nothing_fits(dir.path(), |c| c, &["No space left on device"]));
    let unmounted = Command::new("umount").arg(dir.path()).status().expect("umount starts");
    assert!(unmounted.success());
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// stdout that takes nothing.
#[test]
fn results_that_cannot_be_printed() {
    let full = fs_err::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .expect("opened")
        .into_file();
    let output = command(args![
        "generate",
        "--base",
        tiny("base"),
        "--prompt",
        "hello",
        "--max-tokens",
        "2",
        "--json"
    ])
    .stdout(full)
    .output()
    .expect("started");
    assert_refused(&output, &["No space left on device"]);
}
