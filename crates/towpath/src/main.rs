//! The towpath program.

use std::process::ExitCode;

fn main() -> ExitCode {
    towpath::cli::main()
}
