//! What the tests and benchmarks need beside Rust, installed where it is missing.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{have, root, status, target};

/// For the tests: Python with the libraries that recompute cursors, validate documents and speak XMPP independently;
/// what validates Atom; the XMPP server beside which the component is tested; the web server of exported trees; and what
/// makes networks in which machines are cut off.
pub(crate) fn tests() -> Result<(), String> {
    if !have("xmllint") {
        apt(&["libxml2-utils"])?;
    }
    if !have("python3") {
        apt(&["python3", "python3-venv"])?;
    }
    prosody()?;
    if !have("nginx") {
        apt(&["nginx-light"])?;
    }
    network()?;
    venv().map(drop)
}

/// Debian's Prosody. The package starts one for the machine where it can; ours have folders and ports of their own.
pub(crate) fn prosody() -> Result<(), String> {
    if have("prosody") { Ok(()) } else { apt(&["prosody"]) }
}

/// What makes networks of namespaces.
pub(crate) fn network() -> Result<(), String> {
    for (program, package) in [("ip", "iproute2"), ("unshare", "util-linux"), ("setpriv", "util-linux")] {
        if !have(program) {
            apt(&[package])?;
        }
    }
    Ok(())
}

/// Whether this user may make namespaces here: tests may not do without them then.
pub(crate) fn has_namespaces() -> bool {
    let bridge = ["sh", "-c", "mount -t tmpfs none /run && ip link add hub type bridge"];
    let may = |user: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--pid", "--fork", "--mount-proc"]).args(user).args(bridge);
        command.output().is_ok_and(|output| output.status.success())
    };
    may(&[]) || may(&["--map-root-user"])
}

/// Installs packages of the system.
pub(crate) fn apt(packages: &[&str]) -> Result<(), String> {
    if !have("apt-get") {
        return Err(format!("please install {} with this system's package manager", packages.join(", ")));
    }
    let sudo = if have("sudo") { "sudo " } else { "" };
    let packages = packages.join(" ");
    let script = format!(
        "{sudo}apt-get update -qq && {sudo}apt-get install -y -qq --no-install-recommends {packages}"
    );
    status(Command::new("sh").args(["-c", &script]).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// A Python environment below the target folder with `tests/requirements.txt` installed; returns its `python`.
pub(crate) fn venv() -> Result<PathBuf, String> {
    let folder = target().join("venv");
    let python = folder.join("bin/python");
    let wanted = root().join("tests/requirements.txt");
    if is_current(&folder, &wanted) {
        return Ok(python);
    }
    let make = |folder: &Path| status(Command::new("python3").args(["-m", "venv"]).arg(folder));
    if make(&folder).is_err() {
        // Debian's python3 comes without venv.
        apt(&["python3-venv"])?;
        make(&folder)?;
    }
    status(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&wanted))?;
    std::fs::copy(&wanted, folder.join("requirements.txt"))
        .map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(python)
}

fn is_current(folder: &Path, wanted: &Path) -> bool {
    let installed = std::fs::read(folder.join("requirements.txt"));
    installed.is_ok_and(|installed| std::fs::read(wanted).is_ok_and(|wanted| wanted == installed))
}
