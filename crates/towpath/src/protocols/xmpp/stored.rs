//! Subscriptions over XMPP and positions of topics in the store, from which a restart begins.
//!
//! Changes that are appended while the component is away are pushed when it is back. A subscription is written before it
//! is confirmed. Positions are written together from time to time. After a crash subscribers may get a push again, and
//! recognise it by its cursor.

use crate::engine::roles::{Lease, conditions};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use towpath_proto::push::xmpp::fanout::{FanoutTopic, NodeSubscription, PersistedFanout, PushPosition};
use towpath_proto::smart::spec::OrderBy;
use towpath_store::{Store, Table, TableWrite};

use crate::engine::table_scan::TableScan;
use crate::store_error::StoreError;

// WebSub's records are in the same table, under `s/`, `p/`, `k/`, `c/` and `a/`.
const SUBSCRIPTIONS: &[u8] = b"x/";
const PLACES: &[u8] = b"xp/";
const SEEN: &[u8] = b"xs";

fn key(subscription: &NodeSubscription) -> Vec<u8> {
    let name =
        // The zero byte keeps (jid, node) pairs apart whose texts join to the same; a digest bounds the key.
        Sha256::new().chain_update(&subscription.jid).chain_update([0]).chain_update(&subscription.node);
    [SUBSCRIPTIONS, &name.finalize()[..16]].concat()
}

/// Stored position of a topic.
#[derive(Serialize, Deserialize)]
struct StoredPosition {
    feed: String,
    is_created: bool,
    place: PushPosition,
}

fn place_key(topic: &FanoutTopic) -> Vec<u8> {
    let order: &[u8] = if topic.by == OrderBy::Created { b"created/" } else { b"modified/" };
    [PLACES, order, topic.feed.as_str().as_bytes()].concat()
}

fn write<T: Serialize>(key: Vec<u8>, value: Option<&T>) -> Result<TableWrite, StoreError> {
    let value = value.map(serde_json::to_vec).transpose().map_err(|e| StoreError::Encode(e.to_string()))?;
    Ok(TableWrite { table: Table::Subscriptions, key, value: value.map(Into::into) })
}

fn place_write(topic: &FanoutTopic, place: Option<PushPosition>) -> Result<TableWrite, StoreError> {
    let (feed, is_created) = (topic.feed.to_string(), topic.by == OrderBy::Created);
    let kept = place.map(|place| StoredPosition { feed, is_created, place });
    write(place_key(topic), kept.as_ref())
}

/// Stores a subscription, and the position of its topic if it is the topic's first one.
pub(crate) async fn save(
    store: &dyn Store,
    lease: &Lease,
    subscription: &NodeSubscription,
    first: Option<(FanoutTopic, PushPosition)>,
) -> Result<(), StoreError> {
    let mut writes = vec![write(key(subscription), Some(subscription))?];
    if let Some((topic, place)) = first {
        writes.push(place_write(&topic, Some(place))?);
    }
    Ok(store.write(writes, conditions(lease)).await?)
}

/// Deletes a subscription.
pub(crate) async fn delete(
    store: &dyn Store,
    lease: &Lease,
    subscription: &NodeSubscription,
) -> Result<(), StoreError> {
    Ok(store.write(vec![write::<NodeSubscription>(key(subscription), None)?], conditions(lease)).await?)
}

/// Stores the positions of topics, and the time at which the stream was open.
pub(crate) async fn save_positions(
    store: &dyn Store,
    lease: &Lease,
    places: Vec<(FanoutTopic, Option<PushPosition>)>,
    seen: Option<Timestamp>,
) -> Result<(), StoreError> {
    let places = places.into_iter().map(|(topic, place)| place_write(&topic, place));
    let seen = seen.map(|time| write(SEEN.to_vec(), Some(&time)));
    let writes = places.chain(seen).collect::<Result<Vec<_>, _>>()?;
    if writes.is_empty() { Ok(()) } else { Ok(store.write(writes, conditions(lease)).await?) }
}

/// Loads all subscriptions and positions.
pub(crate) async fn load(store: &dyn Store) -> Result<PersistedFanout, StoreError> {
    let places: Vec<StoredPosition> = all(store, PLACES).await?;
    let place = |kept: StoredPosition| {
        let by = if kept.is_created { OrderBy::Created } else { OrderBy::Modified };
        Some((FanoutTopic { feed: kept.feed.parse().ok()?, by }, kept.place))
    };
    let seen = store.get(Table::Subscriptions, SEEN).await?;
    Ok(PersistedFanout {
        subscriptions: all(store, SUBSCRIPTIONS).await?,
        places: places.into_iter().filter_map(place).collect(),
        seen: seen.and_then(|seen| serde_json::from_slice(&seen).ok()),
    })
}

async fn all<T: DeserializeOwned>(store: &dyn Store, prefix: &[u8]) -> Result<Vec<T>, StoreError> {
    let mut all = Vec::new();
    let mut scan = TableScan::new(store, Table::Subscriptions, prefix);
    while let Some(page) = scan.next().await? {
        for (_, value) in &page {
            match serde_json::from_slice(value) {
                Ok(kept) => all.push(kept),
                // Skipped: one damaged record must not end all subscriptions.
                Err(e) => tracing::error!(error = %e, "a stored XMPP subscription cannot be decoded"),
            }
        }
    }
    Ok(all)
}
