//! Commands for working on towpath: checks and benchmarks.

fn main() {}
