//! This machine's limits and how near the kernels and the forward pass come to them.
//!
//! A shared machine's memory bandwidth changes within minutes, and with where memory lies physically by up to two. No
//! figure is therefore compared with a limit that was measured at another time or over other memory: every timed call
//! stands between two readings of its own weights, and shares are medians of such ratios.

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
