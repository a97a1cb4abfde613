//! The JSON header of a safetensors file.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, de};

/// Where a tensor lies and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    /// Element type as the file names it, e.g. `BF16`.
    pub dtype: String,
    /// Shape, row-major.
    pub shape: Vec<usize>,
    /// First byte in the data.
    pub begin: usize,
    /// Byte after the last one.
    pub end: usize,
}

/// A checked header.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Tensors by name.
    pub tensors: BTreeMap<String, StoredTensor>,
    /// The strings under `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

/// Parses the header's text and checks that its tensors cover `data_bytes` bytes of data exactly once.
pub(super) fn parse(text: &[u8], data_bytes: usize) -> Result<Header, String> {
    let raw: RawHeader = serde_json::from_slice(text).map_err(|e| match e.classify() {
        serde_json::error::Category::Data => format!("header: {e}"),
        _ => format!("header is not valid JSON: {e}"),
    })?;
    let mut tensors = BTreeMap::new();
    for (name, info) in raw.tensors {
        let tensor = check(info, data_bytes).map_err(|what| format!("tensor {name}: {what}"))?;
        tensors.insert(name, tensor);
    }
    check_coverage(&tensors, data_bytes)?;
    Ok(Header {
        tensors,
        metadata: raw.metadata.0,
    })
}

/// One tensor: its offsets lie in the data and its shape fills them.
fn check(info: RawTensor, data_bytes: usize) -> Result<StoredTensor, String> {
    let RawTensor {
        dtype,
        shape,
        data_offsets: (begin, end),
    } = info;
    if begin > end {
        return Err(format!("data_offsets [{begin}, {end}] run backwards"));
    }
    let (Ok(begin_at), Ok(end_at)) = (usize::try_from(begin), usize::try_from(end)) else {
        return Err(format!("data_offsets [{begin}, {end}] overflow"));
    };
    if end_at > data_bytes {
        return Err(format!(
            "data_offsets [{begin}, {end}] go beyond the data, which has {data_bytes} bytes: the file is truncated or \
             damaged"
        ));
    }
    let mut dims = Vec::with_capacity(shape.len());
    let mut elements = 1usize;
    for &dim in &shape {
        let dim = usize::try_from(dim).map_err(|_| format!("shape {shape:?} overflows"))?;
        elements = elements
            .checked_mul(dim)
            .ok_or_else(|| format!("shape {shape:?} overflows"))?;
        dims.push(dim);
    }
    let bits = dtype_bits(&dtype).ok_or_else(|| format!("type {dtype} is unknown"))?;
    let bits = elements
        .checked_mul(bits)
        .ok_or_else(|| format!("shape {shape:?} overflows"))?;
    if !bits.is_multiple_of(8) || bits / 8 != end_at - begin_at {
        return Err(format!(
            "shape {shape:?} of type {dtype} needs {} bytes, but data_offsets [{begin}, {end}] hold {}",
            bits.div_ceil(8),
            end_at - begin_at
        ));
    }
    Ok(StoredTensor {
        dtype,
        shape: dims,
        begin: begin_at,
        end: end_at,
    })
}

/// No gaps, no overlaps, nothing after the last tensor.
fn check_coverage(tensors: &BTreeMap<String, StoredTensor>, data_bytes: usize) -> Result<(), String> {
    let mut order: Vec<_> = tensors.iter().collect();
    order.sort_by_key(|(_, t)| (t.begin, t.end));
    let mut covered = 0;
    let mut before = "";
    for (name, tensor) in order {
        if tensor.begin < covered {
            return Err(format!(
                "tensors {before} and {name} overlap: bytes {} to {} of the data belong to both",
                tensor.begin,
                covered.min(tensor.end)
            ));
        }
        if tensor.begin > covered {
            return Err(format!(
                "bytes {covered} to {} of the data, before tensor {name}, belong to no tensor",
                tensor.begin
            ));
        }
        covered = tensor.end;
        before = name;
    }
    if covered < data_bytes {
        return Err(format!("the last {} bytes belong to no tensor", data_bytes - covered));
    }
    Ok(())
}

/// Bits of one element of the types that the format knows.
fn dtype_bits(dtype: &str) -> Option<usize> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

#[derive(Debug, Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header before its checks; a key that occurs twice is an error (case d2).
#[derive(Debug, Default)]
struct RawHeader {
    tensors: BTreeMap<String, RawTensor>,
    metadata: UniqueStrings,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Header;
        impl<'de> Visitor<'de> for Header {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with one entry for each tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader::default();
                let mut has_metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        if std::mem::replace(&mut has_metadata, true) {
                            return Err(duplicate(&name));
                        }
                        header.metadata = map.next_value::<Option<UniqueStrings>>()?.unwrap_or_default();
                        continue;
                    }
                    if header.tensors.contains_key(&name) {
                        return Err(duplicate(&name));
                    }
                    let tensor = map
                        .next_value::<RawTensor>()
                        .map_err(|e| A::Error::custom(format!("tensor {name}: {e}")))?;
                    header.tensors.insert(name, tensor);
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Header)
    }
}

/// A JSON object of strings whose keys are unique.
#[derive(Debug, Default)]
pub(crate) struct UniqueStrings(pub(crate) BTreeMap<String, String>);

impl<'de> Deserialize<'de> for UniqueStrings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings;
        impl<'de> Visitor<'de> for Strings {
            type Value = UniqueStrings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueStrings, A::Error> {
                let mut strings = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if strings.contains_key(&key) {
                        return Err(duplicate(&key));
                    }
                    let value = map.next_value()?;
                    strings.insert(key, value);
                }
                Ok(UniqueStrings(strings))
            }
        }
        deserializer.deserialize_map(Strings)
    }
}

fn duplicate<E: de::Error>(key: &str) -> E {
    E::custom(format!("duplicate key `{key}`"))
}
