//! `towpath reload`: asks the running server to read its configuration again, and waits for the result.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

use super::RESULT;
use crate::cli::config_args::ConfigArgs;
use crate::cli::error::{CliError, Exit};
use crate::cli::progress::patiently;
use crate::cli::running_server::{FolderUser, RunningServer, user_of};
use crate::cli::style::print_success;

/// Longest wait for the server.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

/// Asks the server that has the data folder open, and prints what changed.
pub(crate) async fn reload(args: &ReloadArgs) -> Result<Exit, CliError> {
    // The server reads the rest of it.
    let folder = args.config.data_folder()?;
    let process = match user_of(&folder) {
        FolderUser::Server(RunningServer { process, .. }) => process,
        // The signal would end another command.
        FolderUser::Nobody | FolderUser::Process(_) => {
            return Err(CliError::failed(format!("no server has the data folder {} open", folder.display())));
        }
    };
    let before = result(&folder);
    let pid = process.parse().ok().and_then(Pid::from_raw);
    let sent = pid.map(|pid| kill_process(pid, Signal::HUP));
    match sent {
        Some(Ok(())) => {}
        Some(Err(e)) => {
            return Err(CliError::failed(format!("cannot ask the server, process {process}: {e}")));
        }
        None => return Err(CliError::failed(format!("{process:?} is not the id of a process"))),
    }
    let outcome = patiently("waiting for the server", outcome(&folder, &before, process)).await;
    if outcome.is_err() {
        // Mistakes of the configuration are told with their own status.
        args.config.load()?;
    }
    outcome
}

/// Waits for the server's result, and prints it.
async fn outcome(folder: &Path, before: &str, process: String) -> Result<Exit, CliError> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        let after = result(folder);
        if after != before
            && let Some((_, status, message)) = split(&after)
        {
            return if status == "ok" {
                print_success(message)?;
                Ok(Exit::Done)
            } else {
                Err(CliError::failed(message.to_owned()))
            };
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(CliError::failed(format!(
        "the server, process {process}, gave no answer within {} s",
        PATIENCE.as_secs()
    )))
}

fn result(folder: &Path) -> String {
    std::fs::read_to_string(folder.join(RESULT)).unwrap_or_default()
}

/// Splits a result into its number, its status and its message.
fn split(text: &str) -> Option<(&str, &str, &str)> {
    let (number, rest) = text.split_once('\n')?;
    let (status, message) = rest.split_once('\n')?;
    Some((number, status, message.trim_end()))
}
