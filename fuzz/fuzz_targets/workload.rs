//! A workload file: never panics, and the timestamps of what it accepts ascend.
#![no_main]

use std::path::Path;

use deltamux_bench::workload::Workload;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(workload) = Workload::parse(data, Path::new("workload.jsonl")) {
        assert!(workload.requests.is_sorted_by(|a, b| a.timestamp_s <= b.timestamp_s));
    }
});
