//! The parser. Every length in the file is checked against what is left of it before anything is allocated.

use std::collections::BTreeMap;

use super::{Gguf, GgufError, Tensor, TensorType, Value};

/// The largest counts that are believed: real files have tens of keys and hundreds of tensors of at most 4 dimensions.
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 20;
const MAX_DIMENSIONS: u64 = 4;
/// Arrays may hold arrays; nothing real nests deeper than this.
const MAX_DEPTH: u32 = 4;
const DEFAULT_ALIGNMENT: usize = 32;

pub(super) fn parse(data: &[u8]) -> Result<Gguf<'_>, GgufError> {
    let mut reader = Reader { data, at: 0 };
    let magic = reader.bytes("magic", 4)?;
    if magic != b"GGUF" {
        return Err(GgufError::Magic([magic[0], magic[1], magic[2], magic[3]]));
    }
    let version = reader.u32("version")?;
    if version != 3 {
        return Err(GgufError::Version(version));
    }
    let tensor_count = limited("tensors", reader.u64("tensor count")?, MAX_TENSORS)?;
    let key_count = limited("keys", reader.u64("key count")?, MAX_KEYS)?;
    let mut keys = BTreeMap::new();
    for _ in 0..key_count {
        let key = reader.string("key")?;
        let number = reader.u32("value type")?;
        let value = reader.value(&key, number, 0)?;
        if keys.insert(key.clone(), value).is_some() {
            return Err(GgufError::Duplicate { what: "key", name: key });
        }
    }
    let alignment = match keys.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(Value::Int(n)) => usize::try_from(*n)
            .ok()
            .filter(|n| n.is_power_of_two())
            .ok_or_else(|| super::wrong_type("general.alignment", "a power of two"))?,
        Some(_) => return Err(super::wrong_type("general.alignment", "a power of two")),
    };
    let mut records = Vec::new();
    for _ in 0..tensor_count {
        records.push(reader.tensor()?);
    }
    let start = reader.at.checked_next_multiple_of(alignment).unwrap_or(usize::MAX);
    let mut tensors = BTreeMap::new();
    for record in records {
        let (name, tensor) = record.place(start, data.len())?;
        if tensors.insert(name.clone(), tensor).is_some() {
            return Err(GgufError::Duplicate { what: "tensor", name });
        }
    }
    Ok(Gguf { data, keys, tensors })
}

fn limited(what: &'static str, count: u64, limit: u64) -> Result<u64, GgufError> {
    if count > limit {
        return Err(GgufError::TooMany { what, count, limit });
    }
    Ok(count)
}

/// A tensor's record before the start of the data is known.
struct Record {
    name: String,
    shape: Vec<usize>,
    dtype: TensorType,
    offset: u64,
}

impl Record {
    /// Finds the tensor's bytes in a file of `file_len` bytes whose tensor data begins at `start`.
    fn place(self, start: usize, file_len: usize) -> Result<(String, Tensor), GgufError> {
        let Self {
            name,
            shape,
            dtype,
            offset,
        } = self;
        let refuse = |what: String| GgufError::Tensor {
            name: name.clone(),
            what,
        };
        let (block, block_bytes) = dtype.block();
        let inner = shape.last().copied().unwrap_or(1);
        if inner % block != 0 {
            return Err(refuse(format!(
                "rows of {inner} elements do not divide into blocks of {block}"
            )));
        }
        let elements = shape
            .iter()
            .try_fold(1usize, |n, &d| n.checked_mul(d))
            .ok_or_else(|| refuse(format!("shape {shape:?} overflows")))?;
        let range = usize::try_from(offset).ok().and_then(|offset| {
            let begin = start.checked_add(offset)?;
            let end = begin.checked_add((elements / block).checked_mul(block_bytes)?)?;
            (end <= file_len).then_some(begin..end)
        });
        let bytes = range.ok_or_else(|| {
            refuse(format!(
                "its data (shape {shape:?} at offset {offset}) lies beyond the end of the file, {file_len} bytes"
            ))
        })?;
        let tensor = Tensor {
            shape,
            dtype,
            elements,
            bytes,
        };
        Ok((name, tensor))
    }
}

