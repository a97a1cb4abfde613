//! Buffers that are used again.
//!
//! A step lays its activations out anew for every product. Memory fresh from the operating system would cost a page
//! fault each 4 KiB, a tenth of a long prefill; a thread therefore keeps the buffers that it gave back.

use std::cell::RefCell;

/// Buffers that a thread keeps.
const KEPT: usize = 4;

thread_local! {
    static FREE: RefCell<Vec<Vec<u32>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of plain 4-byte elements with unspecified contents; its memory goes back to the thread that drops it.
pub(crate) struct Scratch {
    words: Vec<u32>,
    len: usize,
}

impl Scratch {
    /// A buffer of `len` elements.
    pub(crate) fn new(len: usize) -> Self {
        let free = FREE.with_borrow_mut(|free| {
            // The smallest that is large enough, else the largest, to grow.
            let fit = (0..free.len()).min_by_key(|i| (free[*i].len() < len, free[*i].len().abs_diff(len)))?;
            Some(free.swap_remove(fit))
        });
        let mut words = free.unwrap_or_default();
        if words.len() < len {
            // Fresh zeroed memory costs less than filling up the old.
            words = vec![0; len];
        }
        Self { words, len }
    }

    /// The elements.
    pub(crate) fn get<E: Element>(&self) -> &[E] {
        bytemuck::cast_slice(&self.words[..self.len])
    }

    /// The elements.
    pub(crate) fn get_mut<E: Element>(&mut self) -> &mut [E] {
        bytemuck::cast_slice_mut(&mut self.words[..self.len])
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let words = std::mem::take(&mut self.words);
        FREE.with_borrow_mut(|free| {
            if free.len() < KEPT {
                free.push(words);
            }
        });
    }
}

/// What a [`Scratch`] may hold: 4 bytes of plain data.
pub(crate) trait Element: bytemuck::Pod + Send + Sync {}
impl Element for f32 {}
impl Element for u32 {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again() {
        let mut first = Scratch::new(100);
        first.get_mut::<f32>().fill(1.0);
        let place = first.get::<f32>().as_ptr();
        drop(first);
        let second = Scratch::new(50);
        assert_eq!(second.get::<f32>().len(), 50);
        assert_eq!(second.get::<f32>().as_ptr(), place);
        let third = Scratch::new(100);
        assert_ne!(third.get::<f32>().as_ptr(), place, "in use");
    }
}
