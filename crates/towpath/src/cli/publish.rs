//! `towpath put`, `delete` and `import`: publishing through a running server, or straight into the data folder.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{Method, header};
use serde_json::Value;
use towpath_proto::follow::{Request, RequestId, ResponseHead, TransferError};
use towpath_proto::line::Line;
use towpath_proto::{Content, FeedId, Item, NewChange, Op};
use towpath_store::Expected;
use url::Url;

use super::follow::parse_url;
use super::{CliError, ConfigArgs, Exit, import, open};
use crate::client::{FetchOptions, Fetcher, Whole};
use crate::config::Config;
use crate::engine::{Engine, diffdelta};

/// Where to publish.
#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The server to speak to [default: the configuration's, if it runs; else the data folder]
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    server: Option<Url>,
    /// The token to publish with [default: the configuration's first]
    #[arg(long, value_name = "TOKEN", env = "TOWPATH_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// The feed's id
    feed: String,
    /// The item's id
    id: String,
    /// The content's media type [default: by the file's name, else text/plain or application/octet-stream]
    #[arg(long = "type", value_name = "MEDIA")]
    media_type: Option<String>,
    /// The item's title
    #[arg(long, value_name = "T")]
    title: Option<String>,
    /// The address of what the item is about
    #[arg(long, value_name = "U")]
    url: Option<String>,
    /// The content; "-" reads standard input [default: no content]
    file: Option<PathBuf>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// The feed's id
    feed: String,
    /// The item's id
    id: String,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The feed's id
    feed: String,
    /// NDJSON (as `towpath follow` prints it), RSS, Atom or JSON Feed; "-" reads standard input
    file: PathBuf,
    #[command(flatten)]
    target: TargetArgs,
}

pub(crate) async fn put(args: PutArgs) -> Result<Exit, CliError> {
    let feed = feed_id(&args.feed)?;
    let mut item = Item::new(args.id);
    item.check().map_err(|e| CliError::usage(e.to_string()))?;
    item.title = args.title;
    item.url = args.url;
    item.content = match &args.file {
        Some(file) => Some(content(file, args.media_type)?),
        None if args.media_type.is_some() => return Err(CliError::usage("--type without a FILE")),
        None => None,
    };
    let target = args.target.open().await?;
    target.append(&feed, vec![NewChange::put(item)]).await?;
    target.close().await;
    Ok(Exit::Done)
}

pub(crate) async fn delete(args: DeleteArgs) -> Result<Exit, CliError> {
    let feed = feed_id(&args.feed)?;
    let target = args.target.open().await?;
    let deleted = target.delete(&feed, &args.id).await;
    target.close().await;
    deleted?;
    Ok(Exit::Done)
}

pub(crate) async fn import(args: ImportArgs) -> Result<Exit, CliError> {
    let feed = feed_id(&args.feed)?;
    let target = args.target.open().await?;
    let imported = import::import(&target, &feed, &args.file).await;
    target.close().await;
    eprintln!("imported {} changes into {feed}", imported?);
    Ok(Exit::Done)
}

pub(super) fn feed_id(text: &str) -> Result<FeedId, CliError> {
    FeedId::new(text).map_err(|e| CliError::usage(e.to_string()))
}

fn content(file: &Path, media_type: Option<String>) -> Result<Content, CliError> {
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes).map(drop)
    } else {
        std::fs::read(file).map(|read| bytes = read)
    };
    read.map_err(|e| CliError::failed(format!("cannot read {}: {e}", file.display())))?;
    let media_type = media_type.unwrap_or_else(|| guess(file, &bytes).to_owned());
    let content = Content::new(media_type, bytes);
    content.check_type().map_err(|e| CliError::usage(e.to_string()))?;
    Ok(content)
}

