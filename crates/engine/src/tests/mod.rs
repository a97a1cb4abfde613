//! The engine as a whole, over a toy model whose arithmetic shows every mistake with pages, chunks and variants.

mod behaviour;
mod invariance;
mod policy;
mod toy;
