//! GGUF, the file format of llama.cpp, as far as the test model needs it: version 3, little-endian, tensors of type
//! F32, Q4_1 and Q8_0.
//!
//! The layout follows the published specification (`docs/gguf.md` of ggml): a header, key/value pairs, one record a
//! tensor, then the tensors' bytes from the next multiple of the alignment on.

mod dequantize;
mod read;

pub use dequantize::{BLOCK, TensorType};

use std::collections::BTreeMap;

/// Why a file was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GgufError {
    /// The file ends inside a field, or a length in it points beyond the end.
    #[error("truncated: {what} at byte {at} needs {needed} bytes, but {left} are left")]
    Truncated {
        /// The field.
        what: &'static str,
        /// Its offset in the file.
        at: usize,
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that the file still has.
        left: usize,
    },
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it starts with {0:02x?}, not with \"GGUF\"")]
    Magic([u8; 4]),
    /// Another version of the format.
    #[error("GGUF version {0}; this reader knows version 3")]
    Version(u32),
    /// A count that no real file reaches.
    #[error("{count} {what}; more than {limit} cannot be right")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The count in the file.
        count: u64,
        /// The limit of this reader.
        limit: u64,
    },
    /// A string that is not UTF-8.
    #[error("{what} at byte {at} is not UTF-8")]
    NotUtf8 {
        /// The field.
        what: &'static str,
        /// Its offset in the file.
        at: usize,
    },
    /// A type number that the format does not define.
    #[error("key {key:?}: unknown value type {number}")]
    ValueType {
        /// The key.
        key: String,
        /// The number found.
        number: u32,
    },
    /// A key or a tensor name twice.
    #[error("duplicate {what} {name:?}")]
    Duplicate {
        /// `key` or `tensor`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A key that is needed but missing.
    #[error("key {0:?} is missing")]
    MissingKey(String),
    /// A key whose value has another type.
    #[error("key {key:?} is not {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A tensor that cannot be read.
    #[error("tensor {name:?}: {what}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What was found and what is expected.
        what: String,
    },
}

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any integer type.
    Int(i128),
    /// `f32` or `f64`.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    String(String),
    /// An array; every element has the same type.
    Array(Vec<Value>),
}

/// One tensor's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Shape, row-major (the file stores the innermost dimension first; this is the reverse of that).
    pub shape: Vec<usize>,
    /// How its elements are stored.
    pub dtype: TensorType,
    /// Number of elements: the product of the shape.
    elements: usize,
    /// Its bytes, as a range of the file.
    bytes: std::ops::Range<usize>,
}

/// A parsed file.
#[derive(Debug)]
pub struct Gguf<'a> {
    data: &'a [u8],
    keys: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Tensor>,
}

impl<'a> Gguf<'a> {
    /// Reads keys and tensor records of `data`, a whole file, and checks that each tensor's bytes lie inside it.
    pub fn parse(data: &'a [u8]) -> Result<Self, GgufError> {
        read::parse(data)
    }

    /// The tensors' records by name.
    pub fn tensors(&self) -> &BTreeMap<String, Tensor> {
        &self.tensors
    }

    /// The elements of a tensor, dequantised exactly as ggml's reference does it, in f32.
    pub fn dequantize(&self, tensor: &Tensor) -> Vec<f32> {
        // A record can be passed to another file's parser: then its range may not fit, and there is nothing to read.
        let bytes = self.data.get(tensor.bytes.clone()).unwrap_or_default();
        tensor.dtype.dequantize(bytes)
    }

    fn value(&self, key: &str) -> Result<&Value, GgufError> {
        self.keys.get(key).ok_or_else(|| GgufError::MissingKey(key.to_owned()))
    }

    /// A key that holds a non-negative integer.
    pub fn usize(&self, key: &str) -> Result<usize, GgufError> {
        match self.value(key)? {
            Value::Int(n) => usize::try_from(*n).map_err(|_| wrong_type(key, "a non-negative integer")),
            _ => Err(wrong_type(key, "a non-negative integer")),
        }
    }

    /// A key that holds a floating-point number.
    pub fn float(&self, key: &str) -> Result<f64, GgufError> {
        match self.value(key)? {
            Value::Float(x) => Ok(*x),
            _ => Err(wrong_type(key, "a floating-point number")),
        }
    }

    /// A key that holds a string.
    pub fn string(&self, key: &str) -> Result<&str, GgufError> {
        match self.value(key)? {
            Value::String(s) => Ok(s),
            _ => Err(wrong_type(key, "a string")),
        }
    }

    /// A key that holds an array of strings.
    pub fn strings(&self, key: &str) -> Result<Vec<&str>, GgufError> {
        self.array(key, "an array of strings", |v| match v {
            Value::String(s) => Some(s.as_str()),
            _ => None,
        })
    }

    /// A key that holds an array of integers.
    pub fn integers(&self, key: &str) -> Result<Vec<i128>, GgufError> {
        self.array(key, "an array of integers", |v| match v {
            Value::Int(n) => Some(*n),
            _ => None,
        })
    }

    fn array<'s, T>(
        &'s self,
        key: &str,
        expected: &'static str,
        element: impl Fn(&'s Value) -> Option<T>,
    ) -> Result<Vec<T>, GgufError> {
        match self.value(key)? {
            Value::Array(values) => values
                .iter()
                .map(element)
                .collect::<Option<_>>()
                .ok_or_else(|| wrong_type(key, expected)),
            _ => Err(wrong_type(key, expected)),
        }
    }
}

fn wrong_type(key: &str, expected: &'static str) -> GgufError {
    GgufError::WrongType {
        key: key.to_owned(),
        expected,
    }
}
