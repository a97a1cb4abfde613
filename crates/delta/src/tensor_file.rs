//! Writes a safetensors file tensor by tensor, so that a checkpoint never has to be in memory as a whole.

use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use sha2::{Digest, Sha256};

/// A tensor to be written: its place in the header.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TensorSpec {
    /// Name.
    pub name: String,
    /// Safetensors' name of the element type.
    pub dtype: &'static str,
    /// Shape.
    pub shape: Vec<usize>,
    /// Length in bytes.
    pub bytes: usize,
}

/// A safetensors file that is being written.
pub(crate) struct TensorFileWriter {
    file: BufWriter<fs_err::File>,
    hash: Sha256,
    expected: std::vec::IntoIter<TensorSpec>,
    written: u64,
}

impl TensorFileWriter {
    /// Creates the file and writes the header; the tensors must follow in the order of `specs`.
    pub fn create(path: &Path, specs: Vec<TensorSpec>) -> io::Result<Self> {
        let mut header = serde_json::Map::new();
        header.insert("__metadata__".to_string(), serde_json::json!({ "format": "pt" }));
        let mut offset = 0;
        for spec in &specs {
            header.insert(
                spec.name.clone(),
                serde_json::json!({
                    "dtype": spec.dtype,
                    "shape": spec.shape,
                    "data_offsets": [offset, offset + spec.bytes],
                }),
            );
            offset += spec.bytes;
        }
        let mut header = serde_json::to_vec(&header)?;
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut writer = Self {
            file: BufWriter::new(fs_err::File::create(path)?),
            hash: Sha256::new(),
            expected: specs.into_iter(),
            written: 0,
        };
        writer.put(&(header.len() as u64).to_le_bytes())?;
        writer.put(&header)?;
        Ok(writer)
    }

    /// Writes the next tensor's bytes.
    ///
    /// # Panics
    /// If the length is not the one announced, or no tensor is left to write.
    pub fn tensor(&mut self, bytes: &[u8]) -> io::Result<()> {
        let spec = self.expected.next().expect("no more tensors than announced");
        assert_eq!(bytes.len(), spec.bytes, "bytes of `{}`", spec.name);
        self.put(bytes)
    }

    /// Writes the next tensor's bytes as they are made.
    ///
    /// # Panics
    /// If the parts are not as long as announced, or no tensor is left to write.
    pub fn tensor_in_parts(&mut self, parts: impl Iterator<Item = Vec<u8>>) -> io::Result<()> {
        let spec = self.expected.next().expect("no more tensors than announced");
        let before = self.written;
        for part in parts {
            self.put(&part)?;
        }
        assert_eq!(self.written - before, spec.bytes as u64, "bytes of `{}`", spec.name);
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Flushes to the disk; returns the file's length and SHA-256.
    pub fn finish(mut self) -> io::Result<(u64, String)> {
        assert!(self.expected.next().is_none(), "every announced tensor is written");
        self.file.flush()?;
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        Ok((self.written, hex::encode(self.hash.finalize())))
    }
}
