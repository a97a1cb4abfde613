//! The header of a safetensors file: never panics, and what it accepts lies inside the file.
#![no_main]

use deltamux_model::weights_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok((start, header)) = weights_file::parse(data) {
        for tensor in header.tensors.values() {
            assert!(tensor.begin <= tensor.end && tensor.end <= data.len() - start);
        }
    }
});
