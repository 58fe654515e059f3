//! Requests of operators about sources: poll now, pause, resume. They are stored, so that the node of a cluster which polls
//! the source learns of them, and a pause outlasts a restart.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;
use towpath_proto::FeedId;
use towpath_store::Table;

use crate::engine::{Engine, Feed, json_record};
use crate::store_error::StoreError;

/// Requests that wait for a schedule which is busy. One that misses some reads all.
const QUEUE: usize = 256;
/// Time until a row that could not be read is announced again.
const RETRY: Duration = Duration::from_secs(5);
/// Prefix of the rows' keys. A feed's id has no slash.
const PREFIX: &str = "control/";

/// Orders of operators to a source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SourceControl {
    /// Time since which the source is not polled; `None` if it is.
    pub(crate) paused: Option<Timestamp>,
    /// Time of the last request to poll at once.
    pub(crate) poll: Option<Timestamp>,
}

/// Announces written requests to the schedules.
struct Announcements(broadcast::Sender<FeedId>);

impl Announcements {
    fn of(engine: &Engine) -> &Self {
        engine.extensions.get_or_insert_with(|| Self(broadcast::channel(QUEUE).0))
    }
}

fn key(feed: &FeedId) -> Vec<u8> {
    format!("{PREFIX}{feed}").into_bytes()
}

impl SourceControl {
    /// Returns what was asked of a feed's source.
    pub(crate) async fn load(engine: &Engine, feed: &Feed) -> Result<Self, StoreError> {
        let Some(bytes) = engine.store.get(Table::Sources, &key(feed.id())).await? else {
            return Ok(Self::default());
        };
        serde_json::from_slice(&bytes)
            .map_err(|e| StoreError::Damaged(format!("the requests about source {}: {e}", feed.id())))
    }

    /// Returns what was asked of a feed's source. `None` if that cannot be read now: it is announced again then.
    pub(crate) async fn load_or_announce(engine: &Engine, feed: &Feed) -> Option<Self> {
        let error = match Self::load(engine, feed).await {
            Ok(control) => return Some(control),
            Err(error) => error,
        };
        tracing::error!(feed = %feed.id(), %error, "cannot read the control of a source");
        // It stays damaged, and a source must not be off for ever.
        if error.is_damage() {
            return Some(Self::default());
        }
        let (announcements, id) = (Announcements::of(engine).0.clone(), feed.id().clone());
        engine.runtime.spawn(async move {
            tokio::time::sleep(RETRY).await;
            let _ = announcements.send(id);
        });
        None
    }

    /// Changes what is asked of a feed's source, and tells the schedule.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the row cannot be read or written, or others change it at each try.
    pub(crate) async fn change(
        engine: &Engine,
        feed: &Feed,
        edit: impl Fn(&mut Self),
    ) -> Result<(), StoreError> {
        let edit = |control: &mut Self| {
            edit(control);
            true
        };
        json_record::change(engine.store.as_ref(), Table::Sources, &key(feed.id()), &[], edit).await?;
        // On a shared store the hook announces it, here as on every other node.
        if !engine.is_shared() {
            announce(engine, feed.id().clone());
        }
        Ok(())
    }
}

/// Returns the feeds about whose sources something is asked from now on.
pub(crate) fn requests(engine: &Engine) -> broadcast::Receiver<FeedId> {
    Announcements::of(engine).0.subscribe()
}

fn announce(engine: &Engine, feed: FeedId) {
    // Without a schedule nobody listens, and the next one reads the row.
    let _ = Announcements::of(engine).0.send(feed);
}

/// Announces a request that any node wrote. Runs on the store's thread.
pub(crate) fn on_table_write(engine: &Arc<Engine>, table: Table, key: &[u8]) {
    if table != Table::Sources {
        return;
    }
    let name = key.strip_prefix(PREFIX.as_bytes()).and_then(|name| std::str::from_utf8(name).ok());
    if let Some(feed) = name.and_then(|name| FeedId::new(name).ok()) {
        announce(engine, feed);
    }
}
