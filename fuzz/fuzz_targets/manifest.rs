//! The manifest of an artifact: never panics, nor does what is counted from it before anything is loaded.
#![no_main]

use deltamux_delta::artifact::Manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(manifest) = Manifest::parse(data) {
        let _ = (manifest.generation(), manifest.resident_bytes());
    }
});
