//! A WebSub subscriber: it subscribes at a node's hub, and is sent what is published.
//!
//! A subscription is in force from the first delivery on. After that each delivery begins at or before the end of the one
//! before it, unless deliveries failed for half an hour: then the hub drops one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use parking_lot::Mutex;
use tokio::time::sleep;
use towpath_client::Fetcher;
use towpath_proto::change::Seq;
use towpath_proto::follow::{Request, RequestId};
use towpath_proto::smart::wire::Collection;

use crate::world::World;
use crate::{system, trace, trace::count};

/// Beginning of the callbacks' paths; the feed follows.
pub const CALLBACKS: &str = "/push/";
/// Time after which the hub drops a delivery that fails.
const DROPPED: Duration = Duration::from_secs(30 * 60);
/// Pause between two requests to the hub, until the first delivery.
const PAUSE: Duration = Duration::from_secs(120);

/// The subscriber.
pub struct Subscriber {
    world: Arc<World>,
    feeds: Mutex<BTreeMap<String, Subscription>>,
}

/// Copy of a feed, as the hub delivered it.
struct Subscription {
    /// Position from which on it was sent everything.
    begin: Seq,
    /// Position up to which it was sent everything.
    position: Seq,
    /// Title by id; none for an item that is deleted.
    copy: BTreeMap<String, Option<String>>,
    /// Time of the last delivery that it acknowledged.
    last: Duration,
}

impl Subscriber {
    /// Creates a subscriber without subscriptions.
    pub fn new(world: &Arc<World>) -> Self {
        Self { world: world.clone(), feeds: Mutex::default() }
    }

    /// Subscribes to a feed, until it gets a delivery.
    pub async fn subscribe(&self, fetcher: &Fetcher, origin: &str, host: &str, feed: &str) {
        while !self.feeds.lock().contains_key(feed) {
            let hub = format!("http://{origin}/feeds/{feed}/hub");
            let body = format!(
                "hub.mode=subscribe&hub.topic=http://{origin}/feeds/{feed}/items%3Forder%3Dmodified&\
                 hub.callback=http://{host}{CALLBACKS}{feed}"
            );
            let request =
                Request::get(RequestId(0), hub).with(CONTENT_TYPE, "application/x-www-form-urlencoded");
            let request = Request { method: Method::POST, body: body.into(), ..request };
            let answer = fetcher.fetch_whole(&request).await.map(|answer| answer.head.status);
            trace!("{host} subscribes to {feed}: {answer:?}");
            sleep(PAUSE).await;
        }
    }

    /// Confirms a subscription.
    pub fn confirm(query: &str) -> (StatusCode, Bytes) {
        let challenge = query.split('&').find_map(|pair| pair.strip_prefix("hub.challenge="));
        challenge.map_or((StatusCode::NOT_FOUND, Bytes::new()), |text| {
            (StatusCode::OK, Bytes::copy_from_slice(text.as_bytes()))
        })
    }

    /// Takes a delivery.
    pub fn take(&self, feed: &str, body: &[u8]) -> StatusCode {
        let page = match Collection::from_json(body) {
            Ok(page) => page,
            Err(e) => {
                self.world.violate(format!("a delivery of {feed} cannot be read: {e}"));
                return StatusCode::BAD_REQUEST;
            }
        };
        let (begin, end) = (position(page.prev_cursor.as_deref()), position(page.last_cursor.as_deref()));
        let Some(end) = end else {
            self.world.violate(format!("a delivery of {feed} has the cursor {:?}", page.last_cursor));
            return StatusCode::BAD_REQUEST;
        };
        let (begin, now) = (begin.unwrap_or_default(), system::elapsed());
        trace!("subscriber: {} items of {feed}, from {begin} to {end}", page.items.len());
        count("deliveries of the hub");
        let mut feeds = self.feeds.lock();
        let had = feeds.entry(feed.to_owned()).or_insert_with(|| Subscription {
            begin,
            position: begin,
            copy: BTreeMap::new(),
            last: now,
        });
        if begin > had.position {
            if now < had.last + DROPPED {
                let last = had.position;
                self.world.violate(format!("the hub delivered {feed} from {begin} on, after {last}"));
            }
            had.begin = begin;
        }
        // A delivery that comes late, as a duplicate, is older than what is there.
        if end >= had.position {
            let items = page.items.into_iter();
            let changes = items.map(|object| (object.item.id, object.item.title.filter(|_| !object.deleted)));
            had.copy.extend(changes);
        }
        had.position = had.position.max(end);
        had.last = now;
        StatusCode::NO_CONTENT
    }

    /// Compares what was delivered of a feed with its log, at a time without faults since `healed`. Returns what is missing.
    pub fn compare(&self, feed: &str, log: &[(String, Option<String>)], healed: Duration) -> Option<String> {
        let feeds = self.feeds.lock();
        let had = feeds.get(feed)?;
        // A delivery was dropped, and nothing came after it that would show it.
        if healed >= had.last + DROPPED {
            return None;
        }
        let (position, head) = (had.position, log.len() as Seq);
        if position != head {
            return Some(format!("the hub delivered {feed} up to {position}, and it has {head} changes"));
        }
        let latest: BTreeMap<_, _> = log.iter().skip(had.begin as usize).cloned().collect();
        let (id, title) = latest.iter().find(|(id, title)| had.copy.get(*id) != Some(title))?;
        Some(format!("the hub delivered {:?} as {id} of {feed}, which is {title:?}", had.copy.get(id)))
    }
}

/// Returns the position in a cursor.
fn position(cursor: Option<&str>) -> Option<Seq> {
    let (_, rest) = cursor?.split_once('m')?;
    rest.split('-').next()?.parse().ok()
}
