//! Memory written by several threads at once.

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

    /// Whole rows `first .. first + rows`.
    ///
    /// # Safety
    /// No two live parts may overlap.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn rows(&self, first: usize, rows: usize) -> &mut [f32] {
        let (offset, count) = (first * self.width, rows * self.width);
        assert!(
            offset + count <= self.len,
            "rows {first} .. {} lie in the matrix",
            first + rows
        );
        // SAFETY: inside the matrix by the assertion; the caller keeps parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), count) }
    }
}

/// Bytes that several threads write at once, each its own part.
pub(crate) struct DisjointBytes<'a> {
    start: *mut u8,
    len: usize,
    bytes: std::marker::PhantomData<&'a mut [u8]>,
}

// SAFETY: the only access is `part`, whose callers promise not to overlap.
unsafe impl Sync for DisjointBytes<'_> {}
// SAFETY: it stands for a `&mut [u8]`, which is `Send`.
unsafe impl Send for DisjointBytes<'_> {}

impl<'a> DisjointBytes<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self {
            start: bytes.as_mut_ptr(),
            len: bytes.len(),
            bytes: std::marker::PhantomData,
        }
    }

    /// Bytes `from .. from + count`.
    ///
    /// # Safety
    /// No two live parts may overlap.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, from: usize, count: usize) -> &mut [u8] {
        assert!(
            from.checked_add(count).is_some_and(|end| end <= self.len),
            "bytes {from} + {count} lie inside the {}",
            self.len
        );
        // SAFETY: inside by the assertion; the caller keeps parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), count) }
    }
}
