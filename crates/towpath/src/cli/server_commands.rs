//! Requests of commands to a running server.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, header};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use towpath_client::{FeedClient, Fetcher, FullResponse, PublishError, PublishReport, ServerClient};
use towpath_proto::change::Seq;
use towpath_proto::follow::{Request, RequestId};
use towpath_proto::line::Line;
use towpath_proto::{FeedId, NewChange};

use super::error::CliError;
use super::receipt::Receipt;
use crate::engine::item_versions::ItemVersions;

/// Longest wait for a document, with the time that a request is held.
const READ_PATIENCE: Duration = Duration::from_secs(90);
/// Longest wait for a snapshot. One of ten million items takes minutes.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Client of a running server. Its errors are those of commands.
pub(crate) struct ServerCommands {
    /// Boxed, because values that are a server or a folder are moved around.
    client: Box<ServerClient>,
    has_token: bool,
}

impl ServerCommands {
    /// Creates the client of the server at `base`, which the user or the configuration named.
    pub(super) fn new(base: &str, token: Option<&str>, fetcher: &Fetcher) -> Result<Self, CliError> {
        let usage = |error: PublishError| CliError::usage(error.to_string());
        // Named by the user, so it may be a private address, unlike what a publisher's document names.
        let client = ServerClient::with_fetcher(base, fetcher.with_named([base])).map_err(usage)?;
        let client = match token {
            Some(token) => client.token(token).map_err(usage)?,
            None => client,
        };
        Ok(Self { client: Box::new(client), has_token: token.is_some() })
    }

    /// URL of the server.
    pub(super) fn base(&self) -> &str {
        self.client.base()
    }

    fn feed(&self, feed: &FeedId) -> FeedClient {
        self.client.feed(feed.as_str())
    }

