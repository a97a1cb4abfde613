//! The stream of a foreign server: never panics, and its events do not depend on how it was cut. The first byte is the
//! length of the pieces.
#![no_main]

use deltamux_bench::client::{sse::SseParser, stream};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&piece, bytes)) = data.split_first() else {
        return;
    };
    let whole = SseParser::default().push(bytes).unwrap_or_default();
    let mut parser = SseParser::default();
    let cut: Vec<_> = bytes
        .chunks(usize::from(piece).max(1))
        .filter_map(|p| parser.push(p))
        .flatten()
        .collect();
    assert_eq!(whole, cut);
    for event in &whole {
        let _ = stream::parse(event);
    }
});
