//! What the tests need from outside: system packages and Python packages.

use anyhow::Context as _;
use fs_err as fs;

use crate::shell::{Cmd, on_path, python};
use crate::workspace::Workspace;

/// Installs whatever is missing.
pub fn all(workspace: &Workspace) -> anyhow::Result<()> {
    system_packages()?;
    python_environment(workspace)
}

/// The browser that shows reports in the tests: the first of the usual names that is installed.
pub fn browser() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|program| on_path(program))
}

fn system_packages() -> anyhow::Result<()> {
    let mut missing = Vec::new();
    if browser().is_none() {
        missing.push("chromium");
    }
    if !on_path("valgrind") {
        missing.push("valgrind");
    }
    // `import venv` alone succeeds on Debian without python3-venv; ensurepip is what that package brings.
    if Cmd::new(python())
        .args(["-c", "import venv, ensurepip"])
        .quiet()
        .is_err()
    {
        missing.extend(["python3", "python3-venv", "python3-pip"]);
    }
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    let by_hand = || format!("the tests need these Debian packages or their equal: {packages}; install them");
    anyhow::ensure!(on_path("apt-get"), by_hand());
    let root = Cmd::new("id").arg("-u").stdout()?.trim() == "0";
    let apt = |args: &[&str]| {
        let command = if root {
            Cmd::new("apt-get")
        } else {
            Cmd::new("sudo").args(["-n", "apt-get"])
        };
        command.args(args).env("DEBIAN_FRONTEND", "noninteractive").run()
    };
    anyhow::ensure!(root || on_path("sudo"), by_hand());
    println!("installing {packages}");
    // An outdated package list may still serve, so a failed update is no reason to stop; a failed install is.
    if let Err(error) = apt(&["update", "-q"]) {
        println!("{error:#}; going on with the package list at hand");
    }
    let mut install = vec!["install", "-y", "-q", "--no-install-recommends"];
    install.extend(missing);
    apt(&install).with_context(by_hand)
}

/// Makes the virtual environment again whenever the pinned requirements change.
fn python_environment(workspace: &Workspace) -> anyhow::Result<()> {
    let requirements = workspace.root().join("tests/clients/requirements.txt");
    let venv = workspace.venv();
    let stamp = venv.join("requirements.txt");
    let wanted = fs::read_to_string(&requirements)?;
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    println!("installing the Python packages of {}", requirements.display());
    Cmd::new(python()).args(["-m", "venv", "--clear"]).arg(&venv).quiet()?;
    Cmd::new(venv.join("bin/python"))
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--requirement",
        ])
        .arg(&requirements)
        .quiet()
        .context("pip cannot install the Python packages of the tests")?;
    fs::write(stamp, wanted)?;
    Ok(())
}
