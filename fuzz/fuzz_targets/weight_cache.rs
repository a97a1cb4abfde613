//! The head of a cache of packed weights: never panics, and matrices of what it accepts lie inside the file, one after
//! another. The first eight bytes are the file's length; the rest is read as a head as it is, and as the text of a head
//! that is made whole around it, as its digest would let next to nothing through otherwise.
#![no_main]

use deltamux_model::cpu::cache::header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((len, start)) = data.split_first_chunk::<8>() else {
        return;
    };
    let len = u64::from_le_bytes(*len);
    for start in [start, &header::seal(start)] {
        check(start, len);
    }
});

fn check(start: &[u8], len: u64) {
    if let Ok((data, header)) = header::parse(start, len) {
        let mut end = data as u64;
        for entry in &header.matrices {
            assert_eq!(data as u64 + entry.offset, end);
            end += entry.length;
        }
        assert_eq!(end, len);
    }
}
