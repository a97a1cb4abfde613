//! Writes an artifact: everything into a directory beside the target, then one rename.

use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::layout::header_entry_bytes;
use super::{ArtifactError, DELTA_FILE, FileInfo, MANIFEST_FILE, Manifest, Packed};
use crate::tensor_file::{TensorFileWriter, TensorSpec};

/// The directory that will appear in one step, or not at all.
///
/// A temporary directory beside it takes the files; [`Target::publish`] renames. Dropped before that, it leaves nothing.
#[derive(Debug)]
pub struct Target {
    path: PathBuf,
    temp: tempfile::TempDir,
    replace: bool,
}

impl Target {
    /// Whether `path` may become such a directory. An existing path is refused, unless `force` is set and it is an
    /// artifact or checkpoint that deltamux may replace (`marker` is a file that such a directory has). Returns whether
    /// there is something to replace.
    pub fn check(path: &Path, force: bool, marker: &str) -> Result<bool, ArtifactError> {
        let exists = path.symlink_metadata().is_ok();
        if exists {
            if !path.is_dir() {
                return Err(ArtifactError::invalid(
                    path,
                    "exists and is not a directory; choose another --out",
                ));
            }
            let empty = fs_err::read_dir(path)?.next().is_none();
            if !empty && !path.join(marker).is_file() {
                return Err(ArtifactError::invalid(
                    path,
                    format!("exists and has no {marker}, so it is not ours to replace; choose another --out"),
                ));
            }
            if !empty && !force {
                return Err(ArtifactError::invalid(
                    path,
                    "exists already; choose another --out or replace it with --force",
                ));
            }
        }
        if path.file_name().is_none() {
            return Err(ArtifactError::invalid(
                path,
                "is not a directory name; choose another --out",
            ));
        }
        Ok(exists)
    }

    /// Prepares `path`, which is first [checked](Target::check).
    pub fn new(path: &Path, force: bool, marker: &str) -> Result<Self, ArtifactError> {
        let exists = Self::check(path, force, marker)?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        fs_err::create_dir_all(parent)?;
        let name = path.file_name().unwrap_or_default();
        let mut builder = tempfile::Builder::new();
        let prefix = format!(".{}.partial-", name.to_string_lossy());
        builder.prefix(&prefix);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            builder.permissions(std::fs::Permissions::from_mode(0o777)); // the umask applies
        }
        let temp = builder.tempdir_in(parent)?;
        Ok(Self {
            path: path.to_path_buf(),
            temp,
            replace: exists,
        })
    }

    /// The directory to write into.
    pub fn dir(&self) -> &Path {
        self.temp.path()
    }

    /// Writes a small file and flushes it to the disk.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<FileInfo, ArtifactError> {
        use io::Write as _;
        let mut file = fs_err::File::create(self.dir().join(name))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(FileInfo {
            name: name.to_string(),
            bytes: bytes.len() as u64,
            sha256: hex::encode(Sha256::digest(bytes)),
        })
    }

    /// Makes the directory appear under its name.
    pub fn publish(self) -> Result<(), ArtifactError> {
        sync_dir(self.temp.path())?;
        let parent = self.temp.path().parent().map(Path::to_path_buf);
        let old = if self.replace {
            let old = tempfile::Builder::new()
                .prefix(".replaced-")
                .tempdir_in(parent.as_deref().unwrap_or(Path::new(".")))?;
            fs_err::rename(&self.path, old.path().join("old"))?;
            Some(old)
        } else {
            None
        };
        if let Err(error) = fs_err::rename(self.temp.path(), &self.path) {
            if let Some(old) = old
                && fs_err::rename(old.path().join("old"), &self.path).is_err()
            {
                let kept = old.keep().join("old");
                return Err(ArtifactError::invalid(
                    &self.path,
                    format!("{error}; what was there before is in {}", kept.display()),
                ));
            }
            return Err(error.into());
        }
        // The temporary name is gone: nothing is left for the guard to remove.
        let _ = self.temp.keep();
        if let Some(parent) = parent {
            sync_dir(&parent)?;
        }
        Ok(())
    }
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(unix) {
        fs_err::File::open(dir)?.sync_all()?;
    }
    Ok(())
}

/// Collects the tensors of an artifact and writes its packed file.
#[derive(Debug, Default)]
pub struct ArtifactWriter {
    tensors: Vec<(TensorSpec, Vec<u8>)>,
}

impl ArtifactWriter {
    /// An artifact without tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds packed factors or signs.
    pub fn packed(&mut self, name: &str, packed: &Packed) {
        let bytes = packed.encode();
        self.raw(name, "U8", vec![bytes.len()], bytes);
    }

    /// Bytes of the tensors added so far, without headers.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|(spec, _)| spec.bytes as u64).sum()
    }

    /// Adds a tensor of any type (`dtype` is safetensors' name) as it is.
    pub fn raw(&mut self, name: &str, dtype: &'static str, shape: Vec<usize>, bytes: Vec<u8>) {
        let spec = TensorSpec {
            name: name.to_string(),
            dtype,
            shape,
            bytes: bytes.len(),
        };
        self.tensors.push((spec, bytes));
    }

    /// Writes [`DELTA_FILE`] into `target`; returns its entry for the manifest and, for each packed tensor, its bytes
    /// with its part of the header.
    pub fn write(mut self, target: &Target) -> Result<(FileInfo, Vec<(String, u64)>), ArtifactError> {
        // Wide elements first keeps every tensor aligned in the mapping; packed bytes need no alignment.
        let rank = |dtype: &str| match dtype {
            "F32" | "U32" => 0,
            "U8" => 2,
            _ => 1,
        };
        self.tensors
            .sort_by(|(a, _), (b, _)| (rank(a.dtype), a.name.as_str()).cmp(&(rank(b.dtype), b.name.as_str())));
        let specs: Vec<TensorSpec> = self.tensors.iter().map(|(spec, _)| spec.clone()).collect();
        let mut writer = TensorFileWriter::create(&target.dir().join(DELTA_FILE), specs)?;
        let mut sizes = Vec::new();
        let mut offset = 0;
        for (spec, bytes) in &self.tensors {
            writer.tensor(bytes)?;
            if spec.dtype == "U8" {
                let header = header_entry_bytes(&spec.name, bytes.len(), offset);
                sizes.push((spec.name.clone(), (bytes.len() + header) as u64));
            }
            offset += bytes.len();
        }
        let (bytes, sha256) = writer.finish()?;
        let info = FileInfo {
            name: DELTA_FILE.to_string(),
            bytes,
            sha256,
        };
        Ok((info, sizes))
    }
}

impl Manifest {
    /// Writes the manifest into `target`.
    pub fn write(&self, target: &Target) -> Result<FileInfo, ArtifactError> {
        let text = self.to_text().map_err(io::Error::from)?;
        target.write(MANIFEST_FILE, &text)
    }
}
