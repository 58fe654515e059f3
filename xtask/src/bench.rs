//! The benchmarks, each in one run with its peers.

use std::process::Command;

use crate::package;
use crate::run::{cargo, have, root, status};
use crate::setup::apt;

const HELP: &str = "\
cargo xtask bench http      head (304) and latest (200) beside nginx: CPU for each request
cargo xtask bench smart     long polls beside Nchan and another server: memory, time to the response, CPU; pulls of 50 items
                            (with idle, one, crowd, fanout, pulls or several, joined by commas: these parts only)
cargo xtask bench store     appends beside a loop on the bare engine, reads
cargo xtask bench proto     parsing, canonical form, risk: parts of a poll
cargo xtask bench poll      a whole poll: parse, diff, append, publish as shares; memory of 1,000 sources
cargo xtask bench sup       the SUP document of a million feeds; memory and start-up with 50,000
cargo xtask bench replication   sealed pages beside nginx, a cold follower beside plain GETs, pages by time
cargo xtask bench large     ten million items: pages by time, pulls, a snapshot
cargo xtask bench push      one append to 10,000 subscribers beside a bare loop; a dead host; memory
cargo xtask bench export    10,000 feeds as static files, again without changes, again with ten changed
cargo xtask bench cluster   appends through three nodes beside a bare client loop; catching up with a million items;
                            reading beside a single server; growth of the log
cargo xtask bench sinks [ITEMS]   first sync of a million items into SQLite and PostgreSQL beside a bare loop and psql;
                                  steady state, latency
cargo xtask bench webhooks  deliveries to 40 webhooks beside a bare loop, without and with a dead one
cargo xtask bench page [ITEMS FEEDS…]   the web page: home of 1,000 and 10,000 feeds, tabs and searches of a million items
cargo xtask bench python    changes of 1 kB a second through the Python package's loop, beside the command line
cargo xtask bench xmpp      one append to 1,000 subscribers through Prosody, beside a bare component; CPU shares";

pub(crate) fn bench(args: &[&str]) -> Result<(), String> {
    match args {
        ["http"] => beside_nginx("benches/nginx.py"),
        ["smart"] => smart(None),
        ["smart", parts] => smart(Some(parts)),
        ["store"] => cargo(&["bench", "--package", "towpath-store"]),
        ["proto"] => cargo(&["bench", "--package", "towpath-proto"]),
        ["poll"] => poll(),
        ["sup"] => sup(),
        ["push"] => cargo(&["bench", "--package", "towpath", "--bench", "push"]),
        ["cluster"] => cluster(),
        ["xmpp"] => xmpp(),
        ["page", sizes @ ..] => page(sizes),
        ["sinks"] => sinks("1000000"),
        ["sinks", items] => sinks(items),
        ["python"] => {
            let (program, wheel) = package::wheel()?;
            status(Command::new("python3").arg(root().join("benches/python.py")).arg(program).arg(wheel))
        }
        ["webhooks"] => {
            cargo(&["build", "--release", "--package", "towpath"])?;
            python("benches/webhooks.py")
        }
        ["replication"] => beside_nginx("benches/replication.py"),
        ["export"] => {
            cargo(&["build", "--release", "--package", "towpath"])?;
            python("benches/export.py")
        }
        ["large"] => beside_nginx("benches/large.py"),
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
    cargo(&["build", "--release", "--package", "towpath"])?;
    python(script)
}

fn smart(parts: Option<&str>) -> Result<(), String> {
    // Nchan is a module: nginx may be installed without it.
    apt(&["nginx-light", "libnginx-mod-nchan", "wrk", "util-linux"])?;
    cargo(&["build", "--release", "--package", "towpath", "--package", "xtask"])?;
    let (peers, release) = (crate::run::target().join("peers"), crate::run::target().join("release"));
    let root_option = peers.display().to_string();
    // Pinned, so that the figures of two runs compare the same peer.
    cargo(&["install", "durable-streams-server", "--version", "0.3.0", "--locked", "--root", &root_option])?;
    let mut run = Command::new("python3");
    run.arg("benches/smart.py").arg(release.join("towpath"));
    run.arg(peers.join("bin/durable-streams-server")).arg(release.join("xtask")).args(parts);
    status(run.current_dir(root()))
}

fn sup() -> Result<(), String> {
    cargo(&["build", "--release", "--package", "towpath"])?;
    cargo(&["bench", "--package", "towpath-proto", "--bench", "sup"])?;
    python("benches/feeds.py")
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
    cargo(&["build", "--release", "--package", "towpath"])?;
    python("benches/xmpp.py")
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

fn page(sizes: &[&str]) -> Result<(), String> {
    cargo(&["build", "--release", "--package", "towpath"])?;
    let binary = crate::run::target().join("release/towpath");
    status(
        Command::new("python3")
            .arg(root().join("benches/page.py"))
            .arg(binary)
            .args(sizes)
            .current_dir(root()),
    )
}

fn poll() -> Result<(), String> {
    cargo(&["build", "--release", "--package", "towpath"])?;
    cargo(&["bench", "--package", "towpath", "--bench", "poll"])?;
    python("benches/memory.py")
}

fn python(script: &str) -> Result<(), String> {
    let binary = crate::run::target().join("release/towpath");
    status(Command::new("python3").arg(root().join(script)).arg(binary).current_dir(root()))
}
