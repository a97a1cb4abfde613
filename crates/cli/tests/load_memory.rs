//! Loading a model takes little more memory than the model.
#![cfg(target_os = "linux")]

mod common;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use common::{deltamux, json};

/// A server that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Peak and present memory of a server that has just loaded its model, and what became of the cache.
fn memory(base: &Path, dtype: &str, cache: &str) -> (u64, u64, String) {
    let mut server = deltamux(&[
        "serve",
        "--port",
        "0",
        "--json",
        "--threads",
        "2",
        "--kv-memory",
        "32MiB",
    ]);
    server.args([
        "--max-model-len",
        "256",
        "--base-dtype",
        dtype,
        "--weight-cache",
        cache,
        "--base",
    ]);
    let mut server = Running(server.arg(base).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    let status = fs_err::read_to_string(format!("/proc/{}/status", server.0.id())).unwrap();
    let kilobytes = |field: &str| {
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    (
        1024 * kilobytes("VmHWM:"),
        1024 * kilobytes("VmRSS:"),
        ready["weight_cache"].as_str().unwrap().to_owned(),
    )
}

/// The shape of SmolLM2-135M: packed weights of 269 MB in bf16 and 143 MB in 8 bits.
#[test]
fn loading_peaks_at_little_more_than_what_stays() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("smol");
    json(deltamux(&["synth", "--shape", "smollm2-135m", "--variants", "0", "--out"]).arg(&out));
    let base = out.join("base");
    for (dtype, weights) in [("bf16", 269_000_000), ("q8", 142_000_000)] {
        for (cache, expected) in [("off", "off"), ("beside", "written"), ("beside", "read")] {
            let (peak, resident, found) = memory(&base, dtype, cache);
            assert_eq!(found, expected);
            assert!(
                resident > weights,
                "{dtype}, cache {expected}: {resident} bytes hold the weights"
            );
            assert!(
                peak as f64 <= 1.15 * resident as f64,
                "{dtype}, cache {expected}: a peak of {peak} bytes for {resident}"
            );
        }
    }
}
