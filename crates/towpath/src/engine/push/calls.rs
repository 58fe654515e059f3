//! What hubs send to the feeds that mirror another one and are pushed to.
//!
//! It is for the follower, which runs on one node, and reaches any. There it is written to a table, which the follower's
//! node watches, and the answer comes back the same way:
//!
//! ```text
//! k/feed        what calls must have in their query, written when a follower begins
//! c/feed/id:32  a call that waits for its answer
//! a/feed/id:32  status:2 body
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use towpath_proto::FeedId;
use towpath_proto::follow::{Call, Reply};
use towpath_store::{Condition, StoreError, Table, Write};

use crate::client::listen::hand_over;
use crate::client::{Calls, Delivered};
use crate::engine::roles::{Lease, conditions};
use crate::engine::scan::Scan;
use crate::engine::{Engine, Feed};
use crate::random::unguessable;

/// Calls to one mirror that wait to be answered.
const INBOX: usize = 16;
/// Calls that wait for another node, at the most.
const WAITING: usize = 1000;
/// How long they wait.
const PATIENCE: Duration = Duration::from_secs(10);

/// Those who wait for calls, and for answers.
#[derive(Default)]
pub(super) struct Inboxes {
    /// The followers of this node, with what calls to them must have in their query.
    open: Mutex<HashMap<FeedId, (String, mpsc::Sender<Delivered>)>>,
    /// Calls of this node that another one answers, by the key of the answer.
    waiting: Mutex<HashMap<Vec<u8>, oneshot::Sender<Reply>>>,
    /// Keys of calls and answers that were written.
    written: Mutex<Vec<Vec<u8>>>,
}

impl Inboxes {
    /// Notes a write; whether it is to be taken in. Called on the store's thread.
    pub(super) fn wrote(&self, key: &[u8]) -> bool {
        let is_ours = match key.split_first_chunk::<2>() {
            Some((b"c/", rest)) => self.open.lock().keys().any(|feed| is_of(rest, feed)),
            Some((b"a/", _)) => self.waiting.lock().contains_key(key),
            _ => false,
        };
        if is_ours {
            self.written.lock().push(key.to_owned());
        }
        is_ours
    }

    /// The follower of a feed, if it is on this node.
    fn of(&self, feed: &FeedId) -> Option<(String, mpsc::Sender<Delivered>)> {
        self.open.lock().get(feed).filter(|(_, calls)| !calls.is_closed()).cloned()
    }
}

/// Whether a key, without its kind, is of this feed.
fn is_of(rest: &[u8], feed: &FeedId) -> bool {
    rest.strip_prefix(feed.as_str().as_bytes()).is_some_and(|id| id.first() == Some(&b'/'))
}

fn key(kind: char, feed: &FeedId, id: &str) -> Vec<u8> {
    let slash = if id.is_empty() { "" } else { "/" };
    format!("{kind}/{feed}{slash}{id}").into_bytes()
}

fn write(key: Vec<u8>, value: Option<Bytes>) -> Write {
    Write { table: Table::Subscriptions, key, value }
}

/// The calls that come to a feed that mirrors another one, from now on, on whichever node.
///
/// # Errors
///
/// The store's.
pub async fn open_inbox(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    name: &str,
    lease: &Lease,
) -> Result<Calls, StoreError> {
    let (calls, taken) = mpsc::channel(INBOX);
    let id = feed.id();
    engine.push.inboxes.open.lock().insert(id.clone(), (name.to_owned(), calls));
    if engine.is_shared() {
        let mut writes = vec![write(key('k', id, ""), Some(Bytes::copy_from_slice(name.as_bytes())))];
        // Of calls to the follower before this one nobody takes the answers any more.
        for prefix in [key('c', id, ""), key('a', id, "")] {
            let prefix = [prefix.as_slice(), b"/"].concat();
            let mut scan = Scan::new(engine.store.as_ref(), Table::Subscriptions, &prefix);
            while let Some(page) = scan.next().await? {
                writes.extend(page.into_iter().map(|(key, _)| write(key.to_vec(), None)));
            }
        }
        engine.store.write(writes, conditions(lease)).await?;
    }
    Ok(Calls::of(taken))
}

/// Where a call goes that may come in.
pub struct Inbox(Place);

enum Place {
    /// To the follower of this node.
    Here(mpsc::Sender<Delivered>),
    /// To the node that follows.
    Elsewhere,
}

/// Finds out from a call's query, before anything of its body is read, whether it is for a feed that mirrors another
/// one; the answer where it is not.
///
/// # Errors
///
/// The answer.
pub async fn inbox(engine: &Engine, feed: &FeedId, query: &str) -> Result<Inbox, Reply> {
    let has = |name: &str| query.split('&').any(|pair| pair == name);
    match engine.push.inboxes.of(feed) {
        Some((name, calls)) if has(&name) => return Ok(Inbox(Place::Here(calls))),
        Some(_) => return Err(Reply::status(404)),
        None if !engine.is_shared() || !is_called(engine, feed) => return Err(Reply::status(404)),
        None => {}
    }
    match engine.store.get(Table::Subscriptions, &key('k', feed, "")).await {
        Ok(Some(name)) if std::str::from_utf8(&name).is_ok_and(has) => Ok(Inbox(Place::Elsewhere)),
        // No follower has begun yet, or it is not known.
        Ok(None) | Err(_) => Err(Reply::status(503)),
        Ok(Some(_)) => Err(Reply::status(404)),
    }
}

