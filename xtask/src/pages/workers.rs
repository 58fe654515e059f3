//! Pages side by side, each with a network of its own.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use super::{Job, page};
use crate::run::{have, is_root};

/// Argument of this program that runs one page, in a worker's process.
pub(crate) const WORKER: &str = "docs-page";

/// Runs all pages; two at once if each can have its own network.
pub(crate) fn run(jobs: &[Job], built: &Path) -> Result<(), String> {
    let Some(network) = network() else {
        // One address for all.
        return jobs.iter().try_for_each(|job| {
            let started = Instant::now();
            page::run(job, built)?;
            println!("{}: {:.1} s", job.name, started.elapsed().as_secs_f64());
            Ok(())
        });
    };
    let left = Mutex::new(jobs.iter());
    let next = || left.lock().ok()?.next();
    let faults = Mutex::new(Vec::new());
    let worker = || {
        while let Some(job) = next() {
            if let (Err(fault), Ok(mut faults)) = (run_apart(job, built, &network), faults.lock()) {
                faults.push(fault);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(worker);
        scope.spawn(worker);
    });
    let faults = faults.into_inner().map_err(|e| e.to_string())?;
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

/// Arguments of `unshare` for an empty network; none if this user may not make one.
fn network() -> Option<Vec<&'static str>> {
    if !have("ip") || !have("unshare") {
        return None;
    }
    // Not as root of the namespace: a database's server, for one, refuses to run as root.
    let user: &[&str] = if is_root() { &[] } else { &["--map-current-user", "--keep-caps"] };
    let args = [&["--net"], user].concat();
    let tried = Command::new("unshare").args(&args).args(["ip", "link", "set", "lo", "up"]).output();
    tried.is_ok_and(|output| output.status.success()).then_some(args)
}

/// Runs a page in a process and a network of its own, and prints what it printed.
fn run_apart(job: &Job, built: &Path, network: &[&str]) -> Result<(), String> {
    let started = Instant::now();
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let path = |file: &Option<std::path::PathBuf>| file.clone().unwrap_or_default();
    let mut command = Command::new("unshare");
    command.args(network).args(["sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]).arg(program);
    command.arg(WORKER).arg(built).arg(&job.name).arg(path(&job.package)).arg(path(&job.wheel));
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{printed}{}: {:.1} s", job.name, started.elapsed().as_secs_f64());
    if output.status.success() { Ok(()) } else { Err(errors.into_owned()) }
}
