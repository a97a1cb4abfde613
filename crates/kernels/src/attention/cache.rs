//! Keys and values of one layer, in pages.

use std::sync::Mutex;

use super::{BLOCK_STRIPS, Columns, MAX_HEAD_DIM, QueryRow, Rotation, STRIP};
use crate::lanes::LANES;
use crate::vector::for_each_vector;
use crate::{AlignedBytes, Threads, ops};

/// Keys and values of one layer in f16: pages of `page_tokens` positions, each position with `heads` key/value heads of
/// `head_dim` elements.
///
/// All pages of a head lie together. Within a page, sixteen positions make a strip: of keys `[head_dim, 16]`, so that
/// sixteen scores are computed side by side, of values `[16, head_dim]`, with rows padded to a multiple of sixteen.
#[derive(Debug, Clone)]
pub struct PagedCache {
    keys: AlignedBytes,
    values: AlignedBytes,
    pub(super) pages: usize,
    pub(super) page_tokens: usize,
    pub(super) heads: usize,
    pub(super) head_dim: usize,
}

impl PagedCache {
    /// `pages` empty pages.
    ///
    /// # Panics
    /// If `page_tokens` is no multiple of sixteen, `heads` or `head_dim` is 0, or `head_dim` exceeds [`MAX_HEAD_DIM`].
    pub fn new(pages: usize, page_tokens: usize, heads: usize, head_dim: usize) -> Self {
        assert!(
            page_tokens > 0 && page_tokens.is_multiple_of(STRIP),
            "page_tokens, {page_tokens}, is a multiple of {STRIP}"
        );
        assert!(heads > 0, "heads is positive");
        assert!(
            (1..=MAX_HEAD_DIM).contains(&head_dim),
            "head_dim, {head_dim}, is from 1 to {MAX_HEAD_DIM}"
        );
        let bytes = |width: usize| pages * page_tokens * heads * width * size_of::<u16>();
        Self {
            keys: AlignedBytes::zeroed(bytes(head_dim)),
            values: AlignedBytes::zeroed(bytes(padded(head_dim))),
            pages,
            page_tokens,
            heads,
            head_dim,
        }
    }

    /// Pages in all.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Elements of a page of one head: of keys, of values.
    fn page_lengths(&self) -> [usize; 2] {
        [self.head_dim, padded(self.head_dim)].map(|width| self.page_tokens * width)
    }

