//! What a cache was made of.
//!
//! The key is a digest over the identity of each weights file (its name, length, inode, and the times of its last write
//! and last change in nanoseconds), its header, the configuration's arithmetic fields and the precision. It does not
//! cover the contents: reading them is most of what the cache is there to save. Identity is enough because a write
//! through any name of a file moves its change time, which no program can set back; moving, copying or unpacking a
//! model gives it a new identity too, and then the weights are packed once more. Times have the grain of the file
//! system, so a file is only cached once its last change lies [`GRAIN`] back: from then on another write has another
//! time.
//!
//! The device's number is left out: it may change with every mount.

use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::weights_file::FileIdentity;
use crate::{Checkpoint, Precision};

/// The coarsest times that file systems keep (FAT: two seconds).
const GRAIN: Duration = Duration::from_secs(2);

/// The key of the files that a checkpoint has open; `None` where the system does not tell files apart.
pub fn of(checkpoint: &Checkpoint, precision: Precision) -> Option<String> {
    let mut hash = Sha256::new();
    // Every part is preceded by its length, so that no two checkpoints give the same stream of bytes.
    let mut put = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for file in checkpoint.files() {
        let name = file.path().file_name().unwrap_or_default();
        put(name.as_encoded_bytes());
        let FileIdentity {
            length,
            inode,
            written,
            changed,
        } = file.identity()?;
        put(&length.to_le_bytes());
        put(&inode.to_le_bytes());
        for (seconds, nanoseconds) in [written, changed] {
            put(&seconds.to_le_bytes());
            put(&nanoseconds.to_le_bytes());
        }
        put(file.header_bytes());
    }
    for (field, value) in checkpoint.config().arithmetic_fields() {
        put(field.as_bytes());
        put(value.as_bytes());
    }
    put(super::label(precision).as_bytes());
    Some(hex::encode(hash.finalize()))
}

/// Waits until a write to any of the files would move its time; `false` if that time lies in the future.
pub fn settle(checkpoint: &Checkpoint) -> bool {
    let changes = checkpoint.files().iter().filter_map(|file| file.identity());
    let Some(last) = changes.map(|identity| identity.changed).max() else {
        return false;
    };
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    match wait(last, now) {
        Some(wait) => {
            std::thread::sleep(wait);
            true
        }
        None => false,
    }
}

/// How long to wait from `now` (since 1970) on after a change at `last` (seconds and nanoseconds since 1970); `None` if
/// it lies further ahead than a clock may be wrong.
fn wait(last: (i64, i64), now: Duration) -> Option<Duration> {
    let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(last.0), u32::try_from(last.1)) else {
        return Some(Duration::ZERO); // before 1970
    };
    let ready = Duration::from_secs(seconds)
        .checked_add(Duration::from_nanos(nanoseconds.into()))?
        .checked_add(GRAIN)?;
    let wait = ready.saturating_sub(now);
    (wait <= 2 * GRAIN).then_some(wait)
}

/// Whether the files at the checkpoint's paths are still those that it has open, unchanged.
pub fn unchanged(checkpoint: &Checkpoint) -> bool {
    checkpoint.files().iter().all(|file| {
        let now = fs_err::metadata(file.path()).ok().and_then(|m| FileIdentity::of(&m));
        now.is_some() && now == file.identity()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_waited_for_until_the_next_one_has_another_time() {
        let at = |ms| Duration::from_millis(ms);
        assert_eq!(wait((10, 500_000_000), at(10_500)), Some(GRAIN));
        assert_eq!(wait((10, 500_000_000), at(12_000)), Some(at(500)));
        assert_eq!(wait((10, 0), at(99_000)), Some(Duration::ZERO));
        assert_eq!(wait((-5, 0), at(0)), Some(Duration::ZERO));
        // A clock that lags a little is waited for, a time far ahead is not.
        assert_eq!(wait((11, 0), at(10_000)), Some(at(3000)));
        assert_eq!(wait((13, 0), at(10_000)), None);
        assert_eq!(wait((i64::MAX, 0), at(10_000)), None);
    }
}
