//! GGUF: never panics, and every tensor of an accepted file has the elements that its shape says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xtask::gguf::Gguf;

fuzz_target!(|data: &[u8]| {
    if let Ok(gguf) = Gguf::parse(data) {
        for tensor in gguf.tensors().values() {
            assert_eq!(gguf.dequantize(tensor).len(), tensor.elements());
        }
    }
});
