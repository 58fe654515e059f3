//! Commands for working on towpath: every check, and the benchmarks.

mod bench;
mod console;
mod fanout;
mod fuzz;
mod layers;
mod mixed_versions;
mod package;
mod pages;
mod postgresql;
mod purity;
mod readme;
mod release;
mod run;
mod screenshots;
mod setup;
mod test;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask test            every check: formatting, lints, dependencies, boundaries, documents, all tests
cargo xtask boundaries      purity of towpath-proto and layers of the modules (`test` does this too)
cargo xtask config-reference  rewrites docs/configuration.md from the types of the configuration
cargo xtask readme          commands of README.md, in a clone, and of docs/, as they are written (`test` does this too)
cargo xtask screenshots     takes the pictures of the web page in docs/images, from the quickstart's data
cargo xtask lighthouse      judges pages of the quickstart's data: performance and accessibility at least 95
cargo xtask docs [PAGE…]    commands of all documents, or of some pages, with a development build, or the program in the
                            folder $TOWPATH_BUILT; fails for commands that nothing runs (`readme` does this too)
cargo xtask setup           installs what the tests need beside Rust (`test` does this first)
cargo xtask fuzz [SECONDS]  every fuzz target, for so many seconds each [default: 60]
cargo xtask histories [N]   so many random histories of each protocol's follower, its publisher and the network between
                            them [default: 1000000]
cargo xtask simulate [HOURS]  so many hours of nodes, publishers, mirrors and followers, simulated, with faults of the network
                            and the disk, and kills [default: 100]; `simulate --seed N [--hours H]` runs a seed again and
                            prints its trace, `simulate bugs [NAME…]` plants bugs and looks whether they are found
cargo xtask openapi [SECONDS]  requests that schemathesis makes of the HTTP API's description [default: 300], and a
                            client that is generated from it
cargo xtask abuse           every attack of docs/security.md, in full, against a release build
cargo xtask kill [ROUNDS]   kill a writing, polling server so many times [default: 100]
cargo xtask lost-power      a disk that forgets what was not synced, at each change of a recorded run; and system calls that
                            fail once, the first 60 of each kind
cargo xtask sink-kills [N]  kill followers into databases, and their server, so many times [default: 1000]
cargo xtask client-kills [N]  kill programs that use the packages for Python, JavaScript and Rust so many times each
                            [default: 200]
cargo xtask faults [N]      inject so many faults into a cluster of servers and nodes [default: 100], and a quarter
                            as many into the store alone
cargo xtask cluster-tests [TEST…]  all tests of the program on the cluster backend, or those of some files
cargo xtask mixed-versions  a cluster of nodes of this version and of the one before, which it builds, or which
                            TOWPATH_PREVIOUS names; with `record`, writes what that one does into the tests' data
cargo xtask release         the program for release with the list of its dependencies inside, and `sbom`
cargo xtask package         the crates, in target/package, the Debian package, in target/debian, the npm package, in
                            target/npm, and the wheel, in target/wheels; `package crates`, `package deb`, `package npm`,
                            `package wheel` and `package sdist` make one of these only; `package check` checks packaging/, the
                            Debian package in a Debian of its own, and the container's image. A program in the folder
                            $TOWPATH_BUILT is packaged instead of a new release build. `package reproducible [PROFILE]` makes
                            all packages of the last commit in two folders, and compares them [default: dist]
cargo xtask sbom            CycloneDX documents of all dependencies, in target/sbom
cargo xtask bench [NAME]    benchmarks beside their peers; without a name, the list of them";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["test"] => test::all(),
        ["config-reference"] => config_reference(),
        ["readme"] => test::readme(),
        ["docs", pages @ ..] => docs(pages),
        [pages::WORKER, built, page, package, wheel] => pages::run_one(built, page, package, wheel),
        ["boundaries"] => purity::check().and_then(|()| layers::check()),
        ["screenshots"] => screenshots::take(),
        ["lighthouse"] => screenshots::lighthouse(),
        ["setup"] => setup::tests().map(drop),
        ["fuzz"] => fuzz::all(60),
        ["fuzz", seconds] => seconds.parse().map_err(|e| format!("{seconds}: {e}")).and_then(fuzz::all),
        ["histories"] => histories("1000000"),
        ["histories", count] => histories(count),
        ["simulate", rest @ ..] => simulate(rest),
        ["openapi"] => openapi("300"),
        ["openapi", seconds] => openapi(seconds),
        ["abuse"] => abuse(),
        ["release"] => release::release().map(drop),
        ["package"] => package::package(),
        ["package", "crates"] => package::crates(),
        ["package", "check"] => package::check_built(),
        ["package", "deb"] => package::debian(),
        ["package", "reproducible"] => package::reproducible::check(release::PROFILE),
        ["package", "reproducible", profile] => package::reproducible::check(profile),
        ["package", package::reproducible::PARTS, profile, folder] => {
            package::reproducible::parts(profile, folder)
        }
        ["package", "npm"] => package::npm(),
        ["package", "wheel"] => package::wheel().map(drop),
        ["package", "sdist"] => package::sdist(),
        ["sbom"] => release::sbom(),
        ["sink-kills"] => sink_kills("1000"),
        ["sink-kills", kills] => sink_kills(kills),
        ["client-kills"] => client_kills("200"),
        ["client-kills", kills] => client_kills(kills),
        ["kill"] => kill("100"),
        ["kill", rounds] => kill(rounds),
        ["lost-power"] => lost_power(),
        ["mixed-versions"] => mixed_versions::run(false),
        ["mixed-versions", "record"] => mixed_versions::run(true),
        ["cluster-tests", tests @ ..] => test::cluster(tests),
        ["faults"] => faults("100"),
        ["faults", count] => faults(count),
        ["fanout", kind, port, channel, seconds, more @ ..] => {
            fanout::run(kind, port, channel, seconds, more)
        }
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

