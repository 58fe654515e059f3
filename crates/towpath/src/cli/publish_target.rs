//! Destination of commands that publish: a running server, or the data folder.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{Method, header};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use towpath_client::publish::problem_detail;
use towpath_client::{FetchOptions, Fetcher, FullResponse};
use towpath_proto::change::Seq;
use towpath_proto::follow::{Request, RequestId, ResponseHead, TransferError};
use towpath_proto::line::Line;
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
use crate::config::{Config, Secret, TokenConfig, TokenDigest, TokenRight, nearest};
use crate::engine::item_versions::ItemVersions;
use crate::engine::publish::{Published, publish_changes};
use crate::engine::request::nearest_feed;
use crate::engine::{Engine, Feed};
use crate::protocols::addresses::item_url;
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

/// Longest wait for a document, with the time that a request is held.
const READ_PATIENCE: Duration = Duration::from_secs(90);

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

fn no_item(feed: &FeedId, id: &str) -> CliError {
    CliError::failed(format!("feed {feed} has no item {id:?}"))
}

/// Parses the id of a feed.
pub(super) fn feed_id(text: &str) -> Result<FeedId, CliError> {
    FeedId::new(text).map_err(|e| CliError::usage(e.to_string()))
}

/// Server that runs, or the configuration of a folder that no process has open.
pub(super) enum FoundTarget {
    Server(ServerClient),
    Folder(Box<Config>),
}

/// Destination of changes: a running server, or the data folder.
pub(crate) enum PublishTarget {
    /// A server, over HTTP.
    Server(ServerClient),
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

