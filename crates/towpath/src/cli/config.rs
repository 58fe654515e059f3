//! `towpath config`: checks the configuration, and prints what is known of its keys.

use std::io::Write as _;

use clap::Subcommand;

use super::config_args::ConfigArgs;
use super::error::{CliError, Exit};
use crate::alerts::AlertSenders;
use crate::config;
use crate::plural::counted;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration, and show every error with its place and what to do
    Check(ConfigArgs),
    /// Print a configuration with every key, its default and its meaning
    Example,
    /// Print the reference of all keys, as Markdown
    Reference,
    /// Print the JSON Schema of the configuration, for editors
    Schema,
}

/// Runs a command on the configuration.
pub(crate) fn config(command: &ConfigCommand) -> Result<Exit, CliError> {
    let text = match command {
        ConfigCommand::Check(args) => check(args)?,
        ConfigCommand::Example => config::example(),
        ConfigCommand::Reference => config::reference(),
        ConfigCommand::Schema => format!("{:#}\n", config::json_schema()),
    };
    // A closed standard output, as with `head`, is not an error.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(Exit::Done)
}

fn check(args: &ConfigArgs) -> Result<String, CliError> {
    let config = args.load()?;
    // As `serve` does, which refuses to start otherwise.
    let senders = config.alerts.as_ref().map(|alerts| AlertSenders::new(alerts, &config)).transpose();
    senders.map_err(CliError::usage)?;
    let (feeds, tokens) = (counted(config.feeds.len(), "feed"), counted(config.tokens.len(), "token"));
    Ok(format!("the configuration is valid: {feeds}, {tokens}\n"))
}
