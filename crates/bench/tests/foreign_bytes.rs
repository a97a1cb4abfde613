//! What others write (workload files, streams of other servers, bundles from elsewhere) is read or refused, whatever
//! its bytes: never a panic.

use std::path::Path;

use deltamux_bench::bundle::{Chunk, ChunkKind, Outcome, RequestRecord, Run, read_answers, read_events, write_events};
use deltamux_bench::client::{sse::SseParser, stream};
use deltamux_bench::workload::Workload;
use proptest::prelude::*;

const LINE: &str =
    r#"{"id":0,"prompt":"hello","timestamp":1.5,"model":"m","min_tokens":3,"max_tokens":3,"ignore_eos":true}"#;

const STREAM: &[u8] =
    b": hello\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\xc3\xa9\"}}],\"usage\":{\"completion_tokens\":2}}\n\n\
event: error\ndata: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n";

const ANSWER: &[u8] = br#"{"point":0,"request":0,"model":"m","tasks_sha256":"a","line":1,"prompt_sha256":"b","expected":"x","outcome":"completed","answer":"y","match":false,"prompt_tokens":1,"completion_tokens":null,"divergence":{"positions":1,"kl_nats":0.5,"same":0,"loss_nats":1.5,"reference_loss_nats":1.0}}
"#;

/// `text` with one byte replaced.
fn with_byte(text: &[u8], at: prop::sample::Index, byte: u8) -> Vec<u8> {
    let mut bytes = text.to_vec();
    bytes[at.index(text.len())] = byte;
    bytes
}

/// A parser's events for `bytes`, cut into pieces of `piece` bytes.
fn events(bytes: &[u8], piece: usize) -> Vec<deltamux_bench::client::sse::SseEvent> {
    let mut parser = SseParser::default();
    bytes
        .chunks(piece)
        .flat_map(|piece| parser.push(piece).expect("short events"))
        .collect()
}

/// A request with two chunks.
fn record() -> RequestRecord {
    let chunk = |t_ns, kind| Chunk { t_ns, kind, chars: 1 };
    RequestRecord {
        point: 0,
        repeat: 0,
        warmup: false,
        request: 0,
        model: "m".to_owned(),
        t_sched_ns: 1,
        t_send_ns: Some(2),
        t_done_ns: 5,
        max_tokens: Some(2),
        prompt_tokens: Some(1),
        cached_tokens: None,
        completion_tokens: Some(2),
        finish_reason: Some("length".to_owned()),
        outcome: Outcome::Completed,
        chunks: vec![chunk(3, ChunkKind::Text), chunk(4, ChunkKind::Text)],
    }
}

proptest! {
    #[test]
    fn workload_files(bytes in prop::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index, byte: u8) {
        let path = Path::new("w.jsonl");
        let _ = Workload::parse(&bytes, path);
        let file = format!("{LINE}\n{LINE}\n");
        let _ = Workload::parse(&with_byte(file.as_bytes(), at, byte), path);
    }

    #[test]
    fn streams_give_the_same_events_however_they_are_cut(at: prop::sample::Index, byte: u8, piece in 1usize..40) {
        let bytes = with_byte(STREAM, at, byte);
        let whole = events(&bytes, bytes.len());
        prop_assert_eq!(&events(&bytes, piece), &whole);
        for event in &whole {
            let _ = stream::parse(event);
        }
    }

    #[test]
    fn run_json(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = serde_json::from_slice::<Run>(&bytes);
    }

    #[test]
    fn answers(bytes in prop::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index, byte: u8) {
        let _ = read_answers(&bytes);
        let _ = read_answers(&with_byte(ANSWER, at, byte));
    }

    #[test]
    fn raw_events(bytes in prop::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index, byte: u8) {
        let _ = read_events(bytes);
        let file = write_events(&[record()]).expect("events");
        let _ = read_events(with_byte(&file, at, byte));
    }
}
