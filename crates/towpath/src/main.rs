//! The towpath program.

fn main() {}
