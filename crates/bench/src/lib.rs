//! Workloads, load generation, measurement, run bundles and their verification.
