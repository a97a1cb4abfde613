//! A packed matrix of an artifact, factors or signs: never panics, and what is read is as long as the layout's formula
//! says and gives the same bytes when it is written again. The first two bytes are the shape; the rest is read as it is, and
//! cut or filled up to the length that its head asks for, as any other is refused at once.
#![no_main]

use deltamux_delta::artifact::{Packed, decode, packed_len};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [inputs, outputs, bytes @ ..] = data else {
        return;
    };
    let (inputs, outputs) = (usize::from(*inputs) + 1, usize::from(*outputs) + 1);
    check(bytes, inputs, outputs);
    // Some thousand ranks of the largest shape.
    if let Some(len) = packed_len(bytes, inputs, outputs).filter(|len| *len <= 1 << 20) {
        let mut fitting = bytes.to_vec();
        fitting.resize(len, 0);
        check(&fitting, inputs, outputs);
    }
});

fn check(bytes: &[u8], inputs: usize, outputs: usize) {
    let decoded = decode(bytes.to_vec(), inputs, outputs);
    let parsed = Packed::parse(bytes, inputs, outputs);
    assert_eq!(decoded.as_ref().err(), parsed.as_ref().err());
    if let (Ok(delta), Ok(parsed)) = (decoded, parsed) {
        assert_eq!(packed_len(bytes, inputs, outputs), Some(bytes.len()));
        assert_eq!(parsed.encode(), bytes);
        let mut row = vec![0.0; inputs];
        delta.add_dense_row(outputs - 1, &mut row);
        // Products of finite factors may be too large for f32.
        assert!(matches!(parsed, Packed::Factors(_)) || row.iter().all(|x| x.is_finite()));
    }
}
