//! Calls of other hubs to feeds whose source is pushed: mirrors, and polled sources.
//!
//! A call may reach any node, but the follower runs on one. So the call is written to a table that the follower's node
//! watches, and the answer comes back the same way:
//!
//! ```text
//! k/feed        secret that calls must have in their query, written when a follower begins
//! c/feed/id:32  a call without an answer yet
//! a/feed/id:32  status:2 body
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use towpath_client::listen::{forward_call, unknown_callback};
use towpath_client::random::unguessable;
use towpath_client::{CallQueue, PendingCall};
use towpath_proto::FeedId;
use towpath_proto::follow::{Call, Reply};
use towpath_store::{Precondition, Table, TableWrite};

use crate::engine::roles::{Lease, conditions};
use crate::engine::table_scan::TableScan;
use crate::engine::work::run_detached;
use crate::engine::{Engine, Feed};
use crate::store_error::StoreError;

/// Limit of unanswered calls to one mirror.
// Each can hold a body of 64 MiB, and a follower takes them one by one.
const INBOX: usize = 16;
/// Limit of calls that wait for another node.
const WAITING: usize = 1000;
/// Longest wait for the answer of another node.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Followers of this node, and calls without an answer yet.
#[derive(Default)]
pub(crate) struct Inboxes {
    /// Followers of this node, with the secret that calls must have in their query.
    open: Mutex<HashMap<FeedId, (String, mpsc::Sender<PendingCall>)>>,
    /// Calls of this node that another one answers, by the key of the answer.
    waiting: Mutex<HashMap<Vec<u8>, oneshot::Sender<Reply>>>,
    /// Keys of calls and answers that were written.
    written: Mutex<Vec<Vec<u8>>>,
}

impl Inboxes {
    fn of(engine: &Engine) -> &Self {
        engine.extensions.get_or_insert_with(Self::default)
    }

    /// Notes a write. Returns true if a follower or a call of this node waits for it.
    fn on_write(&self, key: &[u8]) -> bool {
        let is_ours = match key.split_first_chunk::<2>() {
            // Calls to followers on other nodes pass here as well, and are theirs to read.
            Some((b"c/", rest)) => self.open.lock().keys().any(|feed| is_of(rest, feed)),
            Some((b"a/", _)) => self.waiting.lock().contains_key(key),
            _ => false,
        };
        if is_ours {
            self.written.lock().push(key.to_owned());
        }
        is_ours
    }

    /// Returns the follower of a feed, if it runs on this node.
    fn local(&self, feed: &FeedId) -> Option<(String, mpsc::Sender<PendingCall>)> {
        self.open.lock().get(feed).filter(|(_, calls)| !calls.is_closed()).cloned()
    }
}

/// Returns true if a key, without its kind, belongs to this feed.
fn is_of(rest: &[u8], feed: &FeedId) -> bool {
    rest.strip_prefix(feed.as_str().as_bytes()).is_some_and(|id| id.first() == Some(&b'/'))
}

fn key(kind: char, feed: &FeedId, id: &str) -> Vec<u8> {
    let slash = if id.is_empty() { "" } else { "/" };
    format!("{kind}/{feed}{slash}{id}").into_bytes()
}

fn write(key: Vec<u8>, value: Option<Bytes>) -> TableWrite {
    TableWrite { table: Table::Subscriptions, key, value }
}

/// Opens the inbox of a mirror: calls that reach any node from now on.
///
/// # Errors
///
/// [`StoreError`] if old calls cannot be read or removed, or the lease is over. Only in a cluster.
pub async fn open_inbox(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    name: &str,
    lease: &Lease,
) -> Result<CallQueue, StoreError> {
    let (calls, taken) = mpsc::channel(INBOX);
    let id = feed.id();
    Inboxes::of(engine).open.lock().insert(id.clone(), (name.to_owned(), calls));
    if engine.is_shared() {
        let mut writes = vec![write(key('k', id, ""), Some(Bytes::copy_from_slice(name.as_bytes())))];
        // Calls to the follower before this one get no answer any more.
        for prefix in [key('c', id, ""), key('a', id, "")] {
            let prefix = [prefix.as_slice(), b"/"].concat();
            let mut scan = TableScan::new(engine.store.as_ref(), Table::Subscriptions, &prefix);
            while let Some(page) = scan.next().await? {
                writes.extend(page.into_iter().map(|(key, _)| write(key.to_vec(), None)));
            }
        }
        engine.store.write(writes, conditions(lease)).await?;
    }
    Ok(CallQueue::from_channel(taken))
}

/// Destination of an accepted call.
pub struct Inbox(InboxLocation);

enum InboxLocation {
    /// The follower runs on this node.
    Here(mpsc::Sender<PendingCall>),
    /// The follower runs on another node.
    Elsewhere,
}

