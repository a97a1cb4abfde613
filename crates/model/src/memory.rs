//! How much memory there is.

/// Bytes that this machine (or its control group) has left; `None` where the system does not tell.
pub fn available() -> Option<u64> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let free = system.available_memory();
    let free = system.cgroup_limits().map_or(free, |group| free.min(group.free_memory));
    (free > 0).then_some(free)
}
