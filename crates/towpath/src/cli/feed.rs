//! `towpath feed`: feeds of a running server that are made and removed over HTTP.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::error::{CliError, Exit};
use super::publish_target::{PublishTarget, TargetArgs, feed_id};
use super::server_commands::ServerCommands;
use super::style::{OutputFormat, now_on_terminal, print_output, print_result, shown_time, table};
use super::terminal::plain;

#[derive(Debug, Subcommand)]
pub(crate) enum FeedCommand {
    /// List the feeds, with where each comes from
    List(ListArgs),
    /// Make a feed, or change one that was made so; the configuration file stays as it is
    Add(AddArgs),
    /// Remove a feed that was made so; those who follow it are told that it is gone
    Remove(RemoveArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Form of the output
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// Id of the feed
    feed: String,
    /// Title for people
    #[arg(long, value_name = "T")]
    title: Option<String>,
    /// URL of a document to poll
    #[arg(long, value_name = "URL", conflicts_with = "follow")]
    url: Option<String>,
    /// URL of a feed to mirror
    #[arg(long, value_name = "URL")]
    follow: Option<String>,
    /// Poll interval of the source
    #[arg(long, value_name = "TIME")]
    every: Option<String>,
    /// Ask readers for a token
    #[arg(long)]
    private: bool,
    /// File with all settings as JSON, with the keys of `[[feed]]`; options go before it
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Form of the receipt
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// Id of the feed
    feed: String,
    /// Words for those who follow it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Form of the receipt
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    target: TargetArgs,
}

/// Runs a command on the feeds of a server.
pub(crate) async fn feed(command: FeedCommand) -> Result<Exit, CliError> {
    match command {
        FeedCommand::List(args) => {
            let (feeds, ..) = server(&args.target).await?.feeds().await?;
            let text = match args.format {
                OutputFormat::Json => format!("{}\n", json!({ "feeds": feeds })),
                OutputFormat::Text => list(&feeds),
            };
            print_output(text)?;
        }
        FeedCommand::Add(args) => {
            let (id, settings) = (feed_id(&args.feed)?, settings(&args)?);
            let made = server(&args.target).await?.put_feed(&id, &settings).await?;
            print_result(
                args.format,
                &format!("feed {id} is served: publish to it, or let its source be polled"),
                &made,
            )?;
        }
        FeedCommand::Remove(args) => {
            let id = feed_id(&args.feed)?;
            let removed = server(&args.target).await?.remove_feed(&id, args.reason.as_deref()).await?;
            print_result(
                args.format,
                &format!("feed {id} is removed; its log stays in the data folder"),
                &removed,
            )?;
        }
    }
    Ok(Exit::Done)
}

async fn server(target: &TargetArgs) -> Result<ServerCommands, CliError> {
    match target.open().await? {
        PublishTarget::Server(server) => Ok(server),
        folder @ PublishTarget::Folder(_) => {
            folder.close().await;
            Err(CliError::failed(
                "no server runs: start it with towpath serve, or name it with --server; without one, feeds are in the \
                 configuration file",
            ))
        }
    }
}

fn settings(args: &AddArgs) -> Result<Map<String, Value>, CliError> {
    let mut settings: Map<String, Value> = match &args.json {
        None => Map::new(),
        Some(file) => {
            let shown = file.display();
            let text =
                std::fs::read(file).map_err(|e| CliError::failed(format!("cannot read {shown}: {e}")))?;
            serde_json::from_slice(&text)
                .map_err(|e| CliError::usage(format!("{shown} is not a JSON object of settings: {e}")))?
        }
    };
    if let Some(title) = &args.title {
        settings.insert("title".into(), title.as_str().into());
    }
    if args.private {
        settings.insert("visibility".into(), "private".into());
    }
    let of_source = [("url", &args.url), ("follow", &args.follow), ("every", &args.every)];
    for (key, value) in of_source.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?))) {
        let source = settings.entry("source").or_insert_with(|| json!({}));
        source[key] = value.as_str().into();
    }
    Ok(settings)
}

fn list(feeds: &[Value]) -> String {
    let now = now_on_terminal();
    let row = |feed: &Value| {
        let text = |key: &str| match &feed[key] {
            Value::String(text) => text.clone(),
            // A filter has no log of its own.
            Value::Null => "-".to_owned(),
            value => value.to_string(),
        };
        let modified = feed["modified"].as_str().map_or_else(|| "-".to_owned(), |time| shown_time(time, now));
        let from = if feed["made_over_http"] == true { "http" } else { "file" };
        [plain(&text("id")), from.to_owned(), text("live"), modified, plain(&text("title"))]
    };
    table(["feed", "from", "items", "modified", "title"], &feeds.iter().map(row).collect::<Vec<_>>())
}
