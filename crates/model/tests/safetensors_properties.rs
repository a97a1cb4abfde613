//! Any bytes at all are either read or refused; what is read is what the reference implementation reads.

mod common;

use std::collections::BTreeMap;

use common::safetensors_bytes;
use deltamux_model::weights_file::{StoredTensor, parse};
use proptest::prelude::*;
use safetensors::SafeTensors;

type Tensors = BTreeMap<String, (String, Vec<usize>, Vec<u8>)>;

/// Some tensors with some bytes.
fn tensors() -> impl Strategy<Value = Tensors> {
    let dtype = prop::sample::select(vec![
        ("BF16", 2),
        ("F16", 2),
        ("F32", 4),
        ("I64", 8),
        ("U8", 1),
        ("BOOL", 1),
    ]);
    let tensor =
        (dtype, prop::collection::vec(0usize..4, 0..4), any::<u8>()).prop_map(|((name, width), shape, seed)| {
            let bytes = shape.iter().product::<usize>() * width;
            let bytes = (0..bytes).map(|i| seed.wrapping_add(i as u8)).collect();
            (name.to_owned(), shape, bytes)
        });
    prop::collection::btree_map("[a-z.éü\"\\\\]{1,8}", tensor, 0..6)
}

/// What both implementations must agree on: whatever is accepted here the reference accepts, with the same contents.
fn agree(file: &[u8]) -> Result<(), TestCaseError> {
    let Ok((data, header)) = parse(file) else { return Ok(()) };
    let reference = SafeTensors::deserialize(file);
    prop_assert!(reference.is_ok(), "{:?}", reference.err());
    let reference = reference.expect("checked");
    let mut names: Vec<_> = reference.names();
    names.sort_unstable();
    prop_assert_eq!(names, header.tensors.keys().map(String::as_str).collect::<Vec<_>>());
    for (
        name,
        StoredTensor {
            dtype,
            shape,
            begin,
            end,
        },
    ) in &header.tensors
    {
        let view = reference.tensor(name).expect("the same names");
        prop_assert_eq!(view.shape(), &shape[..]);
        prop_assert_eq!(view.data(), &file[data..][*begin..*end]);
        prop_assert_eq!(serde_json::to_value(view.dtype()).expect("JSON"), dtype.as_str());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn written_tensors_are_read_back(tensors in tensors()) {
        let file = safetensors_bytes(&tensors);
        let (data, header) = parse(&file).expect("a valid file");
        prop_assert_eq!(header.tensors.len(), tensors.len());
        for (name, (dtype, shape, bytes)) in &tensors {
            let stored = &header.tensors[name];
            prop_assert_eq!(&stored.dtype, dtype);
            prop_assert_eq!(&stored.shape, shape);
            prop_assert_eq!(&file[data..][stored.begin..stored.end], &bytes[..]);
        }
        agree(&file)?;
    }

    #[test]
    fn any_bytes_are_read_or_refused(file in prop::collection::vec(any::<u8>(), 0..200)) {
        agree(&file)?;
    }

    #[test]
    fn any_header_is_read_or_refused(
        header in "\\{(\"[ab]\": \\{\"dtype\": \"(F32|U8|X)\", \"shape\": \\[[0-9, ]{0,4}\\], \"data_offsets\": \\[[0-9], [0-9]{1,2}\\]\\},?){0,3}\\}",
        data in 0usize..16,
    ) {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + data, 0);
        agree(&file)?;
    }

    #[test]
    fn damaged_files_are_read_or_refused(
        tensors in tensors(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut file = safetensors_bytes(&tensors);
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if cuts {
            file.truncate(cut.index(file.len()));
        }
        agree(&file)?;
    }
}
