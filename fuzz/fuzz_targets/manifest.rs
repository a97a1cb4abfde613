//! The manifest of an artifact: never panics.
#![no_main]

use deltamux_delta::artifact::Manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = Manifest::parse(data);
});