/// Checks a call's query against the secret of the feed's follower. The body is read only after that.
///
/// Else a stranger could make the server buffer large bodies.
///
/// # Errors
///
/// The answer to a call that nobody expects.
pub async fn inbox(engine: &Engine, feed: &FeedId, method: &Method, query: &str) -> Result<Inbox, Reply> {
    let has = |name: &str| query.split('&').any(|pair| pair == name);
    match Inboxes::of(engine).local(feed) {
        Some((name, calls)) if has(&name) => return Ok(Inbox(InboxLocation::Here(calls))),
        // The same answer as without a follower: a guessed key learns nothing.
        _ if !engine.is_shared() || !is_called(engine, feed) => return Err(unknown_callback(method)),
        // Another node may follow by now, whose subscription must not end.
        _ => {}
    }
    match engine.store.get(Table::Subscriptions, &key('k', feed, "")).await {
        Ok(Some(name)) if std::str::from_utf8(&name).is_ok_and(has) => Ok(Inbox(InboxLocation::Elsewhere)),
        // No follower began yet, or the store cannot be read.
        // 503 has the hub retry; anything else would tell it that nobody subscribed.
        Ok(None) | Err(_) => Err(Reply::status(503)),
        Ok(Some(_)) => Err(unknown_callback(method)),
    }
}

/// Returns true if a feed's source is pushed, on whichever node.
fn is_called(engine: &Engine, feed: &FeedId) -> bool {
    let feed = engine.feed(feed.as_str());
    feed.is_some_and(|feed| feed.config.source.as_ref().is_some_and(|source| source.push))
}

impl Inbox {
    /// Passes a call to the follower, and returns its answer.
    pub async fn call(self, engine: &Arc<Engine>, feed: &FeedId, call: Call) -> Reply {
        match self.0 {
            InboxLocation::Here(calls) => forward_call(&calls, call).await,
            InboxLocation::Elsewhere => {
                let (at, feed) = (engine.clone(), feed.clone());
                // A hub that hangs up must leave nothing in the table, nor a place among those that wait.
                let forwarded = run_detached(engine, async move { forward(&at, &feed, &call).await }).await;
                forwarded.unwrap_or_else(|_| Reply::status(503))
            }
        }
    }
}

/// Passes a call to the follower's node through the table.
async fn forward(engine: &Arc<Engine>, feed: &FeedId, call: &Call) -> Reply {
    let id = format!("{:032x}", unguessable());
    let (asked, answer) = (key('c', feed, &id), key('a', feed, &id));
    let (reply, replied) = oneshot::channel();
    {
        let mut waiting = Inboxes::of(engine).waiting.lock();
        if waiting.len() >= WAITING {
            return Reply::status(503);
        }
        // Before the call is written: the answer can arrive at once.
        waiting.insert(answer.clone(), reply);
    }
    let ask = write(asked.clone(), Some(encode(call)));
    let reply = match engine.store.write(vec![ask], Vec::new()).await {
        Ok(()) => timeout(ANSWER_WAIT, replied).await.ok().and_then(Result::ok),
        Err(e) => {
            tracing::warn!(%feed, error = %e, "a call cannot be handed to the node that follows");
            None
        }
    };
    Inboxes::of(engine).waiting.lock().remove(&answer);
    // Both, whatever happened: after a timeout the call or a late answer may still be there.
    let forget = vec![write(asked, None), write(answer, None)];
    if let Err(e) = engine.store.write(forget, Vec::new()).await {
        // The next follower deletes it.
        tracing::debug!(%feed, error = %e, "a call stays in the table");
    }
    reply.unwrap_or(Reply::status(503))
}

/// Notes a write to a key of the table. Returns true if [`apply_remote`] must follow.
pub(super) fn on_call_written(engine: &Engine, key: &[u8]) -> bool {
    Inboxes::of(engine).on_write(key)
}

/// Reads calls and answers that other nodes wrote. Returns false if one could not be read, which the next call reads again.
pub(super) async fn apply_remote(engine: &Arc<Engine>) -> bool {
    let mut is_done = true;
    let written = std::mem::take(&mut *Inboxes::of(engine).written.lock());
    for key in written {
        match engine.store.get(Table::Subscriptions, &key).await {
            Ok(Some(value)) => take(engine, &key, value),
            // It was answered, or the caller timed out.
            Ok(None) => {}
            Err(e) => {
                tracing::error!(error = %e, "cannot read a call of a hub");
                Inboxes::of(engine).written.lock().push(key);
                is_done = false;
            }
        }
    }
    is_done
}

