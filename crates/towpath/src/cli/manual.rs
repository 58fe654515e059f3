//! `towpath completions` and `towpath man`: descriptions of the commands for shells and `man`, made from the commands.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use super::error::{CliError, Exit};
use super::style::print_output;

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell that completes the commands
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Folder for the manual pages, made if it is not there
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Prints the completions of a shell.
pub(crate) fn completions(args: &CompletionsArgs, mut program: Command) -> Result<Exit, CliError> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut program, "towpath", &mut text);
    print_output(text)?;
    Ok(Exit::Done)
}

/// Writes a manual page for each command.
pub(crate) fn man(args: &ManArgs, program: Command) -> Result<Exit, CliError> {
    let folder = &args.folder;
    let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(program, folder));
    written
        .map_err(|e| CliError::failed(format!("cannot write manual pages to {}: {e}", folder.display())))?;
    Ok(Exit::Done)
}
