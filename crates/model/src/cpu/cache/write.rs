//! Writes a cache file: into a temporary one in the same directory, then one rename.

use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use deltamux_kernels::{PackedMatrix, Threads, packed};

use super::digest;
use super::header::{Entry, Header, Matrix};

/// Length of a digest in hex.
const DIGEST: usize = 32;

/// Writes the matrices of `plan`, which are already in memory, to `path`, and replaces what is there.
pub fn write<'a>(
    path: &Path,
    key: String,
    checkpoint: String,
    plan: Vec<Matrix>,
    matrix: impl Fn(&str) -> Option<&'a PackedMatrix>,
    threads: &Threads,
) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other("not the path of a file"));
    };
    let prefix = format!(".{}.partial-", name.to_string_lossy());
    fs_err::create_dir_all(dir)?;
    remove_leftovers(dir, &prefix);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(std::fs::Permissions::from_mode(0o666)); // the umask applies
    }
    let mut file = builder.tempfile_in(dir)?;
    // Held until the file has its name or is gone. Where files cannot be locked, leftovers stay.
    let _ = file.as_file().try_lock();

    let mut offset = 0;
    let mut bytes = Vec::with_capacity(plan.len());
    let mut entries = Vec::with_capacity(plan.len());
    for planned in plan {
        let packed = matrix(&planned.name).ok_or_else(|| io::Error::other(format!("no matrix {}", planned.name)))?;
        let length = packed.bytes() as u64;
        entries.push(Entry {
            matrix: planned,
            offset,
            length,
            digest: "0".repeat(DIGEST),
        });
        offset += length;
        bytes.push(&packed.packed()[..]);
    }
    let mut header = Header {
        key,
        layout: packed::LAYOUT,
        checkpoint,
        matrices: entries,
    };
    // The header comes last, when the digests are known; it takes as many bytes with any of them.
    let start = header.encode()?.len() as u64;
    file.seek(SeekFrom::Start(start))?;
    for (entry, bytes) in header.matrices.iter_mut().zip(bytes) {
        entry.digest = threads.install(|| digest::of(bytes));
        file.write_all(bytes)?;
    }
    file.rewind()?;
    file.write_all(&header.encode()?)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    if cfg!(unix) {
        // The file has its name; some network file systems refuse to sync a folder.
        if let Err(error) = fs_err::File::open(dir).and_then(|dir| dir.sync_all()) {
            tracing::debug!("{error}");
        }
    }
    Ok(())
}

/// Removes what writers that were killed have left: temporary files that nobody holds locked. Failing to is no error.
fn remove_leftovers(dir: &Path, prefix: &str) {
    let Ok(entries) = fs_err::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(prefix);
        if ours
            && entry.file_type().is_ok_and(|kind| kind.is_file())
            && let Ok(file) = fs_err::OpenOptions::new().write(true).open(entry.path())
            && file.file().try_lock().is_ok()
            && let Err(error) = fs_err::remove_file(entry.path())
        {
            tracing::debug!("{error}");
        }
    }
}