impl Tensor {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.elements
    }
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.data.len() - self.at
    }

    fn bytes(&mut self, what: &'static str, len: u64) -> Result<&'a [u8], GgufError> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        match end.and_then(|end| self.data.get(self.at..end)) {
            Some(bytes) => {
                self.at += bytes.len();
                Ok(bytes)
            }
            None => Err(GgufError::Truncated {
                what,
                at: self.at,
                needed: len,
                left: self.left(),
            }),
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let bytes = self.bytes(what, N as u64)?;
        let mut out = [0; N];
        out.copy_from_slice(bytes);
        Ok(out)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn string(&mut self, what: &'static str) -> Result<String, GgufError> {
        let len = self.u64(what)?;
        let at = self.at;
        let bytes = self.bytes(what, len)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(GgufError::NotUtf8 { what, at }),
        }
    }

    fn value(&mut self, key: &str, number: u32, depth: u32) -> Result<Value, GgufError> {
        const WHAT: &str = "value";
        Ok(match number {
            0 => Value::Int(u8::from_le_bytes(self.array(WHAT)?).into()),
            1 => Value::Int(i8::from_le_bytes(self.array(WHAT)?).into()),
            2 => Value::Int(u16::from_le_bytes(self.array(WHAT)?).into()),
            3 => Value::Int(i16::from_le_bytes(self.array(WHAT)?).into()),
            4 => Value::Int(self.u32(WHAT)?.into()),
            5 => Value::Int(i32::from_le_bytes(self.array(WHAT)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(WHAT)?).into()),
            7 => Value::Bool(self.array::<1>(WHAT)? != [0]),
            8 => Value::String(self.string(WHAT)?),
            9 if depth < MAX_DEPTH => {
                let element = self.u32("array type")?;
                let len = self.u64("array length")?;
                // Each element takes at least one byte, so a length beyond that is refused before the loop.
                if len > self.left() as u64 {
                    return Err(GgufError::Truncated {
                        what: "array",
                        at: self.at,
                        needed: len,
                        left: self.left(),
                    });
                }
                let mut values = Vec::new();
                for _ in 0..len {
                    values.push(self.value(key, element, depth + 1)?);
                }
                Value::Array(values)
            }
            10 => Value::Int(self.u64(WHAT)?.into()),
            11 => Value::Int(i64::from_le_bytes(self.array(WHAT)?).into()),
            12 => Value::Float(f64::from_le_bytes(self.array(WHAT)?)),
            number => {
                return Err(GgufError::ValueType {
                    key: key.to_owned(),
                    number,
                });
            }
        })
    }

    fn tensor(&mut self) -> Result<Record, GgufError> {
        let name = self.string("tensor name")?;
        let dimensions = limited("dimensions", self.u32("dimension count")?.into(), MAX_DIMENSIONS)?;
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = self.u64("dimension")?;
            shape.push(usize::try_from(size).map_err(|_| GgufError::Tensor {
                name: name.clone(),
                what: format!("a dimension of {size} does not fit this machine"),
            })?);
        }
        shape.reverse();
        let number = self.u32("tensor type")?;
        let dtype = TensorType::from_number(number).ok_or_else(|| GgufError::Tensor {
            name: name.clone(),
            what: format!("type number {number}; this reader knows F32 (0), Q4_1 (3) and Q8_0 (8)"),
        })?;
        let offset = self.u64("tensor offset")?;
        Ok(Record {
            name,
            shape,
            dtype,
            offset,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Writes files, right or wrong, field by field.
    #[derive(Default, Clone)]
    struct File(Vec<u8>);

    impl File {
        fn header(tensors: u64, keys: u64) -> Self {
            Self::default().raw(b"GGUF").u32(3).u64(tensors).u64(keys)
        }
        fn raw(mut self, bytes: &[u8]) -> Self {
            self.0.extend(bytes);
            self
        }
        fn u32(self, n: u32) -> Self {
            self.raw(&n.to_le_bytes())
        }
        fn u64(self, n: u64) -> Self {
            self.raw(&n.to_le_bytes())
        }
        fn string(self, s: &str) -> Self {
            self.u64(s.len() as u64).raw(s.as_bytes())
        }
        fn key(self, key: &str, number: u32) -> Self {
            self.string(key).u32(number)
        }
        fn tensor(self, name: &str, dims: &[u64], number: u32, offset: u64) -> Self {
            let mut file = self.string(name).u32(dims.len() as u32);
            for &d in dims {
                file = file.u64(d);
            }
            file.u32(number).u64(offset)
        }
        fn align(mut self) -> Self {
            self.0.resize(self.0.len().next_multiple_of(32), 0);
            self
        }
        fn error(&self) -> GgufError {
            Gguf::parse(&self.0).expect_err("refused")
        }
    }

    fn small() -> File {
        File::header(1, 3)
            .key("answer", 4)
            .u32(42)
            .key("words", 9)
            .u32(8)
            .u64(2)
            .string("a")
            .string("é")
            .key("theta", 6)
            .raw(&1.5f32.to_le_bytes())
            .tensor("w", &[2, 3], 0, 0)
            .align()
            .raw(&[0; 24])
    }

    #[test]
    fn keys_and_tensors_are_read() {
        let file = small();
        let gguf = Gguf::parse(&file.0).unwrap();
        assert_eq!(gguf.usize("answer").unwrap(), 42);
        assert_eq!(gguf.strings("words").unwrap(), ["a", "é"]);
        assert_eq!(gguf.float("theta").unwrap(), 1.5);
        let tensor = &gguf.tensors()["w"];
        assert_eq!((tensor.shape.as_slice(), tensor.elements()), (&[3, 2][..], 6));
        assert_eq!(gguf.dequantize(tensor), [0.0; 6]);
    }

    #[test]
    fn a_key_of_another_type_or_missing_is_named() {
        let file = small();
        let gguf = Gguf::parse(&file.0).unwrap();
        assert_eq!(
            gguf.usize("words").unwrap_err().to_string(),
            "key \"words\" is not a non-negative integer"
        );
        assert_eq!(gguf.string("nope").unwrap_err().to_string(), "key \"nope\" is missing");
    }

    #[test]
    fn another_magic_is_refused() {
        let error = File::default().raw(b"PK\x03\x04 and more").error();
        assert_eq!(error, GgufError::Magic(*b"PK\x03\x04"));
    }

    #[test]
    fn another_version_is_refused() {
        assert_eq!(File::default().raw(b"GGUF").u32(2).error(), GgufError::Version(2));
    }

    #[test]
    fn every_truncation_is_refused() {
        let file = small().0;
        for len in 0..file.len() {
            assert!(
                Gguf::parse(&file[..len]).is_err(),
                "accepted with {len} of {} bytes",
                file.len()
            );
        }
    }

    #[test]
    fn a_string_beyond_the_end_is_refused_without_allocating_it() {
        let error = File::header(0, 1).u64(u64::MAX).raw(b"x").error();
        assert!(
            matches!(
                error,
                GgufError::Truncated {
                    what: "key",
                    needed: u64::MAX,
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn an_array_beyond_the_end_is_refused_without_allocating_it() {
        let error = File::header(0, 1).key("k", 9).u32(0).u64(1 << 60).error();
        assert!(matches!(error, GgufError::Truncated { what: "array", .. }), "{error}");
    }

    #[test]
    fn arrays_nested_without_end_are_refused() {
        let mut file = File::header(0, 1).key("k", 9);
        for _ in 0..64 {
            file = file.u32(9).u64(1);
        }
        assert!(matches!(file.error(), GgufError::ValueType { number: 9, .. }));
    }

    #[test]
    fn an_unknown_value_type_is_refused_with_its_key() {
        let error = File::header(0, 1).key("k", 13).error();
        assert_eq!(error.to_string(), "key \"k\": unknown value type 13");
    }

    #[test]
    fn text_that_is_not_utf_8_is_refused() {
        let error = File::header(0, 1).u64(1).raw(&[0xff]).error();
        assert!(matches!(error, GgufError::NotUtf8 { what: "key", .. }), "{error}");
    }

    #[test]
    fn duplicate_keys_and_tensors_are_refused_by_name() {
        let error = File::header(0, 2).key("k", 7).raw(&[0]).key("k", 7).raw(&[0]).error();
        assert_eq!(error.to_string(), "duplicate key \"k\"");
        let error = File::header(2, 0)
            .tensor("w", &[1], 0, 0)
            .tensor("w", &[1], 0, 0)
            .align()
            .u32(0)
            .error();
        assert_eq!(error.to_string(), "duplicate tensor \"w\"");
    }

    #[test]
    fn counts_beyond_reason_are_refused() {
        assert!(matches!(
            File::header(1 << 40, 0).error(),
            GgufError::TooMany { what: "tensors", .. }
        ));
        assert!(matches!(
            File::header(0, 1 << 40).error(),
            GgufError::TooMany { what: "keys", .. }
        ));
        let error = File::header(1, 0).string("w").u32(5).error();
        assert!(matches!(error, GgufError::TooMany { what: "dimensions", .. }));
    }

    #[test]
    fn an_unknown_tensor_type_is_refused_with_its_name() {
        let error = File::header(1, 0).tensor("w", &[32], 2, 0).error();
        assert!(error.to_string().starts_with("tensor \"w\": type number 2"), "{error}");
    }

    #[test]
    fn a_row_that_is_no_whole_number_of_blocks_is_refused() {
        let error = File::header(1, 0)
            .tensor("w", &[31], 3, 0)
            .align()
            .raw(&[0; 20])
            .error();
        assert!(error.to_string().contains("blocks of 32"), "{error}");
    }

    #[test]
    fn tensor_data_beyond_the_end_is_refused() {
        for (dims, offset) in [
            (&[8u64][..], 0u64),
            (&[1], u64::MAX),
            (&[u64::MAX / 4, 2], 0),
            (&[1 << 33, 1 << 33], 0),
        ] {
            let error = File::header(1, 0)
                .tensor("w", dims, 0, offset)
                .align()
                .raw(&[0; 8])
                .error();
            assert!(
                matches!(error, GgufError::Tensor { .. }),
                "{dims:?} at {offset}: {error}"
            );
        }
    }

    #[test]
    fn an_alignment_that_is_no_power_of_two_is_refused() {
        for alignment in [0, 24] {
            let error = File::header(0, 1).key("general.alignment", 4).u32(alignment).error();
            assert_eq!(error.to_string(), "key \"general.alignment\" is not a power of two");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = Gguf::parse(&bytes);
            let mut file = File::header(2, 2).0;
            file.extend(bytes);
            let _ = Gguf::parse(&file);
        }

        #[test]
        fn a_changed_byte_never_panics(at in 0usize..1000, byte in any::<u8>()) {
            let mut file = small().0;
            let at = at % file.len();
            file[at] = byte;
            if let Ok(gguf) = Gguf::parse(&file) {
                for tensor in gguf.tensors().values() {
                    prop_assert_eq!(gguf.dequantize(tensor).len(), tensor.elements());
                }
            }
        }
    }
}
