//! `towpath config`: checks the configuration, and prints what is known of its keys.

use std::io::Write as _;

use clap::Subcommand;

use super::config_args::ConfigArgs;
use super::error::{CliError, Exit};
use crate::alerts::AlertSettings;
use crate::config;
use crate::engine;
use crate::plural::counted;
use crate::server::TlsIdentity;

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

/// Checks the configuration, and the files that it names for the start. `serve` refuses what this refuses.
fn check(args: &ConfigArgs) -> Result<String, CliError> {
    let config = args.load()?;
    let tls = config.server.tls.clone().map(TlsIdentity::read).transpose().err().map(|e| e.to_string());
    let rules = engine::risk_scorer(&config).err().map(|e| e.to_string());
    let alerts = AlertSettings::of(&config, &config.base_url()).err();
    let faults: Vec<String> = [tls, rules, alerts].into_iter().flatten().collect();
    if !faults.is_empty() {
        return Err(CliError::usage(faults.join("\n")));
    }
    let (feeds, tokens) = (counted(config.feeds.len(), "feed"), counted(config.tokens.len(), "token"));
    Ok(format!("the configuration is valid: {feeds}, {tokens}\n"))
}
