//! Commands for working on towpath: every check, and the benchmarks.

mod bench;
mod fanout;
mod fuzz;
mod layers;
mod purity;
mod readme;
mod release;
mod run;
mod setup;
mod test;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask test            every check: formatting, lints, dependencies, boundaries, README.md, all tests
cargo xtask boundaries      purity of towpath-proto and layers of the modules (`test` does this too)
cargo xtask readme          README.md's commands, in a clone, as they are written (`test` does this too)
cargo xtask setup           installs what the tests need beside Rust (`test` does this first)
cargo xtask fuzz [SECONDS]  every fuzz target, for so many seconds each [default: 60]
cargo xtask abuse           every attack of docs/security.md, in full, against a release build
cargo xtask kill [ROUNDS]   kill a writing, polling server so many times [default: 100]
cargo xtask faults [N]      inject so many faults into a cluster of servers and nodes [default: 100], and a quarter
                            as many into the store alone
cargo xtask cluster-tests [TEST…]  all tests of the program on the cluster backend, or those of some files
cargo xtask release         the program for release with the list of its dependencies inside, and `sbom`
cargo xtask sbom            CycloneDX documents of all dependencies, in target/sbom
cargo xtask bench [NAME]    benchmarks beside their peers; without a name, the list of them";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["test"] => test::all(),
        ["readme"] => test::readme(),
        ["boundaries"] => purity::check().and_then(|()| layers::check()),
        ["setup"] => setup::tests().map(drop),
        ["fuzz"] => fuzz::all(60),
        ["fuzz", seconds] => seconds.parse().map_err(|e| format!("{seconds}: {e}")).and_then(fuzz::all),
        ["abuse"] => abuse(),
        ["release"] => release::release(),
        ["sbom"] => release::sbom(),
        ["kill"] => kill("100"),
        ["kill", rounds] => kill(rounds),
        ["cluster-tests", tests @ ..] => test::cluster(tests),
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

fn abuse() -> Result<(), String> {
    setup::venv()?;
    let test = [
        "test",
        "--release",
        "--package",
        "towpath",
        "--test",
        "abuse",
        "--",
        "--nocapture",
        "--test-threads=1",
    ];
    run::cargo_with(&test, &[("TOWPATH_ABUSE_FULL", "1")])
}

fn kill(rounds: &str) -> Result<(), String> {
    let test = ["test", "--package", "towpath", "--test", "kill", "--", "--nocapture"];
    run::cargo_with(&test, &[("TOWPATH_KILL_ROUNDS", rounds)])
}
