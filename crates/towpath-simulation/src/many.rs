//! Many runs: each a process of its own, as many at a time as there are cores.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::bug::Bug;

/// Simulated hours of one run.
pub const HOURS: u64 = 25;
/// Runs of [`HOURS`] in which a planted bug is found.
pub const BUDGET: u64 = 8;

/// A run that ended.
struct Ended {
    is_sound: bool,
    output: String,
}

fn run(seed: u64, hours: u64, bug: Option<Bug>) -> Result<Ended, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    command.args(["--seed", &seed.to_string(), "--hours", &hours.to_string()]);
    if let Some(bug) = bug {
        command.args(["--bug", &bug.name()]);
    }
    let output = command.output().map_err(|e| e.to_string())?;
    let text = [&output.stdout[..], &output.stderr].concat();
    Ok(Ended { is_sound: output.status.success(), output: String::from_utf8_lossy(&text).into_owned() })
}

/// Does the same work on as many threads as there are cores, and waits for all.
fn on_every_core(work: impl Fn() + Copy + Send) {
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
}

/// Runs seeds until so many hours are simulated, and prints what happened in them.
///
/// # Errors
///
/// The seeds that broke an invariant.
pub fn simulate(hours: u64, first: u64) -> Result<(), String> {
    let (begun, end) = (Instant::now(), first + hours.div_ceil(HOURS).max(1));
    let next = AtomicU64::new(first);
    let (broken, total) = (Mutex::new(Vec::new()), Mutex::new(Totals::default()));
    let hours = hours.clamp(1, HOURS);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let ended = run(seed, hours, None).unwrap_or_else(|e| Ended { is_sound: false, output: e });
            print!("{}", ended.output);
            if let Ok(mut total) = total.lock() {
                total.add(&ended.output);
            }
            if !ended.is_sound
                && let Ok(mut broken) = broken.lock()
            {
                broken.push(seed);
            }
        }
    };
    on_every_core(work);
    let total = total.into_inner().map_err(|e| e.to_string())?;
    total.print(begun.elapsed().as_secs_f64());
    match broken.into_inner().map_err(|e| e.to_string())?.as_slice() {
        [] => Ok(()),
        seeds => {
            Err(format!("seeds {seeds:?} broke an invariant; `cargo xtask simulate --seed N` shows how"))
        }
    }
}

/// Sums of the last lines of runs.
#[derive(Default)]
struct Totals {
    hours: f64,
    counts: BTreeMap<String, u64>,
}

impl Totals {
    fn add(&mut self, output: &str) {
        let Some((head, counts)) = output.lines().find_map(|line| line.split_once("; ")) else { return };
        let hours = head.split(": ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
        self.hours += hours.unwrap_or_default();
        for count in counts.split(", ") {
            if let Some((kind, count)) = count.rsplit_once(' ') {
                *self.counts.entry(kind.to_owned()).or_default() += count.parse::<u64>().unwrap_or_default();
            }
        }
    }

    fn print(&self, seconds: f64) {
        println!("{:.0} simulated hours in {seconds:.0} s, {:.1} a second", self.hours, self.hours / seconds);
        for (kind, count) in &self.counts {
            println!("{count:>12}  {kind}");
        }
    }
}

/// Plants each bug in turn, and looks how long the simulation takes to find it.
///
/// # Errors
///
/// The bugs that are not found within [`BUDGET`] runs.
pub fn find_bugs(bugs: &[Bug]) -> Result<(), String> {
    let next = Mutex::new(bugs.iter());
    let missed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some(bug) = next.lock().ok().and_then(|mut next| next.next()) else { return };
            match find(*bug) {
                Some(found) => println!("{}: {found}", bug.name()),
                None => {
                    println!("{}: not found in {} hours", bug.name(), BUDGET * HOURS);
                    if let Ok(mut missed) = missed.lock() {
                        missed.push(bug.name());
                    }
                }
            }
        }
    };
    on_every_core(work);
    match missed.into_inner().map_err(|e| e.to_string())?.as_slice() {
        [] => Ok(()),
        missed => Err(format!("the simulation does not find {}", missed.join(", "))),
    }
}

/// Returns what a planted bug breaks.
pub fn find(bug: Bug) -> Option<String> {
    (1..=BUDGET).find_map(|seed| {
        let ended = run(seed, HOURS, Some(bug)).ok()?;
        let line = ended.output.lines().find_map(|line| line.split_once("BROKEN ")).map(|(_, broken)| broken);
        let line = line.map(ToOwned::to_owned).or_else(|| (!ended.is_sound).then(|| ended.output.clone()))?;
        Some(format!("seed {seed}, {line}"))
    })
}
