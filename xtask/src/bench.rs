//! The benchmarks, each in one run with its peers, and the page of their results.

use std::path::Path;
use std::process::Command;

use crate::package;
use crate::run::{cargo, have, root, status};
use crate::setup::apt;

const HELP: &str = "\
cargo xtask bench http      head (304) and latest (200) beside nginx: CPU for each request
cargo xtask bench smart     long polls beside Nchan and another server: memory, time to the response, CPU; pulls of 50 items
                            (with idle, one, crowd, fanout, pulls or several, joined by commas: these parts only)
cargo xtask bench latency   append to answer for 1,000 followers at half of what each server carries: p50, p99, p99.9
cargo xtask bench growth items|feeds [LARGEST] [BYTES] [random|text]   one feed of ten million items, a node with 100,000 feeds: starts,
                            appends, pulls, memory and disk at each tenfold size
cargo xtask bench store     appends beside a loop on the bare engine, reads
cargo xtask bench proto     parsing, canonical form, risk: parts of a poll
cargo xtask bench poll      a whole poll: parse, diff, append, publish as shares; memory of 1,000 sources
cargo xtask bench sup       the SUP document of a million feeds; memory and start-up with 50,000
cargo xtask bench replication   sealed pages beside nginx, a cold follower beside plain GETs, pages by time
cargo xtask bench push      one append to 10,000 subscribers beside a bare loop; a dead host; memory
cargo xtask bench backup [GB]   publishing beside a hot backup of 10 GB
cargo xtask bench export    10,000 feeds as static files, again without changes, again with ten changed
cargo xtask bench cluster   appends through three nodes beside a bare client loop; catching up with a million items;
                            reading beside a single server; growth of the log
cargo xtask bench sinks [ITEMS]   first sync of a million items into SQLite and PostgreSQL beside a bare loop and psql;
                                  steady state, latency
cargo xtask bench webhooks  deliveries to 40 webhooks beside a bare loop, without and with a dead one
cargo xtask bench page [ITEMS FEEDS…]   the web page: home of 1,000 and 10,000 feeds, tabs and searches of a million items
cargo xtask bench python    changes of 1 kB a second through the Python package's loop, beside the command line
cargo xtask bench xmpp      one append to 1,000 subscribers through Prosody, beside a bare component; CPU shares
cargo xtask bench report    docs/benchmarks.md and its curves, from the raw results in benches/results/";

pub(crate) fn bench(args: &[&str]) -> Result<(), String> {
    match args {
        ["http"] => beside_nginx("benches/nginx.py"),
        ["smart", parts @ ..] => long_polls("benches/smart.py", parts),
        ["latency"] => long_polls("benches/latency.py", &[]),
        ["growth", options @ ..] => growth(options),
        ["report"] => report(&crate::setup::venv()?, &[]),
        ["store"] => cargo(&["bench", "--package", "towpath-store"]),
        ["proto"] => cargo(&["bench", "--package", "towpath-proto"]),
        ["poll"] => poll(),
        ["sup"] => sup(),
        ["push"] => cargo(&["bench", "--package", "towpath", "--bench", "push"]),
        ["cluster"] => cluster(),
        ["xmpp"] => xmpp(),
        ["page", sizes @ ..] => measure("benches/page.py", sizes),
        ["sinks"] => sinks("1000000"),
        ["sinks", items] => sinks(items),
        ["python"] => {
            let (program, wheel) = package::wheel()?;
            status(Command::new("python3").arg(root().join("benches/python.py")).arg(program).arg(wheel))
        }
        ["webhooks"] => measure("benches/webhooks.py", &[]),
        ["replication"] => beside_nginx("benches/replication.py"),
        ["backup", size @ ..] => {
            if !have("wrk") {
                apt(&["wrk"])?;
            }
            measure("benches/backup.py", size)
        }
        ["export"] => measure("benches/export.py", &[]),
        _ => {
            println!("{HELP}");
            Ok(())
        }
    }
}

