//! Commands for working on towpath: every check, and the benchmarks.

mod bench;
mod fanout;
mod fuzz;
mod purity;
mod run;
mod setup;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask test            every check: formatting, lints, purity, all tests, a short, repeatable run of every fuzz target
cargo xtask setup           what the tests need beside Rust, where it is missing (`test` does this first)
cargo xtask fuzz [SECONDS]  every fuzz target, so long each [default: 60]
cargo xtask kill [ROUNDS]   kill a writing, polling server so many times [default: 100]
cargo xtask faults [N]      kill, stop and cut off a cluster's servers and nodes so many times [default: 100], and a quarter
                            as often those of the store alone
cargo xtask cluster-tests [TEST…]  all tests of the program on the cluster backend, or those of some files
cargo xtask bench [NAME]    benchmarks side by side with their peers; without a name, what there is";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["test"] => test(),
        ["setup"] => setup::tests(),
        ["fuzz"] => fuzz(60),
        ["fuzz", seconds] => seconds.parse().map_err(|e| format!("{seconds}: {e}")).and_then(fuzz),
        ["kill"] => kill("100"),
        ["kill", rounds] => kill(rounds),
        ["cluster-tests", tests @ ..] => cluster_tests(tests),
        ["faults"] => faults("100"),
        ["faults", count] => faults(count),
        ["fanout", kind, port, channel, seconds] => fanout::run(kind, port, channel, seconds),
        ["bench", rest @ ..] => bench::bench(rest),
        _ => {
            println!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e}");
            ExitCode::FAILURE
        }
    }
}

fn test() -> Result<(), String> {
    setup::tests()?;
    run::cargo(&["fmt", "--all", "--check"])?;
    run::cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])?;
    purity::check()?;
    fuzz::all(fuzz::Effort::Repeatable)?;
    // A few on the other backend; `cargo xtask cluster-tests` is all of them.
    cluster_tests(&["publishing_history", "replication_mirror", "smart_server"])?;
    // Last, so that the summary of the tests is what the output ends with.
    let required = [("REQUIRE_XMLLINT", "1"), ("REQUIRE_NAMESPACES", "1")];
    let count = if setup::has_namespaces() { required.len() } else { 1 };
    run::cargo_with(&["test", "--workspace", "--no-fail-fast"], &required[..count])
}

fn fuzz(seconds: u32) -> Result<(), String> {
    fuzz::all(fuzz::Effort::Search { seconds })
}

fn faults(count: &str) -> Result<(), String> {
    let number: u32 = count.parse().map_err(|e| format!("{count}: {e}"))?;
    setup::venv()?;
    setup::network()?;
    let test = |package, name, faults: u32| {
        let test = ["test", "--package", package, "--test", name, "--", "--nocapture"];
        run::cargo_with(&test, &[("TOWPATH_FAULTS", &faults.to_string())])
    };
    test("towpath", "cluster_faults", number)?;
    test("towpath-cluster", "faults", number.div_ceil(4))
}

/// The program's tests, or those of some files, on the cluster backend.
fn cluster_tests(tests: &[&str]) -> Result<(), String> {
    setup::tests()?;
    let named = tests.iter().flat_map(|test| ["--test", test]);
    let all: &[&str] = if tests.is_empty() { &["--tests"] } else { &[] };
    let arguments = ["test", "--package", "towpath", "--no-fail-fast"].into_iter().chain(named);
    let arguments: Vec<&str> = arguments.chain(all.iter().copied()).collect();
    run::cargo_with(&arguments, &[("TOWPATH_TEST_CLUSTER", "1"), ("REQUIRE_XMLLINT", "1")])
}

fn kill(rounds: &str) -> Result<(), String> {
    let test = ["test", "--package", "towpath", "--test", "kill", "--", "--nocapture"];
    run::cargo_with(&test, &[("TOWPATH_KILL_ROUNDS", rounds)])
}
