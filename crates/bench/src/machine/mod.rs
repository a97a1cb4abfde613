//! This machine's limits and how near the kernels and the forward pass come to them.
//!
//! A shared machine's memory bandwidth changes within minutes, so no figure is compared with a limit that was measured
//! at another time: every timed call stands between two readings of its limit, and shares are medians of such ratios.

mod forward;
mod kernels;
mod limits;
mod shapes;
mod subjects;
mod timing;

pub use forward::{ForwardError, ForwardOptions, ForwardReport, Measurement, artifacts_in, forward};
pub use kernels::{Bound, KernelOptions, KernelPoint, KernelReport, kernels};
pub use limits::{Limits, Machine};
pub use shapes::models;
