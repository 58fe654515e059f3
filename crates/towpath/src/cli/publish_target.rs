//! Destination of commands that publish: a running server, or the data folder.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use towpath_client::{FetchOptions, Fetcher, PublishError};
use towpath_proto::{FeedId, NewChange, Op};
use towpath_store::Expected;
use url::Url;

use super::config_args::ConfigArgs;
use super::error::CliError;
use super::feed_url::parse_url;
use super::open;
use super::progress::{PUBLISHING, patiently};
use super::receipt::Receipt;
use super::running_server::{FolderUser, RunningServer, user_of};
use super::server_commands::ServerCommands;
use crate::config::{Config, Secret, TokenConfig, TokenDigest, TokenRight, nearest};
use crate::engine::publish::{Published, publish_changes};
use crate::engine::request::nearest_feed;
use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta;

/// Options that select the server or data folder.
#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// URL of the server [default: the server that has the data folder open, else the folder itself]
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    server: Option<Url>,
    /// Bearer token for publishing [default: the first in the configuration]
    #[arg(long, value_name = "TOKEN", env = "TOWPATH_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

/// Returns the feed of a name in an opened folder.
pub(super) fn known_feed(engine: &Engine, id: &FeedId) -> Result<Arc<Feed>, CliError> {
    engine.feed(id.as_str()).ok_or_else(|| unknown_feed(engine, id))
}

/// Makes the error for a feed that is not there, with the name that was probably meant.
fn unknown_feed(engine: &Engine, id: &FeedId) -> CliError {
    no_feed(id, nearest_feed(engine, id.as_str(), |_| true).as_deref())
}

fn no_feed(id: &FeedId, nearest: Option<&str>) -> CliError {
    let hint = nearest.map_or_else(String::new, |near| format!("; did you mean {near}?"));
    CliError::usage(format!("the configuration has no feed {:?}{hint}", id.as_str()))
}

/// Parses the id of a feed.
pub(super) fn feed_id(text: &str) -> Result<FeedId, CliError> {
    FeedId::new(text).map_err(|e| CliError::usage(e.to_string()))
}

/// Server that runs, or the configuration of a folder that no process has open.
pub(super) enum FoundTarget {
    Server(ServerCommands),
    Folder(Box<Config>),
}

/// Destination of changes: a running server, or the data folder.
pub(crate) enum PublishTarget {
    /// A server, over HTTP.
    Server(ServerCommands),
    /// The data folder, which this process has opened.
    Folder(Arc<Engine>),
}

impl TargetArgs {
    /// Finds a running server, or opens the data folder.
    pub(crate) async fn open(&self) -> Result<PublishTarget, CliError> {
        match self.find().await? {
            FoundTarget::Server(server) => Ok(PublishTarget::Server(server)),
            FoundTarget::Folder(config) => Ok(PublishTarget::Folder(open::engine(*config).await?)),
        }
    }

    /// Finds a running server, or opens the data folder, to publish to a feed.
    pub(super) async fn open_for(&self, feed: &FeedId) -> Result<PublishTarget, CliError> {
        match self.find().await? {
            FoundTarget::Server(server) => Ok(PublishTarget::Server(server)),
            FoundTarget::Folder(config) => {
                // A mistyped name must not leave an empty data folder behind.
                let server = &config.server;
                let is_new = !server.data.exists() && server.cluster.is_none();
                let is_known =
                    server.create_feeds || config.feeds.iter().any(|known| known.id.get_ref() == feed);
                if is_new && !is_known {
                    let names: Vec<&str> =
                        config.feeds.iter().map(|known| known.id.get_ref().as_str()).collect();
                    return Err(no_feed(feed, nearest(feed.as_str(), &names)));
                }
                Ok(PublishTarget::Folder(open::engine(*config).await?))
            }
        }
    }

    /// Returns the URL of the server, whether it answers or not.
    pub(super) fn url(&self) -> Result<String, CliError> {
        if let Some(base) = &self.server {
            return Ok(base.as_str().trim_end_matches('/').to_owned());
        }
        let config = self.config.load()?;
        Ok(match user_of(&config.server.data) {
            // With port 0 the system chose the port.
            FolderUser::Server(server) => server.url,
            // A server that starts has no record yet.
            FolderUser::Process(_) | FolderUser::Nobody => config.local_url(),
        })
    }

