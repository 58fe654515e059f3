//! `towpath-simulation`: one run of a seed, many runs, or a search for planted bugs.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    towpath_simulation::command::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("the simulation replaces functions of the C library of Linux, and runs there only");
}
