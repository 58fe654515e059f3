//! What a restart begins with: subscriptions over XMPP, so that nobody has to subscribe again, and up to where each
//! topic was sent, so that what is appended before the component is back is pushed then.
//!
//! A subscription is written before it is confirmed. Places are written together, now and then: after a crash
//! subscribers may be sent again what they had, and know that by its cursor.

use crate::engine::roles::{Lease, conditions};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use towpath_proto::push::xmpp::fanout::{Kept, Place, Subscription, Topic};
use towpath_proto::smart::spec::By;
use towpath_store::{Store, StoreError, Table, Write};

use crate::engine::scan::Scan;

const SUBSCRIPTIONS: &[u8] = b"x/";
const PLACES: &[u8] = b"xp/";
const SEEN: &[u8] = b"xs";

fn key(subscription: &Subscription) -> Vec<u8> {
    let name =
        Sha256::new().chain_update(&subscription.jid).chain_update([0]).chain_update(&subscription.node);
    [SUBSCRIPTIONS, &name.finalize()[..16]].concat()
}

/// A topic's place as it is kept.
#[derive(Serialize, Deserialize)]
struct KeptPlace {
    feed: String,
    is_created: bool,
    place: Place,
}

fn place_key(topic: &Topic) -> Vec<u8> {
    let order: &[u8] = if topic.by == By::Created { b"created/" } else { b"modified/" };
    [PLACES, order, topic.feed.as_str().as_bytes()].concat()
}

fn write<T: Serialize>(key: Vec<u8>, value: Option<&T>) -> Result<Write, StoreError> {
    let value = value.map(serde_json::to_vec).transpose().map_err(|e| StoreError::Write(e.to_string()))?;
    Ok(Write { table: Table::Subscriptions, key, value: value.map(Into::into) })
}

fn place_write(topic: &Topic, place: Option<Place>) -> Result<Write, StoreError> {
    let (feed, is_created) = (topic.feed.to_string(), topic.by == By::Created);
    let kept = place.map(|place| KeptPlace { feed, is_created, place });
    write(place_key(topic), kept.as_ref())
}

/// Keeps a subscription, and where its topic begins if it is the first one to it.
pub(super) async fn keep(
    store: &dyn Store,
    lease: &Lease,
    subscription: &Subscription,
    first: Option<(Topic, Place)>,
) -> Result<(), StoreError> {
    let mut writes = vec![write(key(subscription), Some(subscription))?];
    if let Some((topic, place)) = first {
        writes.push(place_write(&topic, Some(place))?);
    }
    store.write(writes, conditions(lease)).await
}

/// Forgets one.
pub(super) async fn forget(
    store: &dyn Store,
    lease: &Lease,
    subscription: &Subscription,
) -> Result<(), StoreError> {
    store.write(vec![write::<Subscription>(key(subscription), None)?], conditions(lease)).await
}

/// Keeps up to where topics were sent, and that the stream was open at this time.
pub(super) async fn keep_places(
    store: &dyn Store,
    lease: &Lease,
    places: Vec<(Topic, Option<Place>)>,
    seen: Option<Timestamp>,
) -> Result<(), StoreError> {
    let places = places.into_iter().map(|(topic, place)| place_write(&topic, place));
    let seen = seen.map(|time| write(SEEN.to_vec(), Some(&time)));
    let writes = places.chain(seen).collect::<Result<Vec<_>, _>>()?;
    if writes.is_empty() { Ok(()) } else { store.write(writes, conditions(lease)).await }
}

/// All that was kept.
pub(super) async fn load(store: &dyn Store) -> Result<Kept, StoreError> {
    let places: Vec<KeptPlace> = all(store, PLACES).await?;
    let place = |kept: KeptPlace| {
        let by = if kept.is_created { By::Created } else { By::Modified };
        Some((Topic { feed: kept.feed.parse().ok()?, by }, kept.place))
    };
    let seen = store.get(Table::Subscriptions, SEEN).await?;
    Ok(Kept {
        subscriptions: all(store, SUBSCRIPTIONS).await?,
        places: places.into_iter().filter_map(place).collect(),
        seen: seen.and_then(|seen| serde_json::from_slice(&seen).ok()),
    })
}

async fn all<T: DeserializeOwned>(store: &dyn Store, prefix: &[u8]) -> Result<Vec<T>, StoreError> {
    let mut all = Vec::new();
    let mut scan = Scan::new(store, Table::Subscriptions, prefix);
    while let Some(page) = scan.next().await? {
        for (_, value) in &page {
            match serde_json::from_slice(value) {
                Ok(kept) => all.push(kept),
                Err(e) => tracing::error!("a kept subscription over XMPP cannot be read: {e}"),
            }
        }
    }
    Ok(all)
}
