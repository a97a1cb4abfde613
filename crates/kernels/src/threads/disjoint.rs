//! Memory written by several threads at once.

/// A row-major matrix that several threads write at once, each its own part.
pub(crate) struct DisjointRows<'a, T = f32> {
    start: *mut T,
    len: usize,
    width: usize,
    matrix: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: the only accesses are `part` and `rows`, whose callers promise not to overlap.
unsafe impl<T: Send> Sync for DisjointRows<'_, T> {}
// SAFETY: it stands for a `&mut [T]`, which is `Send`.
unsafe impl<T: Send> Send for DisjointRows<'_, T> {}

impl<'a, T> DisjointRows<'a, T> {
    pub(crate) fn new(matrix: &'a mut [T], width: usize) -> Self {
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
    pub(crate) unsafe fn part(&self, row: usize, from: usize, count: usize) -> &mut [T] {
        let offset = row * self.width + from;
        assert!(
            from + count <= self.width && offset + count <= self.len,
            "columns {from} + {count} of row {row} lie in the matrix"
        );
        // SAFETY: inside the matrix by the assertion; the caller keeps parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), count) }
    }

    /// Whole rows `first .. first + rows`.
    ///
    /// # Safety
    /// No two live parts may overlap.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn rows(&self, first: usize, rows: usize) -> &mut [T] {
        let (offset, count) = (first * self.width, rows * self.width);
        assert!(offset + count <= self.len, "rows {first} + {rows} lie in the matrix");
        // SAFETY: inside the matrix by the assertion; the caller keeps parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), count) }
    }
}