fn guess(file: &Path, bytes: &[u8]) -> &'static str {
    match file.extension().and_then(|e| e.to_str()).unwrap_or_default() {
        "json" => "application/json",
        "html" | "htm" => "text/html; charset=utf-8",
        "xml" => "application/xml",
        "md" => "text/markdown; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "pdf" => "application/pdf",
        _ if std::str::from_utf8(bytes).is_ok() => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// Where changes go: a running server, or the data folder.
pub(crate) enum Target {
    /// Over HTTP.
    Server(Server),
    /// Into the folder, which this process has for itself.
    Folder(Arc<Engine>),
}

impl TargetArgs {
    /// Finds a running server, or opens the data folder.
    pub(crate) async fn open(&self) -> Result<Target, CliError> {
        let config = self.config.load()?;
        let fetcher =
            Fetcher::new(FetchOptions { connect_timeout: Duration::from_secs(5), ..FetchOptions::default() });
        let fetcher = fetcher.map_err(|e| CliError::failed(e.to_string()))?;
        let token = self.token.clone().or_else(|| config.server.tokens.first().cloned());
        if let Some(base) = &self.server {
            return Ok(Target::Server(Server {
                fetcher,
                base: base.as_str().trim_end_matches('/').to_owned(),
                token,
            }));
        }
        let server = Server { fetcher, base: config.local_url(), token };
        if server.is_towpath().await {
            return Ok(Target::Server(server));
        }
        Ok(Target::Folder(open::engine(config).await?))
    }
}

/// Whether a server of this configuration runs on this machine.
pub(crate) async fn is_running(fetcher: Fetcher, config: &Config) -> bool {
    Server { fetcher, base: config.local_url(), token: None }.is_towpath().await
}

impl Target {
    /// Appends a batch.
    pub(crate) async fn append(&self, feed: &FeedId, changes: Vec<NewChange>) -> Result<(), CliError> {
        match self {
            Self::Server(server) => server.append(feed, &changes).await,
            Self::Folder(engine) => {
                let Some(known) = engine.feed_to_publish(feed) else {
                    return Err(CliError::usage(format!("the configuration has no feed {feed:?}")));
                };
                if let Some(why) = known.not_published_to() {
                    return Err(CliError::failed(why));
                }
                let now = engine.now();
                let changes = changes.into_iter().map(|change| change.not_after(now)).collect();
                let appended = engine.store.append(feed, Expected::Any, changes).await;
                appended.map(drop).map_err(|e| CliError::failed(e.to_string()))
            }
        }
    }

    async fn delete(&self, feed: &FeedId, id: &str) -> Result<(), CliError> {
        match self {
            Self::Server(server) => server.delete(feed, id).await,
            Self::Folder(engine) => {
                let latest = engine.store.latest(feed, id).await?;
                if latest.is_none_or(|latest| latest.op == Op::Delete) {
                    return Err(CliError::failed(format!("feed {feed} has no item {id:?}")));
                }
                self.append(feed, vec![NewChange::delete(id)]).await
            }
        }
    }

    /// Publishes what was appended to the folder, and lets go of it.
    pub(crate) async fn close(&self) {
        if let Self::Folder(engine) = self {
            if let Err(e) = diffdelta::settle(engine, false).await {
                eprintln!("towpath: the documents will be made when the server starts: {e}");
            }
            engine.store.close().await;
        }
    }
}

/// A running towpath.
pub(crate) struct Server {
    fetcher: Fetcher,
    base: String,
    token: Option<String>,
}

impl Server {
    async fn is_towpath(&self) -> bool {
        let Ok((200, body)) = self.send(Request::get(RequestId(0), format!("{}/feeds", self.base))).await
        else {
            return false;
        };
        serde_json::from_slice::<Value>(&body).is_ok_and(|list| list["service"] == "towpath")
    }

    async fn append(&self, feed: &FeedId, changes: &[NewChange]) -> Result<(), CliError> {
        let mut body = Vec::new();
        for change in changes {
            let mut line = Line::new(change.op, &change.item, change.patch.as_ref());
            line.modified = change.modified;
            serde_json::to_writer(&mut body, &line).map_err(|e| CliError::failed(e.to_string()))?;
            body.push(b'\n');
        }
        let request = Request::get(RequestId(0), format!("{}/feeds/{feed}/items", self.base));
        let request = request.with(header::CONTENT_TYPE, "application/x-ndjson");
        self.change(Request { method: Method::POST, body: body.into(), ..request }).await.map(drop)
    }

    async fn delete(&self, feed: &FeedId, id: &str) -> Result<(), CliError> {
        let url = crate::server::item_url(&self.base, feed, id);
        self.change(Request { method: Method::DELETE, ..Request::get(RequestId(0), url) }).await.map(drop)
    }

    /// Has a snapshot made, and returns its address.
    pub(crate) async fn snapshot(&self, feed: &FeedId) -> Result<String, CliError> {
        let url = format!("{}/feeds/{feed}/snapshots", self.base);
        let request = Request::get(RequestId(0), &url);
        // Ten million items take minutes.
        let patience = Duration::from_secs(24 * 3600);
        let head = self.change(Request { method: Method::POST, patience, ..request }).await?;
        let made = head.header("location").map(str::to_owned);
        made.ok_or_else(|| CliError::failed(format!("{url}: the answer does not say where the snapshot is")))
    }

    async fn change(&self, request: Request) -> Result<ResponseHead, CliError> {
        let request = self.signed(request);
        let url = request.url.clone();
        match self.fetcher.fetch_whole(&request).await {
            Ok(Whole { head, .. }) if (200..300).contains(&head.status) => Ok(head),
            Ok(Whole { head: ResponseHead { status, .. }, body, .. }) => {
                Err(CliError::failed(format!("{url}: {status}: {}", detail(&body))))
            }
            Err(e) => Err(CliError::failed(format!("{url}: {e}"))),
        }
    }

    /// Every feed that may be read, and how it is.
    pub(crate) async fn feeds(&self) -> Result<Vec<Value>, CliError> {
        let url = format!("{}/feeds?status", self.base);
        let mut list = self.json(&url).await?;
        match list["feeds"].take() {
            Value::Array(feeds) => Ok(feeds),
            _ => Err(CliError::failed(format!("{url}: no list of feeds"))),
        }
    }

    async fn json(&self, url: &str) -> Result<Value, CliError> {
        let (status, body) = self
            .send(self.signed(Request::get(RequestId(0), url)))
            .await
            .map_err(|e| CliError::failed(format!("{url}: {e}")))?;
        if status != 200 {
            return Err(CliError::failed(format!("{url}: {status}: {}", detail(&body))));
        }
        serde_json::from_slice(&body).map_err(|e| CliError::failed(format!("{url}: not JSON: {e}")))
    }

    /// With the token, if there is one.
    fn signed(&self, request: Request) -> Request {
        match &self.token {
            Some(token) => request.with(header::AUTHORIZATION, &format!("Bearer {token}")),
            None => request,
        }
    }

    async fn send(&self, request: Request) -> Result<(u16, Bytes), TransferError> {
        let whole = self.fetcher.fetch_whole(&request).await?;
        Ok((whole.head.status, whole.body))
    }
}

/// What a problem document says.
fn detail(body: &[u8]) -> String {
    let problem: Option<Value> = serde_json::from_slice(body).ok();
    let detail = problem.as_ref().and_then(|problem| problem["detail"].as_str());
    detail.map_or_else(|| String::from_utf8_lossy(body).chars().take(200).collect(), str::to_owned)
}
