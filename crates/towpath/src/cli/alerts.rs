//! `towpath alerts`: tests the destinations of alerts.

use clap::Subcommand;
use jiff::Timestamp;

use super::config_args::ConfigArgs;
use super::error::{CliError, Exit};
use super::progress::patiently;
use super::style::{print_output, print_success};
use crate::alerts::{AlertDestination, AlertNotice, AlertSenders};

#[derive(Debug, Subcommand)]
pub(crate) enum AlertsCommand {
    /// Send a message to the webhook and the e-mail addresses of [alerts], and print what became of it
    Test(ConfigArgs),
}

pub(crate) async fn alerts(command: &AlertsCommand) -> Result<Exit, CliError> {
    let AlertsCommand::Test(args) = command;
    let config = args.load()?;
    let Some(alerts) = &config.alerts else {
        return Err(CliError::failed("nobody is told of alerts: the configuration has no [alerts]"));
    };
    let senders = AlertSenders::new(alerts, &config.base_url()).map_err(CliError::usage)?;
    let notice = AlertNotice::test(Timestamp::now());
    let mut failed = Vec::new();
    for destination in senders.destinations() {
        let name = destination.name();
        if destination == AlertDestination::Feed {
            print_success(&format!("{name}: the running server publishes alerts in _events"))?;
            continue;
        }
        let sending = senders.send(None, destination, &notice);
        match patiently("sending the message", sending).await {
            Ok(()) => print_success(&format!("{name}: sent"))?,
            Err(error) => {
                print_output(format!("{name}: {error}\n"))?;
                failed.push(name);
            }
        }
    }
    if failed.is_empty() {
        Ok(Exit::Done)
    } else {
        Err(CliError::failed(format!("cannot tell everybody: {} failed", failed.join(" and "))))
    }
}
