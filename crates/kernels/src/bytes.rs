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

/// One cache line.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

/// Owned bytes that start on a cache line, zero at first.
#[derive(Clone)]
pub struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedBytes {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let lines = bytemuck::allocation::zeroed_vec(len.div_ceil(ALIGNMENT));
        Self { lines, len }
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::ops::Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl std::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
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
        for len in [0, 1, 63, 64, 1000] {
            let mut bytes = AlignedBytes::zeroed(len);
            assert_eq!(bytes.as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(&*bytes, vec![0; len]);
            bytes.fill(7);
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
