//! `environment.json`: the machine that the client ran on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The client's machine. What the system does not tell is absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// Id of the run.
    pub run: String,
    /// Processor.
    pub cpu: Cpu,
    /// Memory, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// Kernel version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Frequency governor of the first core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// Load average over 1, 5 and 15 minutes before the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_before: Option<[f64; 3]>,
    /// Revision of the source tree that the client was built in, with `-dirty` when it had changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_revision: Option<String>,
    /// Versions of the packages that measure.
    pub packages: BTreeMap<String, String>,
}

/// A processor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// Model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Instruction set, e.g. `x86_64`.
    pub architecture: String,
    /// Logical cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logical_cores: Option<u64>,
    /// Physical cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_cores: Option<u64>,
}
