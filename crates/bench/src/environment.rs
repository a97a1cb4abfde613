//! Reads what the client's machine says about itself.

use std::collections::BTreeMap;

use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use crate::bundle::{Cpu, Environment};

/// Packages whose versions bear on what is measured.
const PACKAGES: [&str; 6] = ["hyper", "parquet", "rand_chacha", "rand_distr", "reqwest", "tokio"];

/// The machine as it is now; call it before any load.
pub fn environment(run: &str) -> Environment {
    let kind = RefreshKind::nothing()
        .with_cpu(CpuRefreshKind::nothing())
        .with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(kind).ok();
    let model = system
        .as_ref()
        .and_then(|s| s.cpus().first())
        .map(|c| c.brand().trim().to_owned());
    Environment {
        run: run.to_owned(),
        cpu: Cpu {
            model: model.filter(|m| !m.is_empty()),
            architecture: std::env::consts::ARCH.to_owned(),
            logical_cores: std::thread::available_parallelism().ok().map(|n| n.get() as u64),
            physical_cores: System::physical_core_count().ok().map(|n| n as u64),
        },
        memory_bytes: system.as_ref().map(System::total_memory).filter(|n| *n > 0),
        os: System::long_os_version().ok(),
        kernel: System::kernel_version().ok(),
        governor: first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        load_before: System::load_average().ok().map(|l| [l.one, l.five, l.fifteen]),
        git_revision: git_revision(),
        packages: packages(),
    }
}

fn first_line(path: &str) -> Option<String> {
    let text = fs_err::read_to_string(path).ok()?;
    text.lines()
        .next()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
}

/// The revision of the tree that this crate was built in, if that tree and git are still there.
fn git_revision() -> Option<String> {
    let output = std::process::Command::new("git")
        .args([
            "-C",
            env!("CARGO_MANIFEST_DIR"),
            "describe",
            "--always",
            "--dirty",
            "--abbrev=40",
            "--exclude=*",
        ])
        .stderr(std::process::Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Versions from the lock file that the client was built with.
fn packages() -> BTreeMap<String, String> {
    let mut found = locked(include_str!("../../../Cargo.lock"));
    found.insert("deltamux".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    found
}

/// `name = "…"` and the `version = "…"` after it, for the packages of interest. Of a package that is locked in several
/// versions the last counts.
fn locked(lock: &str) -> BTreeMap<String, String> {
    let quoted = |line: &str, key: &str| {
        line.strip_prefix(key)?
            .strip_prefix(" = \"")?
            .strip_suffix('"')
            .map(str::to_owned)
    };
    let mut name = None;
    let mut found = BTreeMap::new();
    for line in lock.lines() {
        if let Some(n) = quoted(line, "name") {
            name = Some(n).filter(|n| PACKAGES.contains(&n.as_str()));
        } else if let (Some(n), Some(version)) = (&name, quoted(line, "version")) {
            found.insert(n.clone(), version);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_of_interest_is_in_the_lock_file() {
        let found = packages();
        for package in PACKAGES {
            assert!(found.contains_key(package), "{package} is not in Cargo.lock");
        }
    }

    #[test]
    fn what_the_system_tells_is_there() {
        let e = environment("id");
        assert_eq!(e.run, "id");
        assert!(e.cpu.logical_cores.is_some_and(|n| n > 0));
    }
}