fn take(engine: &Arc<Engine>, key: &[u8], value: Bytes) {
    let inboxes = Inboxes::of(engine);
    if key.starts_with(b"a/") {
        if let (Some(waiting), Some((status, body))) =
            (inboxes.waiting.lock().remove(key), value.split_first_chunk::<2>())
        {
            let reply = Reply { status: u16::from_be_bytes(*status), body: value.slice_ref(body) };
            // The caller may have disconnected.
            let _ = waiting.send(reply);
        }
        return;
    }
    // `c/`, the feed, then a slash and 32 digits.
    let feed = key.get(2..key.len().saturating_sub(33)).and_then(|feed| std::str::from_utf8(feed).ok());
    let inbox = feed.and_then(|feed| inboxes.local(&FeedId::new(feed).ok()?));
    if let (Some((_, calls)), Some(call)) = (inbox, decode(&value)) {
        let (engine, key) = (engine.clone(), key.to_owned());
        engine.runtime.clone().spawn(
            async move {
                let reply = forward_call(&calls, call).await;
                if let Err(e) = write_reply(&engine, key, value, &reply).await {
                    tracing::debug!(error = %e, "a call of a hub is not answered");
                }
            }
            .boxed(),
        );
    }
}

/// Writes the answer of a call, if the call is still in the table.
async fn write_reply(engine: &Engine, asked: Vec<u8>, value: Bytes, reply: &Reply) -> Result<(), StoreError> {
    let key = [&b"a"[..], &asked[1..]].concat();
    let answer = Bytes::from([&reply.status.to_be_bytes()[..], &reply.body].concat());
    // The caller deletes the call when it gives up. An answer after that would stay in the table for ever.
    let waits = Precondition { table: Table::Subscriptions, key: asked.clone(), value: Some(value) };
    Ok(engine.store.write(vec![write(asked, None), write(key, Some(answer))], vec![waits]).await?)
}

/// Head of a call in the table: four bytes of length, then JSON, before the body.
#[derive(Serialize, Deserialize)]
struct CallHead {
    method: String,
    query: String,
    headers: Vec<(String, Vec<u8>)>,
}

fn encode(call: &Call) -> Bytes {
    let headers = call.headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
    let head =
        CallHead { method: call.method.to_string(), query: call.query.clone(), headers: headers.collect() };
    // Serialising plain data to memory cannot fail.
    let head = serde_json::to_vec(&head).unwrap_or_default();
    [&(head.len() as u32).to_be_bytes()[..], &head, &call.body].concat().into()
}

fn decode(value: &Bytes) -> Option<Call> {
    let (length, rest) = value.split_first_chunk::<4>()?;
    let (head, body) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let CallHead { method, query, headers } = serde_json::from_slice(head).ok()?;
    let mut all = HeaderMap::new();
    for (name, value) in headers {
        all.append(name.parse::<HeaderName>().ok()?, HeaderValue::from_bytes(&value).ok()?);
    }
    let method = method.parse::<Method>().ok()?;
    Some(Call { method, query, headers: all, body: value.slice_ref(body) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_come_back() {
        let mut headers = HeaderMap::new();
        headers.append("link", HeaderValue::from_static("<a>; rel=hub"));
        headers.append("link", HeaderValue::from_bytes(b"<\xe9>; rel=self").unwrap());
        let body = Bytes::from_static(b"\0\xff body");
        let call = Call { method: Method::POST, query: "a=b&c".into(), headers, body };
        let value = encode(&call);
        let read = decode(&value).unwrap();
        assert_eq!((read.method, read.query, read.body), (call.method, call.query, call.body));
        assert_eq!(read.headers, call.headers);
        // The body has seven bytes. Every cut before it must fail, not give another call.
        let head = value.len() - 7;
        assert!((0..head).all(|cut| decode(&value.slice(..cut)).is_none()));
    }

    #[test]
    fn a_key_is_of_one_feed() {
        let feed = |name: &str| FeedId::new(name).unwrap();
        let calls = key('c', &feed("news"), "0");
        assert!(is_of(&calls[2..], &feed("news")) && !is_of(&calls[2..], &feed("new")));
        assert!(!is_of(&key('k', &feed("news"), "")[2..], &feed("news")));
    }

    /// The hub would get a 503, although another node has answered.
    #[tokio::test]
    async fn an_answer_that_could_not_be_read_is_read_again() {
        let (engine, store) = crate::protocols::failing_store::engine("[[feed]]\nid = \"notes\"\n").await;
        let key = key('a', &FeedId::new("notes").unwrap(), &"1".repeat(32));
        let (sender, answered) = oneshot::channel();
        Inboxes::of(&engine).waiting.lock().insert(key.clone(), sender);
        let value = Bytes::from([&200_u16.to_be_bytes()[..], b"yes"].concat());
        engine.store.write(vec![write(key.clone(), Some(value))], vec![]).await.unwrap();
        on_call_written(&engine, &key);
        *store.read_fault.lock() = Some("a/notes/");
        assert!(!apply_remote(&engine).await);
        assert!(store.read_fault.lock().is_none());
        assert!(apply_remote(&engine).await);
        let reply = answered.await.unwrap();
        assert_eq!((reply.status, &reply.body[..]), (200, &b"yes"[..]));
    }
}