fn beside_nginx(script: &str) -> Result<(), String> {
    for (program, package) in [("nginx", "nginx-light"), ("wrk", "wrk"), ("taskset", "util-linux")] {
        if !have(program) {
            apt(&[package])?;
        }
    }
    measure(script, &[])
}

fn growth(options: &[&str]) -> Result<(), String> {
    let kinds: &[&str] = if options.is_empty() { &["items", "feeds"] } else { &options[..1] };
    for kind in kinds {
        let sizes = options.get(1..).unwrap_or_default();
        measure("benches/growth.py", &[&[*kind], sizes].concat())?;
    }
    report(&crate::setup::venv()?, &[])
}

/// Makes the page of all results; with `--check`, fails if it is not what they give.
fn report(python: &Path, options: &[&str]) -> Result<(), String> {
    status(Command::new(python).arg("benches/report.py").args(options).current_dir(root()))
}

/// Checks that docs/benchmarks.md and its curves are made from the results as they are.
pub(crate) fn check_report(environment: &Path) -> Result<(), String> {
    report(&environment.join("bin/python"), &["--check"])
}

fn long_polls(script: &str, parts: &[&str]) -> Result<(), String> {
    // Nchan is a module: nginx may be installed without it.
    apt(&["nginx-light", "libnginx-mod-nchan", "wrk", "util-linux"])?;
    cargo(&["build", "--release", "--package", "towpath", "--package", "xtask"])?;
    let (peers, release) = (crate::run::target().join("peers"), crate::run::target().join("release"));
    let root_option = peers.display().to_string();
    // Pinned, so that the figures of two runs compare the same peer.
    cargo(&["install", "durable-streams-server", "--version", "0.3.0", "--locked", "--root", &root_option])?;
    let mut run = Command::new("python3");
    run.arg(script).arg(release.join("towpath"));
    run.arg(peers.join("bin/durable-streams-server")).arg(release.join("xtask")).args(parts);
    status(run.current_dir(root()))
}

fn sup() -> Result<(), String> {
    cargo(&["bench", "--package", "towpath-proto", "--bench", "sup"])?;
    measure("benches/feeds.py", &[])
}

fn cluster() -> Result<(), String> {
    let venv = crate::setup::venv()?;
    if !have("wrk") {
        apt(&["wrk"])?;
    }
    cargo(&["build", "--release", "--package", "towpath"])?;
    cargo(&["bench", "--package", "towpath-cluster"])?;
    let mut run = Command::new("python3");
    run.arg("benches/cluster.py").arg(crate::run::target().join("release/towpath"));
    status(run.arg(venv.with_file_name("nats-server")).current_dir(root()))
}

fn xmpp() -> Result<(), String> {
    crate::setup::prosody()?;
    measure("benches/xmpp.py", &[])
}

fn sinks(items: &str) -> Result<(), String> {
    crate::setup::postgresql()?;
    cargo(&["build", "--release", "--package", "towpath"])?;
    cargo(&["build", "--release", "--package", "towpath-sinks", "--example", "bare_sqlite"])?;
    let release = crate::run::target().join("release");
    let mut run = Command::new("python3");
    run.arg("benches/sinks.py")
        .arg(release.join("towpath"))
        .arg(release.join("examples/bare_sqlite"))
        .arg(items);
    status(run.current_dir(root()))
}

fn poll() -> Result<(), String> {
    cargo(&["bench", "--package", "towpath", "--bench", "poll"])?;
    measure("benches/memory.py", &[])
}

/// Runs a script with the release build of towpath, which is built first.
fn measure(script: &str, options: &[&str]) -> Result<(), String> {
    cargo(&["build", "--release", "--package", "towpath"])?;
    let binary = crate::run::target().join("release/towpath");
    status(Command::new("python3").arg(root().join(script)).arg(binary).args(options).current_dir(root()))
}
