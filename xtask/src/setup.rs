//! Installs the programs and packages that tests and benchmarks need beside Rust.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{have, root, status, target};

/// For the tests: Python with the libraries that recompute cursors, validate documents, draw, upload and speak XMPP; a
/// validator of Atom; the XMPP servers of the component's tests; the web servers of exported trees and of
/// docs/deployment.md; a browser; a clock that runs fast; and the tools for network namespaces.
pub(crate) fn tests() -> Result<PathBuf, String> {
    if !have("xmllint") {
        apt(&["libxml2-utils"])?;
    }
    if !have("python3") {
        apt(&["python3", "python3-venv"])?;
    }
    prosody()?;
    ejabberd()?;
    postgresql()?;
    for (program, package) in
        [("nginx", "nginx-light"), ("caddy", "caddy"), ("curl", "curl"), ("chromium", "chromium")]
    {
        if !have(program) {
            apt(&[package])?;
        }
    }
    // Lets hours pass in seconds, for the package for Python.
    if std::fs::read_dir("/usr/share/doc/libfaketime").is_err() {
        apt(&["libfaketime"])?;
    }
    network()?;
    strace()?;
    browser()?;
    js_tools()?;
    feed_readers()?;
    venv()?;
    Ok(target().join("venv"))
}

/// For the checks of packages: systemd's analysis of units, and Prometheus' of rules.
pub(crate) fn packaging() -> Result<(), String> {
    for (program, package) in [("systemd-analyze", "systemd"), ("promtool", "prometheus")] {
        if !have(program) {
            apt(&[package])?;
        }
    }
    Ok(())
}

/// For the checks of manual pages and completions.
pub(crate) fn readers() -> Result<(), String> {
    for (program, package) in [("man", "man-db"), ("groff", "groff-base"), ("zsh", "zsh"), ("fish", "fish")] {
        if !have(program) {
            apt(&[package])?;
        }
    }
    Ok(())
}

/// For the checks of the Debian package.
pub(crate) fn debian() -> Result<(), String> {
    for program in ["lintian", "mmdebstrap"] {
        if !have(program) {
            apt(&[program])?;
        }
    }
    Ok(())
}

/// For the image of a container.
pub(crate) fn containers() -> Result<(), String> {
    if have("buildah") { Ok(()) } else { apt(&["buildah"]) }
}

/// For README.md's commands: the programs that they name beside Rust.
pub(crate) fn readme() -> Result<(), String> {
    for program in ["git", "curl"] {
        if !have(program) {
            apt(&[program])?;
        }
    }
    Ok(())
}

/// Packages of programs that pages below `docs/` name; others have their program's name.
const PACKAGES: [(&str, &str); 4] =
    [("nginx", "nginx-light"), ("psql", "postgresql-client"), ("initdb", "postgresql"), ("node", "nodejs")];

/// Name by which a page asks for a server of PostgreSQL.
pub(crate) const POSTGRESQL: &str = "postgresql";

/// Name by which a page asks for the wheel of this checkout.
pub(crate) const WHEEL: &str = "towpath-wheel";

/// For a page below `docs/`: the programs that its commands need.
pub(crate) fn programs(names: &[String]) -> Result<(), String> {
    // A server is no program of the path.
    for name in names.iter().filter(|name| *name != POSTGRESQL && *name != WHEEL && !have(name)) {
        let package = PACKAGES.iter().find(|(program, _)| program == name);
        apt(&[package.map_or(name.as_str(), |(_, package)| package)])?;
    }
    Ok(())
}

/// Debian's Prosody. Its package may start a server for the machine; the tests' servers have folders and ports of
/// their own.
pub(crate) fn prosody() -> Result<(), String> {
    if have("prosody") { Ok(()) } else { apt(&["prosody"]) }
}

/// Debian's ejabberd. Its package may start a server for the machine; the tests' servers are nodes of their own.
fn ejabberd() -> Result<(), String> {
    if have("ejabberdctl") && have("erl") { Ok(()) } else { apt(&["ejabberd"]) }
}