/// Whether a feed mirrors another one by being called, on whichever node.
fn is_called(engine: &Engine, feed: &FeedId) -> bool {
    let feed = engine.feed(feed.as_str());
    feed.is_some_and(|feed| feed.config.mirrored().is_some_and(|(source, _)| source.push))
}

impl Inbox {
    /// Hands over what a hub sends to a feed that mirrors another one.
    pub async fn call(self, engine: &Arc<Engine>, feed: &FeedId, call: Call) -> Reply {
        match self.0 {
            Place::Here(calls) => hand_over(&calls, call).await,
            Place::Elsewhere => forward(engine, feed, &call).await,
        }
    }
}

/// Has the node answer that follows.
async fn forward(engine: &Arc<Engine>, feed: &FeedId, call: &Call) -> Reply {
    let id = format!("{:032x}", unguessable());
    let (asked, answer) = (key('c', feed, &id), key('a', feed, &id));
    let (reply, replied) = oneshot::channel();
    {
        let mut waiting = engine.push.inboxes.waiting.lock();
        if waiting.len() >= WAITING {
            return Reply::status(503);
        }
        waiting.insert(answer.clone(), reply);
    }
    let ask = write(asked.clone(), Some(encode(call)));
    let reply = match engine.store.write(vec![ask], Vec::new()).await {
        Ok(()) => timeout(PATIENCE, replied).await.ok().and_then(Result::ok),
        Err(e) => {
            tracing::warn!(%feed, "a call cannot be handed to the node that follows: {e}");
            None
        }
    };
    engine.push.inboxes.waiting.lock().remove(&answer);
    let forget = vec![write(asked, None), write(answer, None)];
    if let Err(e) = engine.store.write(forget, Vec::new()).await {
        // The next follower forgets it.
        tracing::debug!(%feed, "a call stays in the table: {e}");
    }
    reply.unwrap_or(Reply::status(503))
}

/// Takes in calls and answers that were written.
pub(super) async fn take_written(engine: &Arc<Engine>) {
    let written = std::mem::take(&mut *engine.push.inboxes.written.lock());
    for key in written {
        match engine.store.get(Table::Subscriptions, &key).await {
            Ok(Some(value)) => take(engine, &key, value),
            // It was answered, or given up.
            Ok(None) => {}
            Err(e) => tracing::error!("cannot read a call of a hub: {e}"),
        }
    }
}

fn take(engine: &Arc<Engine>, key: &[u8], value: Bytes) {
    let inboxes = &engine.push.inboxes;
    if key.starts_with(b"a/") {
        if let (Some(waiting), Some((status, body))) =
            (inboxes.waiting.lock().remove(key), value.split_first_chunk::<2>())
        {
            let reply = Reply { status: u16::from_be_bytes(*status), body: value.slice_ref(body) };
            // Whoever has called may have gone.
            let _ = waiting.send(reply);
        }
        return;
    }
    let feed = key.get(2..key.len().saturating_sub(33)).and_then(|feed| std::str::from_utf8(feed).ok());
    let inbox = feed.and_then(|feed| inboxes.of(&FeedId::new(feed).ok()?));
    if let (Some((_, calls)), Some(call)) = (inbox, decode(&value)) {
        let (engine, key) = (engine.clone(), key.to_owned());
        engine.runtime.clone().spawn(async move {
            let reply = hand_over(&calls, call).await;
            if let Err(e) = answer(&engine, key, value, &reply).await {
                tracing::debug!("a call of a hub is not answered: {e}");
            }
        });
    }
}

/// Answers a call, if it still waits.
async fn answer(engine: &Engine, asked: Vec<u8>, value: Bytes, reply: &Reply) -> Result<(), StoreError> {
    let key = [&b"a"[..], &asked[1..]].concat();
    let answer = Bytes::from([&reply.status.to_be_bytes()[..], &reply.body].concat());
    let waits = Condition { table: Table::Subscriptions, key: asked.clone(), value: Some(value) };
    engine.store.write(vec![write(asked, None), write(key, Some(answer))], vec![waits]).await
}

/// What stands before the body of a call in the table, with its length in four bytes.
#[derive(Serialize, Deserialize)]
struct Head {
    method: String,
    query: String,
    headers: Vec<(String, Vec<u8>)>,
}

fn encode(call: &Call) -> Bytes {
    let headers = call.headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
    let head =
        Head { method: call.method.to_string(), query: call.query.clone(), headers: headers.collect() };
    // Types of ours, which serialise always.
    let head = serde_json::to_vec(&head).unwrap_or_default();
    [&(head.len() as u32).to_be_bytes()[..], &head, &call.body].concat().into()
}

fn decode(value: &Bytes) -> Option<Call> {
    let (length, rest) = value.split_first_chunk::<4>()?;
    let (head, body) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let Head { method, query, headers } = serde_json::from_slice(head).ok()?;
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
}
