//! One safetensors file: memory-mapped, its header parsed and checked.
//!
//! The layout (<https://github.com/safetensors/safetensors#format>): eight bytes with the header's length N
//! (little-endian), N bytes of JSON, then the data, which the tensors cover without gaps or overlaps. The header is
//! parsed here rather than by the `safetensors` crate because that accepts a key that occurs twice (the last wins) and
//! its errors name neither the tensor nor the numbers; a property test holds the two parsers against each other.

mod header;
mod sniff;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

pub(crate) use header::UniqueStrings;
pub use header::{Header, StoredTensor};

/// Bytes of the field that holds the header's length.
const LENGTH_BYTES: usize = 8;
/// Longest header that is read, as in the reference implementation.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// A mapped safetensors file.
#[derive(Debug)]
pub struct WeightsFile {
    path: PathBuf,
    map: Mmap,
    /// Offset of the data in the file.
    data: usize,
    header: Header,
    identity: Option<FileIdentity>,
}

/// What tells a file and its state from any other, without its contents. Every write moves the time of the last change,
/// which cannot be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    /// Bytes.
    pub length: u64,
    /// Number of the file in its file system.
    pub inode: u64,
    /// Time of the last write: seconds and nanoseconds since 1970.
    pub written: (i64, i64),
    /// Time of the last change of contents or attributes: seconds and nanoseconds since 1970.
    pub changed: (i64, i64),
}

impl FileIdentity {
    /// The identity in a file's metadata; `None` where the system has no such thing.
    #[cfg(unix)]
    pub fn of(metadata: &std::fs::Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        Some(Self {
            length: metadata.len(),
            inode: metadata.ino(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// The identity in a file's metadata; `None` where the system has no such thing.
    #[cfg(not(unix))]
    pub fn of(_: &std::fs::Metadata) -> Option<Self> {
        None
    }
}

/// Why a file was refused.
#[derive(Debug, thiserror::Error)]
pub enum WeightsFileError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The file is not a valid safetensors file.
    #[error("{path}: {what}", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What was found and what is expected.
        what: String,
    },
}

impl WeightsFile {
    /// Maps `path` and checks its header; the data itself is not read.
    pub fn open(path: &Path) -> Result<Self, WeightsFileError> {
        let file = fs_err::File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(WeightsFileError::Invalid {
                path: path.to_path_buf(),
                what: "not a regular file: expected a safetensors file".to_owned(),
            });
        }
        // SAFETY: the mapping is read-only and lives as long as the bytes that are lent from it. As with every mapped
        // file, another process that shortens it while it is mapped ends this one with SIGBUS; deltamux never writes
        // to a model's files in place, and the documentation asks the same of its users.
        let map = unsafe { Mmap::map(file.file()) }?;
        let (data, header) = parse(&map).map_err(|what| WeightsFileError::Invalid {
            path: path.to_path_buf(),
            what,
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            map,
            data,
            header,
            identity: FileIdentity::of(&metadata),
        })
    }

    /// The file's identity when it was opened; `None` where the system has no such thing.
    pub fn identity(&self) -> Option<FileIdentity> {
        self.identity
    }

    /// The header as it is stored.
    pub fn header_bytes(&self) -> &[u8] {
        &self.map[LENGTH_BYTES..self.data]
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors by name.
    pub fn tensors(&self) -> &BTreeMap<String, StoredTensor> {
        &self.header.tensors
    }

    /// The strings under `__metadata__`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }

    /// The bytes of a tensor of this file; empty for one that does not lie in it.
    pub fn bytes(&self, tensor: &StoredTensor) -> &[u8] {
        self.map[self.data..].get(tensor.begin..tensor.end).unwrap_or_default()
    }

    /// Lets the operating system take back the memory of bytes that were lent from this file; they are read again from
    /// it when they are needed. Bytes from elsewhere are left alone.
    pub fn release(&self, bytes: &[u8]) {
        let start = (bytes.as_ptr() as usize).wrapping_sub(self.map.as_ptr() as usize);
        if start > self.map.len() || bytes.len() > self.map.len() - start || bytes.is_empty() {
            return;
        }
        // SAFETY: the mapping is of a file and nobody writes to it, so dropped pages come back with the same contents.
        #[cfg(unix)]
        let result = unsafe {
            self.map
                .unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, bytes.len())
        };
        // Memory that stays for longer is no error.
        #[cfg(unix)]
        if let Err(error) = result {
            tracing::debug!("{}: {error}", self.path.display());
        }
    }
}

/// Offset of the data and the header of a whole file's bytes; an error says what is wrong.
pub fn parse(file: &[u8]) -> Result<(usize, Header), String> {
    let Some((length, rest)) = file.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(sniff::not_safetensors(file).unwrap_or_else(|| {
            format!(
                "truncated: {} bytes, but a safetensors file has at least {LENGTH_BYTES}",
                file.len()
            )
        }));
    };
    let length = u64::from_le_bytes(*length);
    let fits = usize::try_from(length).ok().filter(|&n| n <= rest.len());
    // Other formats read as a nonsensical length or do not begin the header with a brace.
    if (fits.is_none() || length > MAX_HEADER_BYTES || rest.first() != Some(&b'{'))
        && let Some(what) = sniff::not_safetensors(file)
    {
        return Err(what);
    }
    if length > MAX_HEADER_BYTES {
        return Err(format!(
            "header too large: its length is given as {length} bytes, expected at most {MAX_HEADER_BYTES}; damaged, or \
             not a safetensors file"
        ));
    }
    let Some(header_bytes) = fits else {
        return Err(format!(
            "header length {length} goes beyond the file, which has {} bytes after it: truncated, or not a safetensors \
             file",
            rest.len()
        ));
    };
    let (text, data) = rest.split_at(header_bytes);
    if text.first() != Some(&b'{') {
        return Err("not a safetensors file: the header does not begin with `{`".to_owned());
    }
    let header = header::parse(text, data.len())?;
    Ok((LENGTH_BYTES + header_bytes, header))
}
