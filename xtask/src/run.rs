//! Running other programs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// The workspace's folder.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or_else(|| here.clone(), PathBuf::from)
}

/// Runs cargo in the workspace.
pub(crate) fn cargo(args: &[&str]) -> Result<(), String> {
    cargo_with(args, &[])
}

/// Runs cargo in the workspace with more environment.
pub(crate) fn cargo_with(args: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    status(command().args(args).current_dir(root()).envs(environment.iter().copied()))
}

/// Cargo as if called by hand.
pub(crate) fn command() -> Command {
    let mut command = Command::new(cargo_program());
    forget_package(&mut command);
    command
}

/// The cargo that started this program, or the path's.
pub(crate) fn cargo_program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Removes the variables that cargo set for this program: inherited, they would make build scripts run again and much
/// be built twice.
pub(crate) fn forget_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
}

/// Runs a command to its end; an error unless it succeeds.
pub(crate) fn status(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    println!("+ {shown}");
    let status = command.status().map_err(|e| format!("{shown}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown}: {status}")) }
}

/// Returns true if a program can be started.
pub(crate) fn have(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program} >/dev/null 2>&1")]).status();
    found.is_ok_and(|status| status.success())
}

/// Returns true if this user is root.
pub(crate) fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// A program that runs as root, with these variables.
pub(crate) fn as_root(program: &str, variables: &[(&str, &str)]) -> Command {
    // `env` sets them, because `sudo` removes most.
    let mut command = Command::new(if is_root() || !have("sudo") { "env" } else { "sudo" });
    if command.get_program() == "sudo" {
        command.arg("env");
    }
    command.args(variables.iter().map(|(name, value)| format!("{name}={value}"))).arg(program);
    command
}

/// The folder that cargo builds into.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Runs the tests of the program whose names have one of the given parts, one by one. Options are for cargo.
pub(crate) fn program_tests(args: &[&str], variables: &[(&str, &str)]) -> Result<(), String> {
    let (options, tests): (Vec<&str>, Vec<&str>) = args.iter().partition(|arg| arg.starts_with("--"));
    let test = ["test", "--package", "towpath", "--test", "program"];
    let one_by_one = ["--", "--nocapture", "--test-threads=1"];
    cargo_with(&[&test[..], &options, &one_by_one, &tests].concat(), variables)
}
