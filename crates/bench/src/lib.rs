//! Workloads, load generation, measurement, run bundles and their verification.

pub mod arrival;
pub mod bundle;
pub mod choice;
pub mod lengths;
pub mod spec;