    /// Copies page `from` to `to`.
    ///
    /// # Panics
    /// If either lies outside the cache.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        let (from, to) = (from as usize, to as usize);
        assert!(
            from < self.pages && to < self.pages,
            "pages {from} and {to} lie in the cache"
        );
        let lengths = self.page_lengths();
        for (bytes, page) in [&mut self.keys, &mut self.values].into_iter().zip(lengths) {
            let halves: &mut [u16] = bytemuck::cast_slice_mut(bytes);
            for head in halves.chunks_exact_mut(self.pages * page) {
                head.copy_within(from * page..(from + 1) * page, to * page);
            }
        }
    }

    /// Stores the key and value of every row at its own position, `count - 1`, rounded to f16 and bounded to its range.
    /// `keys` and `values` are `[rows, heads, head_dim]`; keys are rotated first if a `rotation` is given.
    ///
    /// # Panics
    /// If lengths do not fit together, or the pages of a row do not cover its position or lie outside the cache.
    pub fn store(
        &mut self,
        rows: &[QueryRow<'_>],
        keys: Columns<'_>,
        values: Columns<'_>,
        rotation: Option<Rotation<'_>>,
        threads: &Threads,
    ) {
        let (heads, dim) = (self.heads, self.head_dim);
        keys.check("keys", rows.len(), heads * dim);
        values.check("values", rows.len(), heads * dim);
        if let Some(rotation) = rotation {
            rotation.check(rows.len(), dim);
        }
        // Strip and position in it.
        let places: Vec<(usize, usize)> = rows.iter().map(|row| self.place(row)).collect();
        let [key_page, value_page] = self.page_lengths();
        if self.pages == 0 {
            return;
        }
        // One task a head and kind, so that tasks write different parts of the cache, whatever the rows are.
        let key_heads = bytemuck::cast_slice_mut(&mut self.keys).chunks_exact_mut(self.pages * key_page);
        let value_heads = bytemuck::cast_slice_mut(&mut self.values).chunks_exact_mut(self.pages * value_page);
        let parts: Vec<Mutex<&mut [u16]>> = key_heads.chain(value_heads).map(Mutex::new).collect();
        threads.for_each(parts.len(), 8 * rows.len() * heads * dim, |task| {
            // Nobody else takes this lock.
            let Ok(mut part) = parts[task].lock() else { return };
            let columns = if task < heads { keys } else { values };
            let mut wide = [0.0; MAX_HEAD_DIM];
            let mut half = [0; MAX_HEAD_DIM];
            for (row, (strip, slot)) in places.iter().enumerate() {
                let source = &columns.row(row)[task % heads * dim..][..dim];
                if task >= heads {
                    let stride = padded(dim);
                    narrow_row(source, &mut half[..stride]);
                    part[strip * STRIP * stride + slot * stride..][..stride].copy_from_slice(&half[..stride]);
                    continue;
                }
                wide[..dim].copy_from_slice(source);
                if let Some(rotation) = rotation {
                    let (cos, sin) = rotation.row(row, dim);
                    ops::rotate(&mut wide[..dim], cos, sin);
                }
                narrow_row(&wide[..dim], &mut half[..padded(dim)]);
                let strip = &mut part[strip * STRIP * dim..][..STRIP * dim];
                for (column, half) in strip.as_chunks_mut::<STRIP>().0.iter_mut().zip(half) {
                    column[*slot] = half;
                }
            }
        });
    }

    /// Strip, among all of a head, and position in it where a row's own key and value lie.
    fn place(&self, row: &QueryRow<'_>) -> (usize, usize) {
        self.check(row);
        let position = row.count - 1;
        let page = row.pages[position / self.page_tokens] as usize;
        let token = page * self.page_tokens + position % self.page_tokens;
        (token / STRIP, token % STRIP)
    }

    /// Refuses a row whose own position does not lie in the cache.
    fn check(&self, row: &QueryRow<'_>) {
        let QueryRow { pages, count } = *row;
        assert!(count > 0, "count of a row, {count}, is its position plus one");
        assert!(
            count.div_ceil(self.page_tokens) <= pages.len(),
            "{} pages of a row do not cover its {count} positions",
            pages.len()
        );
        let page = pages[(count - 1) / self.page_tokens];
        assert!(
            (page as usize) < self.pages,
            "page {page} of a row is beyond the {} of the cache",
            self.pages
        );
    }

    /// Refuses a row that sees positions outside the cache.
    pub(super) fn check_all(&self, row: &QueryRow<'_>) {
        self.check(row);
        for page in &row.pages[..row.count.div_ceil(self.page_tokens)] {
            assert!(
                (*page as usize) < self.pages,
                "page {page} of a row is beyond the {} of the cache",
                self.pages
            );
        }
    }

    /// Keys and values of one head, all pages.
    pub(super) fn head(&self, head: usize) -> HeadCache<'_> {
        let part = |bytes, page: usize| {
            &bytemuck::cast_slice::<u8, u16>(bytes)[head * self.pages * page..][..self.pages * page]
        };
        let [key_page, value_page] = self.page_lengths();
        HeadCache {
            keys: part(&self.keys, key_page),
            values: part(&self.values, value_page),
            page_strips: self.page_tokens / STRIP,
            key_strip: STRIP * self.head_dim,
            value_strip: STRIP * padded(self.head_dim),
        }
    }
}

/// Keys and values of one head.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadCache<'a> {
    keys: &'a [u16],
    values: &'a [u16],
    page_strips: usize,
    key_strip: usize,
    value_strip: usize,
}

impl<'a> HeadCache<'a> {
    /// Length of a value row.
    pub(super) fn width(&self) -> usize {
        self.value_strip / STRIP
    }

    /// The block at position `block` of a sequence of `count` positions.
    pub(super) fn strips(&self, pages: &[u32], block: usize, count: usize) -> Strips<'a> {
        let mut strips = Strips {
            keys: [&[]; BLOCK_STRIPS],
            values: [&[]; BLOCK_STRIPS],
        };
        let wanted = count.saturating_sub(block).div_ceil(STRIP).min(BLOCK_STRIPS);
        for i in 0..wanted {
            let strip = block / STRIP + i;
            let strip = pages[strip / self.page_strips] as usize * self.page_strips + strip % self.page_strips;
            strips.keys[i] = &self.keys[strip * self.key_strip..][..self.key_strip];
            strips.values[i] = &self.values[strip * self.value_strip..][..self.value_strip];
        }
        strips
    }
}

/// Keys `[head_dim, 16]` and values `[16, padded head_dim]` of a block's strips; empty where the sequence has ended.
#[derive(Debug)]
pub(super) struct Strips<'a> {
    pub(super) keys: [&'a [u16]; BLOCK_STRIPS],
    pub(super) values: [&'a [u16]; BLOCK_STRIPS],
}

/// A head's length in the value pages and in accumulators: whole panels of sixteen lanes.
pub(super) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES)
}

for_each_vector! {
    /// `half = wide`, rounded and bounded; the rest of the last sixteen lanes becomes 0.
    fn narrow_row<vector V>(wide: &[f32], half: &mut [u16]) {
        for (wide, half) in wide.chunks(LANES).zip(half.as_chunks_mut::<LANES>().0) {
            let mut lanes = [0.0; LANES];
            for (lane, wide) in lanes.iter_mut().zip(wide) {
                *lane = wide.clamp(-65504.0, 65504.0);
            }
            *half = V::load(&lanes).to_f16();
        }
    }
}