    /// Finds a running server, and opens nothing.
    pub(super) async fn find(&self) -> Result<FoundTarget, CliError> {
        let config = self.config.load()?;
        let fetcher =
            // A person waits: a server on this machine or in this network answers at once, or not at all.
            Fetcher::new(FetchOptions { connect_timeout: Duration::from_secs(5), ..FetchOptions::default() });
        let fetcher = fetcher.map_err(|e| CliError::failed(e.to_string()))?;
        let token = self.token.clone().or_else(|| publishing_token(&config));
        if let Some(base) = &self.server {
            return Ok(FoundTarget::Server(ServerClient {
                // Named by the user, so it may be a private address, unlike what a publisher's document names.
                fetcher: fetcher.with_named([base.as_str()]),
                base: base.as_str().trim_end_matches('/').to_owned(),
                token,
            }));
        }
        if self.config.is_without_folder(&config) {
            let base = config.local_url();
            let server =
                ServerClient { fetcher: fetcher.with_named([base.as_str()]), base, token: token.clone() };
            // No folder is meant, so the server at the usual address is. Elsewhere its folder decides.
            if server.instance().await.is_ok_and(|found| found.is_some()) {
                eprintln!("towpath: asking the server at {}", server.base);
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
        let server = ServerClient { fetcher: fetcher.with_named([url.as_str()]), base: url, token };
        let base = &server.base;
        let problem = match server.instance().await {
            Ok(Some(found)) if found == instance => return Ok(FoundTarget::Server(server)),
            // Such as another node behind a balancer.
            Ok(_) => format!("is not the one that answers at {base}"),
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
                    return Err(no_item(feed, id));
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

/// Client of a running server.
pub(crate) struct ServerClient {
    fetcher: Fetcher,
    base: String,
    token: Option<String>,
}

impl ServerClient {
    /// Returns the instance that the server says it is; `None` for another program's answer.
    async fn instance(&self) -> Result<Option<String>, TransferError> {
        let request = Request::get(RequestId(0), format!("{}/feeds?instance", self.base));
        let (status, body) = self.send(request).await?;
        let list: Value = serde_json::from_slice(&body).unwrap_or_default();
        Ok(list["instance"].as_str().filter(|_| status == 200).map(str::to_owned))
    }

    async fn append(&self, feed: &FeedId, changes: &[NewChange]) -> Result<Receipt, CliError> {
        let mut body = Vec::new();
        for change in changes {
            let mut line = Line::new(change.op, &change.item, change.patch.as_ref());
            // Imported items keep their times.
            line.modified = change.modified;
            serde_json::to_writer(&mut body, &line).map_err(|e| CliError::failed(e.to_string()))?;
            body.push(b'\n');
        }
        let request = Request::get(RequestId(0), format!("{}/feeds/{feed}/items?urls=any", self.base));
        let request = request.with(header::CONTENT_TYPE, "application/x-ndjson");
        self.receipt(Request { method: Method::POST, body: body.into(), ..request }).await
    }

    async fn delete(&self, feed: &FeedId, id: &str) -> Result<Receipt, CliError> {
        let Some(url) = self.item_url(feed, id) else {
            let receipt = self.append(feed, &[NewChange::delete(id)]).await?;
            // Like the server, which responds 404 for an item that does not exist.
            return match receipt.appended {
                0 => Err(no_item(feed, id)),
                _ => Ok(receipt),
            };
        };
        self.receipt(Request { method: Method::DELETE, ..Request::get(RequestId(0), url) }).await
    }

    /// Returns the URL of an item; `None` if no URL can name it.
    fn item_url(&self, feed: &FeedId, id: &str) -> Option<String> {
        // RFC 3986, section 5.2.4: a parser removes segments that are dots, also if they are percent-encoded (WHATWG URL).
        // An empty one names the feed's list.
        (!matches!(id, "" | "." | "..")).then(|| item_url(&self.base, feed, id))
    }

    fn readable_item_url(&self, feed: &FeedId, id: &str) -> Result<String, CliError> {
        self.item_url(feed, id).ok_or_else(|| {
            let why = format!(
                "no URL can name the item {id:?}: its versions are read in the data folder, while no server has it open"
            );
            CliError::usage(why)
        })
    }

    /// Publishes, and returns the receipt. The receipt of one item names its change.
    async fn receipt(&self, request: Request) -> Result<Receipt, CliError> {
        let FullResponse { head, body, .. } = self.change(request).await?;
        // The changes are published, whatever the body says: an unknown receipt is no failure.
        let mut receipt: Receipt = serde_json::from_slice(&body).unwrap_or_default();
        let position = head.header("towpath-position").and_then(|position| position.parse().ok());
        receipt.last = position.unwrap_or(receipt.last);
        Ok(receipt)
    }

    /// Makes or changes a feed, and returns its description.
    pub(super) async fn put_feed(
        &self,
        id: &FeedId,
        settings: &Map<String, Value>,
    ) -> Result<Value, CliError> {
        let body = serde_json::to_vec(settings).map_err(|e| CliError::failed(e.to_string()))?;
        let request = Request::get(RequestId(0), format!("{}/feeds/{id}", self.base));
        let request = request.with(header::CONTENT_TYPE, "application/json");
        let response = self.change(Request { method: Method::PUT, body: body.into(), ..request }).await?;
        Ok(serde_json::from_slice(&response.body).unwrap_or_default())
    }

    /// Removes a feed.
    pub(super) async fn remove_feed(&self, id: &FeedId, reason: Option<&str>) -> Result<Value, CliError> {
        let query = url::form_urlencoded::Serializer::new(String::new());
        let query = { query }.append_pair("reason", reason.unwrap_or_default()).finish();
        let request = Request::get(RequestId(0), format!("{}/feeds/{id}?{query}", self.base));
        let response = self.change(Request { method: Method::DELETE, ..request }).await?;
        Ok(serde_json::from_slice(&response.body).unwrap_or_default())
    }

    /// Returns the lines of a feed's items for a query, as they were sent.
    pub(super) async fn lines(&self, feed: &FeedId, query: &str) -> Result<Vec<Box<RawValue>>, CliError> {
        let url = format!("{}/feeds/{feed}/items?{query}", self.base);
        let body = self.read(&url).await?;
        let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let lines: Result<_, _> = lines.map(serde_json::from_slice).collect();
        lines.map_err(|e| CliError::failed(format!("{url}: not lines of JSON: {e}")))
    }

    /// Returns the position at which a feed ends.
    pub(super) async fn end_of(&self, feed: &FeedId) -> Result<String, CliError> {
        let latest = self.lines(feed, "order=-modified&as=line&timeout=0&max=1").await?;
        if let Some(position) = latest.first().and_then(|line| position_of(line)) {
            return Ok(position);
        }
        let url = format!("{}/feeds/{feed}/items?timeout=0&max=1", self.base);
        let page: Value = self.json(&url).await?;
        let cursor = page["last_cursor"].as_str().map(str::to_owned);
        cursor.ok_or_else(|| CliError::failed(format!("{url}: the page has no last_cursor")))
    }

    /// Returns the versions of an item.
    pub(super) async fn versions(&self, feed: &FeedId, id: &str) -> Result<ItemVersions, CliError> {
        let url = format!("{}/versions", self.readable_item_url(feed, id)?);
        let body = self.read(&url).await?;
        serde_json::from_slice(&body)
            .map_err(|e| CliError::failed(format!("{url}: not a list of versions: {e}")))
    }

    /// Returns the line of a version of an item.
    pub(super) async fn version(&self, feed: &FeedId, id: &str, seq: Seq) -> Result<Bytes, CliError> {
        self.read(&format!("{}?as=line&version={seq}", self.readable_item_url(feed, id)?)).await
    }

    /// Creates a snapshot and returns its URL.
    pub(crate) async fn snapshot(&self, feed: &FeedId) -> Result<String, CliError> {
        let url = format!("{}/feeds/{feed}/snapshots", self.base);
        let request = Request::get(RequestId(0), &url);
        // A snapshot of ten million items takes minutes.
        let patience = Duration::from_secs(24 * 3600);
        let response = self.change(Request { method: Method::POST, patience, ..request }).await?;
        let location = response.head.header("location").map(str::to_owned);
        location.ok_or_else(|| CliError::failed(format!("{url}: the response has no Location header")))
    }

    async fn change(&self, request: Request) -> Result<FullResponse, CliError> {
        let request = self.authorized(request);
        let url = request.url.clone();
        match self.fetcher.fetch_whole(&request).await {
            Ok(response) if (200..300).contains(&response.head.status) => Ok(response),
            Ok(FullResponse { head: ResponseHead { status, .. }, body, .. }) => {
                Err(self.refusal(&url, status, &body))
            }
            Err(e) => Err(CliError::failed(format!("{url}: {e}"))),
        }
    }

    /// Returns every readable feed with its status, and what is wrong with the node.
    pub(crate) async fn feeds(&self) -> Result<(Vec<Value>, Vec<String>, Value), CliError> {
        let url = format!("{}/feeds?status", self.base);
        let mut list = self.json(&url).await?;
        let problems = serde_json::from_value(list["problems"].take()).unwrap_or_default();
        match list["feeds"].take() {
            Value::Array(feeds) => Ok((feeds, problems, list["cluster"].take())),
            _ => Err(CliError::failed(format!("{url}: the response is not a list of feeds"))),
        }
    }

    /// Returns the sinks; none without the right to see them, or from an earlier version.
    pub(crate) async fn visible_sinks(&self) -> Result<Vec<Value>, CliError> {
        let url = format!("{}/sinks", self.base);
        let request = self.authorized(Request::get(RequestId(0), &url));
        let (status, body) = self.send(request).await.map_err(|e| CliError::failed(format!("{url}: {e}")))?;
        let list: Value = serde_json::from_slice(&body).unwrap_or_default();
        Ok(list["sinks"].as_array().filter(|_| status == 200).cloned().unwrap_or_default())
    }

    /// Sends a request about sinks, and returns the answer.
    pub(crate) async fn sinks(&self, method: Method, path: &str) -> Result<Value, CliError> {
        let url = format!("{}/sinks{path}", self.base);
        let request = Request { method, ..self.authorized(Request::get(RequestId(0), &url)) };
        let (status, body) = self.send(request).await.map_err(|e| CliError::failed(format!("{url}: {e}")))?;
        if status != 200 {
            return Err(CliError::failed(format!("{url}: {status}: {}", problem_detail(&body))));
        }
        serde_json::from_slice(&body).map_err(|e| CliError::failed(format!("{url}: not JSON: {e}")))
    }

    async fn json(&self, url: &str) -> Result<Value, CliError> {
        let body = self.read(url).await?;
        serde_json::from_slice(&body).map_err(|e| CliError::failed(format!("{url}: not JSON: {e}")))
    }

    /// Reads a document. The server may hold the request as long as it asks for.
    async fn read(&self, url: &str) -> Result<Bytes, CliError> {
        let request = Request { patience: READ_PATIENCE, ..Request::get(RequestId(0), url) };
        let answer = self.send(self.authorized(request)).await;
        let (status, body) = answer.map_err(|e| CliError::failed(format!("{url}: {e}")))?;
        if status != 200 {
            return Err(self.refusal(url, status, &body));
        }
        Ok(body)
    }

    /// Makes the error of a refused request, and says what to do about a token.
    fn refusal(&self, url: &str, status: u16, body: &[u8]) -> CliError {
        let hint = match (status, &self.token) {
            (401, None) => "; give one with --token or TOWPATH_TOKEN",
            (401, Some(_)) => "; the token of --token, TOWPATH_TOKEN or the configuration was sent",
            _ => "",
        };
        let message = format!("{url}: {status}: {}{hint}", problem_detail(body));
        // A server that is busy or restarts says something else later.
        if (400..500).contains(&status) && status != 429 {
            CliError::refused(message)
        } else {
            CliError::failed(message)
        }
    }

    /// Adds the token, if there is one.
    fn authorized(&self, request: Request) -> Request {
        match &self.token {
            Some(token) => request.with(header::AUTHORIZATION, &format!("Bearer {token}")),
            None => request,
        }
    }

    async fn send(&self, request: Request) -> Result<(u16, Bytes), TransferError> {
        let response = self.fetcher.fetch_whole(&request).await?;
        Ok((response.head.status, response.body))
    }
}

/// Returns the position of a line.
pub(super) fn position_of(line: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Positioned {
        position: Option<String>,
    }

    serde_json::from_str::<Positioned>(line.get()).ok()?.position
}
