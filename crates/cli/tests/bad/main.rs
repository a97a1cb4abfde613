//! Bad input through the real binary: one clear line, exit code 2, nothing half-written.

#[macro_use]
mod support;

mod artifacts;
#[cfg(target_os = "linux")]
mod full_disk;
mod inputs;
mod models;
