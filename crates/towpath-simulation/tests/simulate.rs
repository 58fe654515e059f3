//! Runs of the simulation, each in a process of its own.

#![cfg(target_os = "linux")]

use std::process::{Command, Output};

/// Simulated hours of each run here. `cargo xtask simulate` has thousands.
const HOURS: &str = "1";

fn simulation(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_towpath-simulation")).args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn a_seed_runs_the_same_again_and_keeps_all_promises() {
    let run = |seed: &'static str| {
        std::thread::spawn(move || simulation(&["--seed", seed, "--hours", HOURS, "--trace"]))
    };
    let [first, second, other] = ["7", "7", "8"].map(run).map(|run| run.join().unwrap());
    assert!(first.status.success(), "{}", text(&first));
    assert!(other.status.success(), "{}", text(&other));
    // The last line has the time that it took.
    let trace = |output: &Output| {
        let text = text(output);
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines[..lines.len() - 1].to_vec()
    };
    let (first, second, other) = (trace(&first), trace(&second), trace(&other));
    assert!(first.len() > 500, "{}", first.len());
    let differs = first.iter().zip(&second).find(|(one, other)| one != other);
    assert_eq!(differs, None);
    assert_eq!(first.len(), second.len());
    assert!(first.iter().zip(&other).any(|(one, other)| one != other), "another seed is another history");
}

#[test]
fn a_planted_bug_is_found() {
    // A follower that loses changes; `cargo xtask simulate bugs` plants all of them.
    let run = |seed: &'static str| {
        let args = ["--seed", seed, "--hours", "3", "--bug", "drop-change"];
        std::thread::spawn(move || text(&simulation(&args)))
    };
    let runs = ["1", "2"].map(run).map(|run| run.join().unwrap());
    assert!(runs.iter().any(|text| text.contains("BROKEN") && text.contains("differs")), "{runs:?}");
}