    /// Finds a running server, and opens nothing.
    pub(super) async fn find(&self) -> Result<FoundTarget, CliError> {
        let config = self.config.load()?;
        let fetcher =
            // A person waits: a server on this machine or in this network answers at once, or not at all.
            Fetcher::new(FetchOptions::default().with_connect_timeout(Duration::from_secs(5)));
        let fetcher = fetcher.map_err(|e| CliError::failed(e.to_string()))?;
        let token = self.token.clone().or_else(|| publishing_token(&config));
        if let Some(base) = &self.server {
            let server = ServerCommands::new(base.as_str(), token.as_deref(), &fetcher)?;
            return Ok(FoundTarget::Server(server));
        }
        if self.config.is_without_folder(&config) {
            let base = config.local_url();
            let server = ServerCommands::new(&base, token.as_deref(), &fetcher)?;
            // No folder is meant, so the server at the usual address is. Elsewhere its folder decides.
            if server.instance().await.is_ok_and(|found| found.is_some()) {
                eprintln!("towpath: asking the server at {base}");
                return Ok(FoundTarget::Server(server));
            }
        }
        let folder = config.server.data.display().to_string();
        let RunningServer { url, instance, .. } = match user_of(&config.server.data) {
            FolderUser::Nobody => return Ok(FoundTarget::Folder(Box::new(config))),
            FolderUser::Server(server) => server,
            FolderUser::Process(process) => {
                return Err(CliError::failed(format!(
                    "the data folder {folder} is open in process {process}, which is no server that commands find: wait \
                     until it has ended, or name a server with --server"
                )));
            }
        };
        let server = ServerCommands::new(&url, token.as_deref(), &fetcher)?;
        let base = &url;
        let problem = match server.instance().await {
            Ok(Some(found)) if found == instance => return Ok(FoundTarget::Server(server)),
            // Such as another node behind a balancer.
            Ok(_) => format!("is not the one that answers at {base}"),
            Err(PublishError::Transfer { source, .. }) => format!("does not answer at {base} ({source})"),
            Err(error) => format!("does not answer at {base} ({error})"),
        };
        Err(CliError::failed(format!(
            "the server that has the data folder {folder} open {problem}: name its URL with --server"
        )))
    }
}

/// Returns a token of the configuration that may publish. A hash is of no use to a client.
fn publishing_token(config: &Config) -> Option<String> {
    let plain = |token: &&Secret| TokenDigest::parse(token.expose()).is_none();
    let publishes = |token: &&TokenConfig| token.rights.iter().any(|right| *right != TokenRight::Read);
    let named = config.tokens.iter().filter(publishes).filter_map(|token| token.token.as_ref());
    config.server.tokens.iter().filter(plain).chain(named).map(|token| token.expose().to_owned()).next()
}

impl PublishTarget {
    /// Appends a batch.
    pub(crate) async fn append(&self, feed: &FeedId, changes: Vec<NewChange>) -> Result<Receipt, CliError> {
        match self {
            Self::Server(server) => server.append(feed, &changes).await,
            Self::Folder(engine) => {
                let known = engine.feed_to_publish(feed).ok_or_else(|| unknown_feed(engine, feed))?;
                if let Some(why) = known.not_published_to() {
                    return Err(CliError::failed(why));
                }
                let now = engine.now();
                // Times in the future would push the feed's clock forward: modified never decreases along a log.
                let changes: Vec<NewChange> =
                    changes.into_iter().map(|change| change.not_after(now)).collect();
                let count = changes.len();
                let published = publish_changes(engine, feed, Expected::Any, changes).await;
                let Published { appended, unchanged, changed } =
                    published.map_err(|e| CliError::failed(e.to_string()))?;
                Ok(Receipt { appended: count - unchanged, changed, unchanged, last: appended.head.seq })
            }
        }
    }

    /// Returns the end of a receipt, which names a folder that the changes went into and that no server has open.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Server(_) => String::new(),
            Self::Folder(engine) => {
                let folder = engine.config.server.data.display();
                format!(", in the data folder {folder}, which no server has open")
            }
        }
    }

    /// Deletes an item.
    pub(crate) async fn delete(&self, feed: &FeedId, id: &str) -> Result<Receipt, CliError> {
        match self {
            Self::Server(server) => server.delete(feed, id).await,
            Self::Folder(engine) => {
                known_feed(engine, feed)?;
                let latest = engine.store.latest(feed, id).await?;
                // Like the server, which responds 404 for an item that does not exist.
                if latest.is_none_or(|latest| latest.op == Op::Delete) {
                    return Err(CliError::no_item(feed, id));
                }
                self.append(feed, vec![NewChange::delete(id)]).await
            }
        }
    }

    /// Publishes appended changes of the folder, and closes it.
    pub(crate) async fn close(&self) {
        if let Self::Folder(engine) = self {
            let publishing = diffdelta::publish_pending(engine, diffdelta::HeldRole::Leave);
            if let Err(e) = patiently(PUBLISHING, publishing).await {
                eprintln!("towpath: cannot publish documents now, the server will do so when it starts: {e}");
            }
            engine.store.close().await;
        }
    }
}
