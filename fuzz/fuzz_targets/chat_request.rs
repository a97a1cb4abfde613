//! The body of a chat completion: never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = deltamux_server::check_chat_request(data);
});