/// Debian's PostgreSQL, whose programs are in a folder of their version. Its package may start a server for the machine; the
/// tests' servers have folders and sockets of their own.
pub(crate) fn postgresql() -> Result<(), String> {
    let has_server = std::fs::read_dir("/usr/lib/postgresql")
        .is_ok_and(|versions| versions.flatten().any(|version| version.path().join("bin/initdb").is_file()));
    if have("initdb") || has_server { Ok(()) } else { apt(&["postgresql", "postgresql-client"]) }
}

/// Recorder of system calls, for the tests of lost power.
pub(crate) fn strace() -> Result<(), String> {
    if have("strace") { Ok(()) } else { apt(&["strace"]) }
}

/// Returns true if this machine lets system calls be recorded; then tests fail without it.
pub(crate) fn can_trace() -> bool {
    let probe = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).output();
    probe.is_ok_and(|output| output.status.success())
}

/// Tools for network namespaces.
pub(crate) fn network() -> Result<(), String> {
    for (program, package) in [("ip", "iproute2"), ("unshare", "util-linux"), ("setpriv", "util-linux")] {
        if !have(program) {
            apt(&[package])?;
        }
    }
    Ok(())
}

/// Returns true if this user may create namespaces; then tests fail without them.
pub(crate) fn has_namespaces() -> bool {
    // `unshare` alone proves little: containers may still forbid mounts and bridges.
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

/// Driver of the browser, and the rules of accessibility, below the target folder; returns the folder.
pub(crate) fn browser() -> Result<PathBuf, String> {
    if !have("chromium") {
        apt(&["chromium"])?;
    }
    npm_packages("browser", "tests/browser")
}

/// Lighthouse and its browser, below the target folder; returns the folder.
pub(crate) fn lighthouse() -> Result<PathBuf, String> {
    if !have("chromium") {
        apt(&["chromium"])?;
    }
    npm_packages("lighthouse", "tests/browser/lighthouse")
}

/// Compiler, bundler and documentation generator of the JavaScript package, below the target folder; returns the folder.
pub(crate) fn js_tools() -> Result<PathBuf, String> {
    npm_packages("js-tools", "clients/js/tools")
}

/// Parsers of feeds, a subscriber and a client of tus in JavaScript, below the target folder.
fn feed_readers() -> Result<PathBuf, String> {
    npm_packages("feed-readers", "tests/feed-readers")
}

/// Packages that the lock file of a folder of the workspace names, below the target folder; returns the folder.
fn npm_packages(name: &str, source: &str) -> Result<PathBuf, String> {
    for program in ["node", "npm"] {
        if !have(program) {
            apt(&["nodejs", "npm"])?;
        }
    }
    let source = root().join(source);
    let (folder, wanted) = (target().join(name), source.join("package-lock.json"));
    let installed = std::fs::read(folder.join("installed.json"));
    if installed.is_ok_and(|installed| std::fs::read(&wanted).is_ok_and(|wanted| wanted == installed)) {
        return Ok(folder);
    }
    let error = |e: std::io::Error| format!("{}: {e}", folder.display());
    std::fs::create_dir_all(&folder).map_err(error)?;
    for name in ["package.json", "package-lock.json"] {
        std::fs::copy(source.join(name), folder.join(name)).map_err(error)?;
    }
    // The lock file names versions and digests; its packages run no scripts.
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]).current_dir(&folder);
    status(&mut npm)?;
    // Last: an interrupted installation leaves no such file and is repeated.
    std::fs::copy(&wanted, folder.join("installed.json")).map_err(error)?;
    Ok(folder)
}

/// Python environment below the target folder with `tests/requirements.txt`; returns its `python`.
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
    // Last: an interrupted installation leaves no such file and is repeated.
    std::fs::copy(&wanted, folder.join("requirements.txt"))
        .map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(python)
}

fn is_current(folder: &Path, wanted: &Path) -> bool {
    let installed = std::fs::read(folder.join("requirements.txt"));
    installed.is_ok_and(|installed| std::fs::read(wanted).is_ok_and(|wanted| wanted == installed))
}
