//! Subscriptions and positions in the store: what a restart begins with.
//!
//! A subscription is written when it is verified. Positions are written together, now and then: after a crash a
//! subscriber may be sent again what it had, and knows that by its cursor.

use std::sync::Arc;

use bytes::Bytes;
use towpath_proto::change::Seq;
use towpath_proto::push::websub::dispatch::Id;
use towpath_proto::push::websub::subscription::Subscription;
use towpath_proto::push::websub::verify::denial;
use towpath_store::{Condition, Limit, Order, Store, StoreError, Stretch, Table, Write};

use super::{Subscribed, Topic};
use crate::engine::Engine;
use crate::engine::scan::Scan;
use crate::server::access_of;
use towpath_proto::smart::spec::By;

const SUBSCRIPTIONS: &[u8] = b"s/";
const POSITIONS: &[u8] = b"p/";

fn key(prefix: &[u8], id: Id) -> Vec<u8> {
    [prefix, &id.to_be_bytes()].concat()
}

fn write(prefix: &[u8], id: Id, value: Option<Vec<u8>>) -> Write {
    Write { table: Table::Subscriptions, key: key(prefix, id), value: value.map(Into::into) }
}

/// Keeps a subscription, and where it begins if that is new.
pub(super) async fn keep(
    store: &dyn Store,
    id: Id,
    subscription: &Subscription,
    position: Option<Seq>,
) -> Result<(), StoreError> {
    let mut writes = vec![write(SUBSCRIPTIONS, id, Some(subscription.to_bytes()))];
    writes.extend(position.map(|seq| write(POSITIONS, id, Some(seq.to_be_bytes().to_vec()))));
    store.write(writes, Vec::new()).await
}

/// Where a subscriber stands who is there already.
pub(super) async fn position(store: &dyn Store, id: Id) -> Result<Option<Seq>, StoreError> {
    if store.get(Table::Subscriptions, &key(SUBSCRIPTIONS, id)).await?.is_none() {
        return Ok(None);
    }
    let kept = store.get(Table::Subscriptions, &key(POSITIONS, id)).await?;
    Ok(kept.and_then(|bytes| Some(Seq::from_be_bytes(bytes.as_ref().try_into().ok()?))))
}

/// Of which subscription a key is.
pub(super) fn id_of(key: &[u8]) -> Option<Id> {
    Some(Id::from_be_bytes(key.strip_prefix(SUBSCRIPTIONS)?.try_into().ok()?))
}

/// Takes in a subscription as it is stored, or that it is not there any more.
pub(super) async fn look(engine: &Arc<Engine>, id: Id) -> Result<(), StoreError> {
    let key = key(SUBSCRIPTIONS, id);
    match engine.store.get(Table::Subscriptions, &key).await? {
        Some(value) => take_in(engine, &key, &value).await,
        None => {
            engine.push.remove(id);
            Ok(())
        }
    }
}

/// Forgets a subscription.
pub(super) async fn forget(store: &dyn Store, id: Id, conditions: Vec<Condition>) -> Result<(), StoreError> {
    store.write(vec![write(SUBSCRIPTIONS, id, None), write(POSITIONS, id, None)], conditions).await
}

/// Forgets one as it was read: it may have been renewed since, on another node.
async fn forget_as_read(engine: &Engine, id: Id, value: &[u8]) -> Result<(), StoreError> {
    let mut conditions = engine.push.conditions();
    let value = Some(Bytes::copy_from_slice(value));
    conditions.push(Condition { table: Table::Subscriptions, key: key(SUBSCRIPTIONS, id), value });
    match forget(engine.store.as_ref(), id, conditions).await {
        Err(StoreError::Condition) => Ok(()),
        done => done,
    }
}

/// Keeps the positions that have changed, and forgets what has ended.
pub(super) async fn keep_positions(engine: &Engine) -> Result<(), StoreError> {
    let _alone = engine.push.keeping.write().await;
    let ids: Vec<Id> = engine.push.unkept.lock().drain().collect();
    if ids.is_empty() {
        return Ok(());
    }
    let writes: Vec<Write> = {
        let subscribers = engine.push.subscribers.lock();
        let written = |id| match subscribers.position(id) {
            Some(seq) => vec![write(POSITIONS, id, Some(seq.to_be_bytes().to_vec()))],
            None => vec![write(SUBSCRIPTIONS, id, None), write(POSITIONS, id, None)],
        };
        ids.iter().copied().flat_map(written).collect()
    };
    let kept = engine.store.write(writes, engine.push.conditions()).await;
    if kept.is_err() {
        engine.push.unkept.lock().extend(ids);
    }
    kept
}

/// Takes in what was kept.
pub(super) async fn load(engine: &Arc<Engine>) -> Result<(), StoreError> {
    let mut scan = Scan::new(engine.store.as_ref(), Table::Subscriptions, SUBSCRIPTIONS);
    while let Some(page) = scan.next().await? {
        for (key, value) in &page {
            take_in(engine, key, value).await?;
        }
    }
    Ok(())
}

async fn take_in(engine: &Arc<Engine>, kept: &[u8], value: &[u8]) -> Result<(), StoreError> {
    let (Some(id), Some(subscription)) = (id_of(kept), Subscription::from_bytes(value)) else {
        tracing::error!("a kept subscription cannot be read");
        return Ok(());
    };
    let feed = engine.feed(Topic::feed_of_key(&subscription.topic));
    let access =
        feed.and_then(|feed| access_of(&feed, &engine.config.server.tokens, subscription.reader.as_deref()));
    let topic = access.and_then(|access| Topic::of_key(engine, &subscription.topic, access));
    let ended = subscription.end() <= engine.now();
    if !engine.push.delivers() && (ended || topic.is_none()) {
        // The node that delivers says so.
        return Ok(());
    }
    let (Some(topic), Some(access)) = (topic, access) else {
        tracing::info!("{} is not subscribed any more to {}", subscription.callback, subscription.topic);
        deny(engine, &subscription);
        return forget_as_read(engine, id, value).await;
    };
    if ended {
        return forget_as_read(engine, id, value).await;
    }
    let kept = engine.store.get(Table::Subscriptions, &key(POSITIONS, id)).await?;
    let position = match kept.and_then(|bytes| Some(Seq::from_be_bytes(bytes.as_ref().try_into().ok()?))) {
        Some(position) => position,
        None => end(engine, &topic).await?,
    };
    engine.push.add(engine, id, position, Subscribed { subscription, topic: Arc::new(topic), access });
    Ok(())
}

/// WebSub 5.2: "If (and when) the subscription is denied, the hub MUST inform the subscriber".
fn deny(engine: &Arc<Engine>, subscription: &Subscription) {
    let topic = Topic::url_of_key(engine, &subscription.topic);
    let url = denial(&subscription.callback, &topic, "the feed is not there for this subscriber any more");
    let engine = engine.clone();
    engine.runtime.clone().spawn(async move { super::verify::tell(&engine, &url).await });
}

/// The position of the last item of a topic.
pub(super) async fn end(engine: &Engine, topic: &Topic) -> Result<Seq, StoreError> {
    let order = match topic.by() {
        By::Created => Order::Created,
        By::Modified => Order::Modified,
    };
    let stretch = Stretch { descending: true, ..Stretch::default() };
    let last = engine.store.items(topic.feed.log(), order, stretch, Limit::items(1)).await?;
    Ok(last.first().map_or(0, |change| topic.by().position(change)))
}
