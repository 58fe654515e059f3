//! The command line: one run of a seed, many runs, or a search for planted bugs.

use std::process::ExitCode;
use std::time::Instant;

use crate::bug::Bug;
use crate::{many, run, system, trace};

const HELP: &str = "\
towpath-simulation [HOURS] [--first SEED]               many runs, a process each [default: 100 hours]
towpath-simulation --seed N [--hours H] [--bug NAME] [--trace]  one run
towpath-simulation bugs [NAME…]                         plants bugs, and looks whether they are found";

/// Does what the arguments of the process say.
pub fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["bugs"] => many::find_bugs(&Bug::ALL),
        ["bugs", names @ ..] => names
            .iter()
            .map(|name| Bug::of(name).ok_or_else(|| known_bugs(name)))
            .collect::<Result<Vec<_>, _>>()
            .and_then(|bugs| many::find_bugs(&bugs)),
        [] => many::simulate(100, 1),
        [hours] if !hours.starts_with('-') => number(hours).and_then(|hours| many::simulate(hours, 1)),
        [hours, "--first", seed] => number(hours).and_then(|hours| many::simulate(hours, number(seed)?)),
        _ => OneRun::parse(&args).and_then(OneRun::run),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|e| format!("{text:?} is no number: {e}\n{HELP}"))
}

fn known_bugs(name: &str) -> String {
    format!("{name:?} is no planted bug; there are {}", Bug::ALL.map(Bug::name).join(", "))
}

/// One run.
struct OneRun {
    seed: u64,
    hours: u64,
    bug: Option<Bug>,
    prints: bool,
}

impl OneRun {
    fn parse(mut args: &[&str]) -> Result<Self, String> {
        let mut one = Self { seed: 1, hours: many::HOURS, bug: None, prints: false };
        loop {
            args = match args {
                [] => return Ok(one),
                ["--seed", seed, rest @ ..] => {
                    one.seed = number(seed)?;
                    rest
                }
                ["--hours", hours, rest @ ..] => {
                    one.hours = number(hours)?;
                    rest
                }
                ["--bug", name, rest @ ..] => {
                    one.bug = Some(Bug::of(name).ok_or_else(|| known_bugs(name))?);
                    rest
                }
                ["--trace", rest @ ..] => {
                    one.prints = true;
                    rest
                }
                _ => return Err(HELP.to_owned()),
            }
        }
    }

    fn run(self) -> Result<(), String> {
        let (begun, seed) = (Instant::now(), self.seed);
        let scratch = system::scratch();
        let folder = scratch.clone();
        // A thread of its own: the main thread keeps the machine's clock.
        let simulating = std::thread::spawn(move || self.simulate(&folder));
        let ended = simulating.join();
        drop(std::fs::remove_dir_all(&scratch));
        let Ran { broken, hours, hash, lines, counts } = match ended {
            Ok(ran) => ran?,
            Err(_) => return Err(format!("seed {seed}: BROKEN by a panic")),
        };
        println!(
            "seed {seed}: {hours:.1} hours in {:.1} s, trace {hash:016x} of {lines} lines; {counts}",
            begun.elapsed().as_secs_f64(),
        );
        match broken {
            None => Ok(()),
            Some(broken) => Err(format!("seed {seed}: BROKEN after {hours:.2} hours: {broken}")),
        }
    }

    fn simulate(&self, scratch: &std::path::Path) -> Result<Ran, String> {
        towpath::blocking::run_inline();
        system::begin(self.seed);
        if self.prints {
            trace::print_lines();
        }
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // Tasks that the commit thread woke come behind the others, always: how often the runtime has looked for work
        // differs from run to run.
        let runtime = runtime.enable_time().start_paused(true).global_queue_interval(u32::MAX).build();
        let runtime = runtime.map_err(|e| e.to_string())?;
        let broken = runtime.block_on(async {
            system::follow_runtime();
            run::run(self.seed, self.hours, self.bug, scratch).await
        });
        let hours = system::elapsed().as_secs_f64() / 3600.0;
        let (hash, lines, counts) = trace::finish();
        // Without waiting for what is left of the nodes.
        runtime.shutdown_background();
        let counts: Vec<String> = counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        Ok(Ran { broken, hours, hash, lines, counts: counts.join(", ") })
    }
}

/// Result of a run.
struct Ran {
    broken: Option<String>,
    hours: f64,
    hash: u64,
    lines: u64,
    counts: String,
}