fn docs(pages: &[&str]) -> Result<(), String> {
    // A program that is built already, or a development build.
    let built = std::env::var_os("TOWPATH_BUILT").map(std::path::PathBuf::from);
    match built {
        Some(folder) => pages::check(&folder, pages),
        None => {
            run::cargo(&["build", "--package", "towpath"])?;
            pages::check(&run::target().join("debug"), pages)
        }
    }
}

fn lost_power() -> Result<(), String> {
    setup::strace()?;
    let test = ["test", "--package", "towpath-store", "--test", "crash", "--"];
    let chosen = ["lost_power::", "refused_calls::", "--nocapture", "--test-threads=1"];
    let all = [("TOWPATH_LOST_POWER", "all"), ("TOWPATH_REFUSED_CALLS", "60"), ("REQUIRE_STRACE", "1")];
    run::cargo_with(&[&test[..], &chosen].concat(), &all)
}

fn faults(count: &str) -> Result<(), String> {
    let number: u32 = count.parse().map_err(|e| format!("{count}: {e}"))?;
    setup::venv()?;
    setup::network()?;
    run::program_tests(&["cluster_faults::"], &[("TOWPATH_FAULTS", &number.to_string())])?;
    let store = ["test", "--package", "towpath-cluster", "--test", "faults", "--", "--nocapture"];
    run::cargo_with(&store, &[("TOWPATH_FAULTS", &number.div_ceil(4).to_string())])
}

fn config_reference() -> Result<(), String> {
    run::cargo(&["run", "--quiet", "--package", "towpath-config", "--example", "config_reference"])
}

/// Follows random histories, with the tests of the suite: followers, publishers and networks are pure.
fn histories(count: &str) -> Result<(), String> {
    let program = [
        "test",
        "--release",
        "--package",
        "towpath-proto",
        "--lib",
        "--test",
        "history",
        "--test",
        "replication",
    ];
    let tests = ["random::", "the_output_is_the_log", "nothing_is_missed", "the_copy_is_the_feed"];
    run::cargo_with(&[&program[..], &["--"], &tests].concat(), &[("TOWPATH_HISTORIES", count)])
}

/// Simulates, in a release build: a simulated hour takes a fraction of a second.
fn simulate(args: &[&str]) -> Result<(), String> {
    let run = ["run", "--release", "--quiet", "--package", "towpath-simulation", "--"];
    // A seed that is run again is to be looked at.
    let trace: &[&str] = if args.contains(&"--seed") { &["--trace"] } else { &[] };
    run::cargo(&[&run[..], args, trace].concat())
}

fn abuse() -> Result<(), String> {
    setup::venv()?;
    run::program_tests(&["--release", "abuse::"], &[("TOWPATH_ABUSE_FULL", "1")])
}

fn openapi(seconds: &str) -> Result<(), String> {
    setup::venv()?;
    run::program_tests(&["openapi::"], &[("TOWPATH_OPENAPI_SECONDS", seconds)])
}

fn sink_kills(kills: &str) -> Result<(), String> {
    setup::postgresql()?;
    let kills = [("TOWPATH_SINK_KILLS", kills)];
    // Released programs start at once, so more of a round is spent on writing. One sink after the other.
    run::program_tests(&["--release", "sink_kills::kills_", "follow_into::repeating::kills_"], &kills)?;
    // The same for a follower that is cut off between any two statements, and the connection.
    let sink = [
        "test",
        "--release",
        "--package",
        "towpath-sinks",
        "--test",
        "postgres",
        "--",
        "kills",
        "--nocapture",
    ];
    run::cargo_with(&sink, &kills)
}

fn client_kills(kills: &str) -> Result<(), String> {
    setup::tests()?;
    let tests = ["rust_client::kills_", "python_client::the_tests_by_pytest", "js_client::the_tests_in_node"];
    run::program_tests(&tests, &[("TOWPATH_KILLS", kills)])
}

fn kill(rounds: &str) -> Result<(), String> {
    run::program_tests(&["kill::"], &[("TOWPATH_KILL_ROUNDS", rounds)])
}
