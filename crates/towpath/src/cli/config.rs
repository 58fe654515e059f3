//! `towpath config`: checks the configuration, and prints what is known of its keys.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::config_args::ConfigArgs;
use super::error::{CliError, Exit};
use super::style::{OutputFormat, print_output};
use crate::alerts::AlertSettings;
use crate::config::{self, Config, ConfigError, ConfigProblem, DEFAULT_FILE};
use crate::engine;
use crate::export::check_target;
use crate::plural::counted;
use crate::server::TlsIdentity;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration, and show every error with its place and what to do
    Check(CheckArgs),
    /// Print a configuration with every key, its default and its meaning
    Example,
    /// Print the reference of all keys, as Markdown
    Reference,
    /// Print the JSON Schema of the configuration, for editors
    Schema,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Form of the output; `json` is an object with `problems`, each with its `source`, `line` and `column`
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs a command on the configuration.
pub(crate) fn config(command: &ConfigCommand) -> Result<Exit, CliError> {
    let text = match command {
        ConfigCommand::Check(args) => return check(args),
        ConfigCommand::Example => config::example(),
        ConfigCommand::Reference => config::reference(),
        ConfigCommand::Schema => format!("{:#}\n", config::json_schema()),
    };
    print_output(text)?;
    Ok(Exit::Done)
}

/// Checks the configuration, and the files that it names for the start. `serve` refuses what this refuses.
fn check(args: &CheckArgs) -> Result<Exit, CliError> {
    let loaded = args.config.read();
    let faults = loaded.as_ref().map(file_faults).unwrap_or_default();
    let text = match (args.format, &loaded) {
        (OutputFormat::Json, loaded) => format!("{}\n", as_json(loaded.as_ref().err(), &faults)),
        (OutputFormat::Text, Ok(config)) if faults.is_empty() => {
            let tokens = config.server.tokens.len() + config.tokens.len();
            let (feeds, tokens) = (counted(config.feeds.len(), "feed"), counted(tokens, "token"));
            match config.files.is_empty() {
                true => {
                    format!("there is no {DEFAULT_FILE} here: a server runs with the defaults, {feeds}\n")
                }
                false => format!("the configuration is valid: {feeds}, {tokens}\n{}", warnings(config)),
            }
        }
        (OutputFormat::Text, Ok(_)) => return Err(CliError::usage(faults.join("\n"))),
        (OutputFormat::Text, Err(_)) => return loaded.map(|_| Exit::Done).map_err(CliError::from),
    };
    print_output(text)?;
    Ok(if loaded.is_ok() && faults.is_empty() { Exit::Done } else { Exit::Usage })
}

/// Returns warnings of what is valid, and probably not meant. Feeds may also be made over HTTP.
fn warnings(config: &Config) -> String {
    let is_named = |id: &str| config.feeds.iter().any(|feed| feed.id().as_str() == id);
    let warnings = config.warnings_of_unknown_feeds(is_named);
    warnings.iter().map(|warning| format!("warning: {warning}, unless it is made over HTTP\n")).collect()
}

/// Returns what is wrong with the files and places that a configuration names.
fn file_faults(config: &Config) -> Vec<String> {
    let tls = config.server.tls.clone().map(TlsIdentity::read).transpose().err().map(|e| e.to_string());
    let rules = engine::risk_scorer(config).err().map(|e| e.to_string());
    let alerts = AlertSettings::of(config, &config.base_url()).err();
    let tree = config.export.as_ref().and_then(|export| check_target(&export.to, &config.server.data).err());
    let tree = tree.map(|e| format!("[export] to: {e}"));
    [tls, rules, alerts, tree].into_iter().flatten().collect()
}

fn as_json(error: Option<&ConfigError>, faults: &[String]) -> Value {
    let of_configuration = match error {
        None => Vec::new(),
        Some(ConfigError::Read { path, reason }) => {
            vec![json!({ "source": path, "line": null, "column": null, "message": reason })]
        }
        Some(ConfigError::Invalid(problems)) => problems
            .iter()
            .map(|ConfigProblem { source, place, message }| {
                let (line, column) = place.unzip();
                json!({ "source": source, "line": line, "column": column, "message": message })
            })
            .collect(),
    };
    let of_files =
        faults.iter().map(|fault| json!({ "source": null, "line": null, "column": null, "message": fault }));
    json!({ "problems": of_configuration.into_iter().chain(of_files).collect::<Vec<_>>() })
}
