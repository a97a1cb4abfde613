//! Look-ups in plain Rust: the definition of the order.

use super::Sums;
use crate::signs::layout::{CODE, GROUP_BYTES};
use crate::signs::tables::{TABLES, Table};

/// `sums[panel][row] += Σ table[code]`, tables in order.
pub(super) fn add<const P: usize, const R: usize>(
    codes: &[u8],
    stride: usize,
    tables: &[[Table; R]],
    sums: &mut [[Sums; R]; P],
) {
    for (panel, sums) in sums.iter_mut().enumerate() {
        let groups = codes[panel * stride..].as_chunks::<GROUP_BYTES>().0;
        for (codes, tables) in groups.iter().zip(tables.as_chunks::<TABLES>().0) {
            for (lane, word) in codes.as_chunks::<4>().0.iter().enumerate() {
                let word = u32::from_le_bytes(*word);
                for (n, tables) in tables.iter().enumerate() {
                    let code = (word >> (CODE * n)) as usize & 0xf;
                    for (sums, table) in sums.iter_mut().zip(tables) {
                        sums[lane] += table.0[code];
                    }
                }
            }
        }
    }
}
