//! `towpath sink`: the sinks of a running server.

use clap::{Args, Subcommand};
use http::Method;
use serde_json::Value;

use super::error::{CliError, Exit};
use super::publish_target::{PublishTarget, TargetArgs};
use super::server_commands::ServerCommands;
use super::style::{self, OutputFormat, now_on_terminal, print_output, shown_time};
use super::terminal::plain;
use crate::plural::counted;

#[derive(Debug, Subcommand)]
pub(crate) enum SinkCommand {
    /// List the sinks, with their state, lag and dead letters
    List(ListArgs),
    /// Deliver nothing until the sink is resumed
    Pause(NamedSink),
    /// Deliver from where the sink stopped, at once
    Resume(NamedSink),
    /// Print the items that the destination refused, one JSON object per line
    Letters(NamedSink),
    /// Send the items that the destination refused again
    Resend(NamedSink),
    /// Drop the items that the destination refused
    Drop(NamedSink),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Form of the output; `json` is the list of the server
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct NamedSink {
    /// Name of the sink in the configuration
    name: String,
    /// Form of the output; letters are JSON in any case
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    target: TargetArgs,
}

/// Runs a command on the sinks of a server.
pub(crate) async fn sink(command: &SinkCommand) -> Result<Exit, CliError> {
    let text = match command {
        SinkCommand::List(ListArgs { format, target }) => {
            let list = server(target).await?.sinks(Method::GET, "").await?;
            match format {
                OutputFormat::Json => format!("{list}\n"),
                OutputFormat::Text => {
                    let sinks = list["sinks"].as_array().map(Vec::as_slice).unwrap_or_default();
                    let now = now_on_terminal();
                    table(sinks, |time| shown_time(time, now))
                }
            }
        }
        SinkCommand::Pause(sink) => row(sink, &ask(sink, Method::POST, "pause").await?),
        SinkCommand::Resume(sink) => row(sink, &ask(sink, Method::POST, "resume").await?),
        SinkCommand::Resend(sink) => row(sink, &ask(sink, Method::POST, "resend").await?),
        SinkCommand::Letters(sink) => {
            let list = ask(sink, Method::GET, "letters").await?;
            let letters = list["letters"].as_array().map(Vec::as_slice).unwrap_or_default();
            letters.iter().map(|letter| format!("{letter}\n")).collect()
        }
        SinkCommand::Drop(sink) => {
            let answer = ask(sink, Method::DELETE, "letters").await?;
            match sink.format {
                OutputFormat::Json => format!("{answer}\n"),
                OutputFormat::Text => {
                    format!("dropped {}\n", counted(answer["dropped"].as_u64().unwrap_or(0), "item"))
                }
            }
        }
    };
    print_output(text)?;
    Ok(Exit::Done)
}

async fn ask(sink: &NamedSink, method: Method, what: &str) -> Result<Value, CliError> {
    server(&sink.target).await?.sinks(method, &format!("/{}/{what}", sink.name)).await
}

async fn server(target: &TargetArgs) -> Result<ServerCommands, CliError> {
    match target.open().await? {
        PublishTarget::Server(server) => Ok(server),
        folder @ PublishTarget::Folder(_) => {
            folder.close().await;
            Err(CliError::failed(
                "no server runs that would keep sinks: start it with towpath serve, or name it with --server",
            ))
        }
    }
}

const HEAD: [&str; 8] =
    ["sink", "kind", "state", "lag", "delivered", "dead letters", "last delivery", "destination"];

/// Returns what is wrong with a sink, as the server tells it among the node's problems.
pub(super) fn problem(sink: &Value) -> Option<String> {
    let message = sink["error"]["message"].as_str()?;
    Some(format!("sink {}: {message}", sink["name"].as_str().unwrap_or_default()))
}

/// Formats sinks as a table, with their errors below. `time` formats a time.
pub(super) fn table(sinks: &[Value], time: impl Fn(&str) -> String) -> String {
    let cells = |sink: &Value| {
        let text = |key: &str| sink[key].as_str().map_or_else(|| sink[key].to_string(), str::to_owned);
        let last = sink["last_delivery"].as_str().map_or_else(|| "-".to_owned(), &time);
        let [name, kind, state, lag, delivered, letters, into] =
            ["name", "kind", "state", "lag", "delivered", "dead_letters", "into"]
                .map(|key| plain(&text(key)));
        [name, kind, state, lag, delivered, letters, last, into]
    };
    let rows: Vec<[String; HEAD.len()]> = sinks.iter().map(cells).collect();
    let mut text = style::table(HEAD, &rows);
    for sink in sinks {
        if let Some(message) = sink["error"]["message"].as_str() {
            let since = time(sink["error"]["since"].as_str().unwrap_or_default());
            let name = sink["name"].as_str().unwrap_or_default();
            text.push_str(&format!("{name}: since {since}: {}\n", plain(message)));
        }
    }
    text
}

fn row(args: &NamedSink, sink: &Value) -> String {
    let now = now_on_terminal();
    match args.format {
        OutputFormat::Json => format!("{sink}\n"),
        OutputFormat::Text => table(std::slice::from_ref(sink), |time| shown_time(time, now)),
    }
}
