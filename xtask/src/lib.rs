//! The gates of the project (`cargo xtask ci`) and what they need: packages, a Python environment, test models.

pub mod gates;
pub mod gguf;
pub mod models;
pub mod setup;
pub mod shell;
pub mod smollm2;
pub mod workspace;
