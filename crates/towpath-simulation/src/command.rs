//! The command line: one run of a seed, many runs, or a search for planted bugs.

use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand, ValueEnum as _};

use crate::bug::Bug;
use crate::{many, run, system, trace};

/// Deterministic simulation of towpath: many runs, a process each, or one run of a seed.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Command {
    #[command(subcommand)]
    search: Option<Search>,
    /// Simulated hours of all runs
    #[arg(value_name = "HOURS", default_value_t = 100)]
    total: u64,
    /// Seed of the first run; the others follow it
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first: u64,
    #[command(flatten)]
    one: OneRun,
}

#[derive(Debug, Subcommand)]
enum Search {
    /// Plant bugs, and look whether they are found
    Bugs {
        /// Bugs to plant [default: all]
        #[arg(value_name = "NAME")]
        bugs: Vec<Bug>,
    },
}

/// One run.
#[derive(Debug, Clone, Args)]
struct OneRun {
    /// Run this seed alone
    #[arg(long, value_name = "N", conflicts_with_all = ["total", "first"])]
    seed: Option<u64>,
    /// Simulated hours of the run
    #[arg(long, value_name = "H", default_value_t = many::HOURS, requires = "seed")]
    hours: u64,
    /// Plant a bug
    #[arg(long, value_name = "NAME", requires = "seed")]
    bug: Option<Bug>,
    /// Print all that happens
    #[arg(long, requires = "seed", overrides_with = "trace")]
    trace: bool,
}

/// Does what the arguments of the process say.
pub fn main() -> ExitCode {
    let command = Command::parse();
    let done = match (command.search, command.one.seed) {
        (Some(Search::Bugs { bugs }), _) if bugs.is_empty() => many::find_bugs(Bug::value_variants()),
        (Some(Search::Bugs { bugs }), _) => many::find_bugs(&bugs),
        (None, Some(seed)) => command.one.run(seed),
        (None, None) => many::simulate(command.total, command.first),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

impl OneRun {
    fn run(self, seed: u64) -> Result<(), String> {
        let begun = Instant::now();
        let scratch = system::scratch();
        system::trust_one_authority(&scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
        let folder = scratch.clone();
        // A thread of its own: the main thread keeps the machine's clock.
        let simulating = std::thread::spawn(move || self.simulate(seed, &folder));
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

    fn simulate(&self, seed: u64, scratch: &std::path::Path) -> Result<Ran, String> {
        towpath::blocking::run_inline();
        system::begin(seed);
        if self.trace {
            trace::print_lines();
        }
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // Tasks that the commit thread woke come behind the others, always: how often the runtime has looked for work
        // differs from run to run.
        let runtime = runtime.enable_time().start_paused(true).global_queue_interval(u32::MAX).build();
        let runtime = runtime.map_err(|e| e.to_string())?;
        let broken = runtime.block_on(async {
            system::follow_runtime();
            run::run(seed, self.hours, self.bug, scratch).await
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
