//! A manifest of any bytes is read or refused: never a panic.

use deltamux_delta::artifact::Manifest;
use proptest::prelude::*;

/// The parts of a manifest that numbers are computed from.
const MANIFEST: &str = r#"{"format_version":2,"name":"v","method":"prinmix","ratio":0.0625,"budget":"model",
"base":{"digest":"00","architecture":"Llama","num_layers":1,"hidden_size":8,"vocab_size":8},"vocab_size":null,
"linears":[],"unchanged_linears":1,"files":[]}"#;

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index, byte: u8) {
        let _ = Manifest::parse(&bytes);
        let mut text = MANIFEST.as_bytes().to_vec();
        let at = at.index(text.len());
        text[at] = byte;
        let _ = Manifest::parse(&text);
    }

    #[test]
    fn numbers_of_any_size(version: u64, number: i64, layers: u64) {
        let text = MANIFEST
            .replace("\"num_layers\":1", &format!("\"num_layers\":{layers}"))
            .replace("\"unchanged_linears\":1", &format!("\"unchanged_linears\":{number}"))
            .replace("0.0625", &format!("{number}e{}", version % 999));
        let _ = Manifest::parse(text.as_bytes());
        let _ = Manifest::parse(text.replace("version\":1", &format!("version\":{version}")).as_bytes());
    }
}
