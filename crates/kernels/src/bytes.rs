//! Shared bytes that kernels read: owned and aligned, or a window of a memory-mapped file.

use std::sync::Arc;

/// Alignment of owned bytes: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;

/// Shared bytes: owned, or a window of a memory-mapped file. Cloning shares them.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    len: usize,
}

impl Bytes {
    /// The window `start .. start + len` of `owner`.
    ///
    /// # Panics
    /// If the window does not lie inside the owner's bytes.
    pub fn window(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, start: usize, len: usize) -> Self {
        let end = start.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= (*owner).as_ref().len()),
            "the window lies inside its owner"
        );
        Self { owner, start, len }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self::window(Arc::new(bytes), 0, len)
    }
}

impl From<AlignedBytes> for Bytes {
    fn from(bytes: AlignedBytes) -> Self {
        let len = bytes.len();
        Self::window(Arc::new(bytes), 0, len)
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.start..self.start + self.len]
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({})", self.len)
    }
}

/// Owned bytes that start on a cache line, zero at first.
pub struct AlignedBytes {
    /// As the allocator gave it. Asked for an alignment it would zero the memory itself, and so touch every page before
    /// huge ones can be asked for.
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// `len` zero bytes; in huge pages where the system has them, since reading a gigabyte in pages of 4 KiB is a tenth
    /// slower.
    pub fn zeroed(len: usize) -> Self {
        let mut memory = vec![0; len + ALIGNMENT - 1];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        advise_huge_pages(&mut memory[start..start + len]);
        Self { memory, start, len }
    }
}

impl Clone for AlignedBytes {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.len);
        copy.copy_from_slice(self);
        copy
    }
}

/// Bytes of a huge page.
#[cfg(target_os = "linux")]
const HUGE_PAGE: usize = 2 << 20;

/// Asks for huge pages for the part of fresh memory that they fit into.
#[cfg(target_os = "linux")]
fn advise_huge_pages(bytes: &mut [u8]) {
    let skip = bytes.as_ptr().align_offset(HUGE_PAGE);
    let whole = bytes.len().saturating_sub(skip) / HUGE_PAGE * HUGE_PAGE;
    if whole > 0 {
        // SAFETY: the range lies inside the slice, and the advice changes none of its contents. If it is refused, the
        // pages are small ones.
        unsafe { libc::madvise(bytes.as_mut_ptr().add(skip).cast(), whole, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_bytes: &mut [u8]) {}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::ops::Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

impl std::fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBytes({})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_bytes_are_aligned_and_zero() {
        for len in [0, 1, 63, 64, 1000, 5 << 20] {
            let mut bytes = AlignedBytes::zeroed(len);
            assert_eq!(bytes.as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(&*bytes, vec![0; len]);
            bytes.fill(7);
            assert_eq!(bytes.clone().as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(&*bytes.clone(), vec![7; len]);
            assert_eq!(&*Bytes::from(bytes), vec![7; len]);
        }
    }

    #[test]
    fn a_window_is_part_of_its_owner() {
        let owner: Arc<Vec<u8>> = Arc::new((0..10).collect());
        assert_eq!(&*Bytes::window(owner.clone(), 3, 4), [3, 4, 5, 6]);
        let outside = std::panic::catch_unwind(|| Bytes::window(owner, 7, 4));
        assert!(outside.is_err());
    }
}
