//! `events.parquet` of a foreign bundle: never panics.
#![no_main]

use deltamux_bench::bundle::read_events;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = read_events(data.to_vec());
});