    /// Returns the instance that the server says it is; `None` for another program's answer.
    pub(super) async fn instance(&self) -> Result<Option<String>, PublishError> {
        match self.client.send(self.request(Method::GET, "/feeds?instance")).await {
            Ok(FullResponse { body, .. }) => {
                let list: Value = serde_json::from_slice(&body).unwrap_or_default();
                Ok(list["instance"].as_str().map(str::to_owned))
            }
            Err(PublishError::Status { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Appends a batch.
    pub(super) async fn append(&self, feed: &FeedId, changes: &[NewChange]) -> Result<Receipt, CliError> {
        let mut lines = Vec::new();
        for change in changes {
            let mut line = Line::new(change.op, &change.item, change.patch.as_ref());
            // Imported items keep their times.
            line.modified = change.modified;
            serde_json::to_writer(&mut lines, &line).map_err(|e| CliError::failed(e.to_string()))?;
            lines.push(b'\n');
        }
        self.receipt(self.feed(feed).import_text(lines).await)
    }

    /// Deletes an item.
    pub(super) async fn delete(&self, feed: &FeedId, id: &str) -> Result<Receipt, CliError> {
        let client = self.feed(feed);
        if client.item_url(id).is_ok() {
            return self.receipt(client.delete(id).await);
        }
        let receipt = self.append(feed, &[NewChange::delete(id)]).await?;
        // Like the server, which responds 404 for an item that does not exist.
        match receipt.appended {
            0 => Err(CliError::no_item(feed, id)),
            _ => Ok(receipt),
        }
    }

    fn receipt(&self, published: Result<PublishReport, PublishError>) -> Result<Receipt, CliError> {
        match published {
            Ok(report) => Ok(report.into()),
            // The changes are published, whatever the body says: an unknown receipt is no failure.
            Err(PublishError::Response { .. }) => Ok(Receipt::default()),
            Err(error) => Err(self.failure(error)),
        }
    }

    /// Makes or changes a feed, and returns its description.
    pub(super) async fn put_feed(
        &self,
        id: &FeedId,
        settings: &Map<String, Value>,
    ) -> Result<Value, CliError> {
        let body = serde_json::to_vec(settings).map_err(|e| CliError::failed(e.to_string()))?;
        let request = self.request(Method::PUT, &format!("/feeds/{id}"));
        let request = request.with(header::CONTENT_TYPE, "application/json");
        let response = self.send(Request { body: body.into(), ..request }).await?;
        Ok(serde_json::from_slice(&response.body).unwrap_or_default())
    }

    /// Removes a feed.
    pub(super) async fn remove_feed(&self, id: &FeedId, reason: Option<&str>) -> Result<Value, CliError> {
        let query = url::form_urlencoded::Serializer::new(String::new());
        let query = { query }.append_pair("reason", reason.unwrap_or_default()).finish();
        let response = self.send(self.request(Method::DELETE, &format!("/feeds/{id}?{query}"))).await?;
        Ok(serde_json::from_slice(&response.body).unwrap_or_default())
    }

    /// Returns the lines of a feed's items for a query, as they were sent.
    pub(super) async fn lines(&self, feed: &FeedId, query: &str) -> Result<Vec<Box<RawValue>>, CliError> {
        let request = self.request(Method::GET, &format!("/feeds/{feed}/items?{query}"));
        let url = request.url.clone();
        let body = self.read(request).await?;
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
        let request = self.request(Method::GET, &format!("/feeds/{feed}/items?timeout=0&max=1"));
        let url = request.url.clone();
        let page: Value = self.json(request).await?;
        let cursor = page["last_cursor"].as_str().map(str::to_owned);
        cursor.ok_or_else(|| CliError::failed(format!("{url}: the page has no last_cursor")))
    }

    /// Returns the versions of an item.
    pub(super) async fn versions(&self, feed: &FeedId, id: &str) -> Result<ItemVersions, CliError> {
        let url = format!("{}/versions", self.item_url(feed, id)?);
        let body = self.read(Request::get(RequestId(0), &url)).await?;
        serde_json::from_slice(&body)
            .map_err(|e| CliError::failed(format!("{url}: not a list of versions: {e}")))
    }

    /// Returns the line of a version of an item.
    pub(super) async fn version(&self, feed: &FeedId, id: &str, seq: Seq) -> Result<Bytes, CliError> {
        let url = format!("{}?as=line&version={seq}", self.item_url(feed, id)?);
        self.read(Request::get(RequestId(0), url)).await
    }

    fn item_url(&self, feed: &FeedId, id: &str) -> Result<String, CliError> {
        self.feed(feed).item_url(id).map_err(|_| {
            let why = format!(
                "no URL can name the item {id:?}: its versions are read in the data folder, while no server has it open"
            );
            CliError::usage(why)
        })
    }

    /// Creates a snapshot and returns its URL.
    pub(super) async fn snapshot(&self, feed: &FeedId) -> Result<String, CliError> {
        let request = self.request(Method::POST, &format!("/feeds/{feed}/snapshots"));
        let url = request.url.clone();
        let response = self.send(Request { patience: SNAPSHOT_PATIENCE, ..request }).await?;
        let location = response.head.header("location").map(str::to_owned);
        location.ok_or_else(|| CliError::failed(format!("{url}: the response has no Location header")))
    }

    /// Returns every readable feed with its status, and what is wrong with the node.
    pub(super) async fn feeds(&self) -> Result<(Vec<Value>, Vec<String>, Value), CliError> {
        let request = self.request(Method::GET, "/feeds?status");
        let url = request.url.clone();
        let mut list = self.json(request).await?;
        let problems = serde_json::from_value(list["problems"].take()).unwrap_or_default();
        match list["feeds"].take() {
            Value::Array(feeds) => Ok((feeds, problems, list["cluster"].take())),
            _ => Err(CliError::failed(format!("{url}: the response is not a list of feeds"))),
        }
    }

    /// Returns the sinks; none without the right to see them, or from an earlier version.
    pub(super) async fn visible_sinks(&self) -> Result<Vec<Value>, CliError> {
        match self.client.send(self.request(Method::GET, "/sinks")).await {
            Ok(FullResponse { body, .. }) => {
                let list: Value = serde_json::from_slice(&body).unwrap_or_default();
                Ok(list["sinks"].as_array().cloned().unwrap_or_default())
            }
            Err(PublishError::Status { .. }) => Ok(Vec::new()),
            Err(error) => Err(self.failure(error)),
        }
    }

    /// Sends a request about sinks, and returns the answer.
    pub(super) async fn sinks(&self, method: Method, path: &str) -> Result<Value, CliError> {
        let request = self.request(method, &format!("/sinks{path}"));
        let url = request.url.clone();
        let response = self.send(request).await?;
        serde_json::from_slice(&response.body).map_err(|e| CliError::failed(format!("{url}: not JSON: {e}")))
    }

    fn request(&self, method: Method, path: &str) -> Request {
        let base = self.base().trim_end_matches('/');
        Request { method, ..Request::get(RequestId(0), format!("{base}{path}")) }
    }

    async fn json(&self, request: Request) -> Result<Value, CliError> {
        let url = request.url.clone();
        let body = self.read(request).await?;
        serde_json::from_slice(&body).map_err(|e| CliError::failed(format!("{url}: not JSON: {e}")))
    }

    /// Reads a document. The server may hold the request as long as it asks for.
    async fn read(&self, request: Request) -> Result<Bytes, CliError> {
        Ok(self.send(Request { patience: READ_PATIENCE, ..request }).await?.body)
    }

    async fn send(&self, request: Request) -> Result<FullResponse, CliError> {
        self.client.send(request).await.map_err(|error| self.failure(error))
    }

    /// Makes the error of a request, and says what to do about a token.
    fn failure(&self, error: PublishError) -> CliError {
        let PublishError::Status { url, status, detail } = error else {
            return CliError::failed(error.to_string());
        };
        let hint = match (status, self.has_token) {
            (401, false) => "; give one with --token or TOWPATH_TOKEN",
            (401, true) => "; the token of --token, TOWPATH_TOKEN or the configuration was sent",
            _ => "",
        };
        let message = format!("{url}: {status}: {detail}{hint}");
        // A server that is busy or restarts says something else later.
        if (400..500).contains(&status) && status != 429 {
            CliError::refused(message)
        } else {
            CliError::failed(message)
        }
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
