//! Files that appear as a whole or not at all.

use std::io;
use std::path::Path;

use tempfile::NamedTempFile;

/// A temporary file in `dir`, with the permissions that any new file has (the umask applies).
pub(crate) fn create_in(dir: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(dir).map_err(|e| named(dir, e))
}

/// Flushes it to the disk and gives it its name.
pub(crate) fn persist(temp: NamedTempFile, path: &Path) -> io::Result<()> {
    temp.as_file().sync_all().map_err(|e| named(path, e))?;
    temp.persist(path).map_err(|e| named(path, e.error))?;
    Ok(())
}

/// The error with the path that it is about.
pub(crate) fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
