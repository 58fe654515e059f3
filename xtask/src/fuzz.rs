//! The fuzz targets, built with coverage by the stable compiler and run for a bounded time.

use std::path::PathBuf;
use std::process::Command;

use crate::run::{command, root, status, target};

/// What `cargo fuzz` passes, without the sanitizers that need a nightly compiler: our crates have no `unsafe`, so
/// panics and overflows are what there is to find.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1";

/// How often `Effort::Repeatable` calls each target, at most.
const CALLS: u32 = 50_000;

/// How long and how freely each target runs.
#[derive(Clone, Copy)]
pub(crate) enum Effort {
    /// The same inputs every time, from the seeds in the repository: a check of a change may not fail for what
    /// was there before it.
    Repeatable,
    /// New inputs, from those that earlier runs found interesting, for so many seconds.
    Search { seconds: u32 },
}

/// Builds every target and runs each.
pub(crate) fn all(effort: Effort) -> Result<(), String> {
    let folder = root().join("fuzz");
    let built = target().join("fuzz");
    let triple = host()?;
    let mut build = command();
    build.args(["build", "--release", "--bins", "--target", &triple]);
    build.current_dir(&folder).env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", &built);
    status(&mut build)?;
    for name in names(&folder)? {
        let mut run = Command::new(built.join(&triple).join("release").join(&name));
        run.current_dir(&built);
        // The first folder is where new inputs go; a repeatable run begins with none of them.
        match effort {
            Effort::Repeatable => {
                let corpus = built.join("repeatable").join(&name);
                if corpus.exists() {
                    std::fs::remove_dir_all(&corpus).map_err(|e| format!("{}: {e}", corpus.display()))?;
                }
                run.arg(made(corpus)?);
                run.args(["-seed=1", &format!("-runs={CALLS}"), "-max_total_time=10"])
            }
            Effort::Search { seconds } => {
                run.arg(made(built.join("corpus").join(&name))?).arg(format!("-max_total_time={seconds}"))
            }
        };
        run.args(["-timeout=10", "-rss_limit_mb=2048", "-max_len=65536"]);
        run.args(["-verbosity=0", "-print_final_stats=1"]);
        let seeds = folder.join("seeds").join(&name);
        if seeds.is_dir() {
            run.arg(seeds);
        }
        status(&mut run)?;
    }
    Ok(())
}

fn made(folder: PathBuf) -> Result<PathBuf, String> {
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

fn names(folder: &std::path::Path) -> Result<Vec<String>, String> {
    let targets = folder.join("fuzz_targets");
    let error = |e: std::io::Error| format!("{}: {e}", targets.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&targets).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if path.extension().is_some_and(|e| e == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

fn host() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output().map_err(|e| format!("rustc: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not say what it runs on".to_owned())
}
