//! KV pages: which are free, which are held and by how many.

use deltamux_model::backend::PAGE_TOKENS;

/// Pages that `tokens` positions occupy.
pub(crate) const fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

/// The KV pages of a backend. A page is free or held by one or more owners; it becomes free when the last lets go.
#[derive(Debug)]
pub(crate) struct PagePool {
    /// Free pages; the last one is handed out next.
    free: Vec<u32>,
    /// Owners of each page.
    owners: Vec<u32>,
}

impl PagePool {
    /// A pool of `total` free pages, numbered from 0.
    pub(crate) fn new(total: usize) -> Self {
        let total = u32::try_from(total).unwrap_or(u32::MAX);
        Self {
            free: (0..total).rev().collect(),
            owners: vec![0; total as usize],
        }
    }

    /// A free page, now held by one owner.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.owners[page as usize] = 1;
        Some(page)
    }

    /// One owner fewer; the last one frees the page.
    ///
    /// # Panics
    /// If nobody holds the page: a broken invariant.
    pub(crate) fn release(&mut self, page: u32) {
        let owners = &mut self.owners[page as usize];
        assert!(*owners > 0, "KV page {page} is released, but nobody holds it");
        *owners -= 1;
        if *owners == 0 {
            self.free.push(page);
        }
    }

    /// Pages that nobody holds.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages that somebody holds.
    pub(crate) fn used(&self) -> usize {
        self.owners.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_holds_sixteen_tokens() {
        assert_eq!([0, 1, 16, 17, 32, 33].map(pages_for), [0, 1, 1, 2, 2, 3]);
    }

    #[test]
    fn pages_are_handed_out_once_and_come_back() {
        let mut pool = PagePool::new(3);
        let pages: Vec<u32> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(pages, [0, 1, 2]);
        assert_eq!((pool.free(), pool.used()), (0, 3));
        pool.release(1);
        assert_eq!((pool.free(), pool.used()), (1, 2));
        assert_eq!(pool.allocate(), Some(1));
        assert_eq!(pool.allocate(), None);
    }
}
