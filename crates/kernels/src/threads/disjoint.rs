//! One matrix written by several threads.

/// A row-major matrix that several threads write at once, each its own columns.
pub(crate) struct DisjointRows<'a> {
    start: *mut f32,
    len: usize,
    width: usize,
    matrix: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: the only access is `part`, whose callers promise not to overlap.
unsafe impl Sync for DisjointRows<'_> {}
// SAFETY: it stands for a `&mut [f32]`, which is `Send`.
unsafe impl Send for DisjointRows<'_> {}

impl<'a> DisjointRows<'a> {
    pub(crate) fn new(matrix: &'a mut [f32], width: usize) -> Self {
        Self {
            start: matrix.as_mut_ptr(),
            len: matrix.len(),
            width,
            matrix: std::marker::PhantomData,
        }
    }

    /// Elements `from .. from + count` of a row.
    ///
    /// # Safety
    /// No two live parts may overlap.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, row: usize, from: usize, count: usize) -> &mut [f32] {
        let offset = row * self.width + from;
        assert!(from + count <= self.width && offset + count <= self.len);
        // SAFETY: inside the matrix by the assertion; the caller keeps parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), count) }
    }
}
