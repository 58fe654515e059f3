//! The fuzz targets, built with coverage by the stable compiler and run for a bounded time.

use std::path::PathBuf;
use std::process::Command;

use crate::run::{command, root, status, target};

/// Flags of `cargo fuzz`, without the sanitizers that need a nightly compiler. Our crates have no `unsafe`, so panics
/// and overflows are the faults to find.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1";

/// Builds every target and runs each for so many seconds, from the inputs that earlier runs found interesting.
pub(crate) fn all(seconds: u32) -> Result<(), String> {
    let folder = root().join("fuzz");
    let built = target().join("fuzz");
    let triple = host()?;
    let mut build = command();
    build.args(["build", "--release", "--bins", "--target", &triple]);
    build.current_dir(&folder).env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", &built);
    status(&mut build)?;
    for name in names(&folder)? {
        let mut run = Command::new(built.join(&triple).join("release").join(&name));
        // libFuzzer writes crashing inputs to its working folder.
        run.current_dir(&built);
        // libFuzzer writes new inputs to the first folder.
        run.arg(created(built.join("corpus").join(&name))?).arg(format!("-max_total_time={seconds}"));
        // A quadratic step shows as a timeout, unbounded growth as memory.
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

fn created(folder: PathBuf) -> Result<PathBuf, String> {
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
    // The order of a folder's entries differs between machines.
    names.sort();
    Ok(names)
}

fn host() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output().map_err(|e| format!("rustc: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not say what it runs on".to_owned())
}
