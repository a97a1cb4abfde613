//! `run.json` of a bundle: never panics, and what it accepts is written as it was read.
#![no_main]

use deltamux_bench::bundle::Run;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(run) = serde_json::from_slice::<Run>(data) {
        let text = serde_json::to_vec(&run).expect("a run is JSON");
        let again: Run = serde_json::from_slice(&text).expect("written runs are read");
        assert_eq!(run, again);
    }
});
