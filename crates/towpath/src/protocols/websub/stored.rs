//! Subscriptions and positions in the store, from which a restart begins.
//!
//! A subscription is written when it is verified. Positions are written together from time to time. After a crash a
//! subscriber may get a delivery again, and recognises it by its cursor.

use bytes::Bytes;
use towpath_proto::change::Seq;
use towpath_proto::push::websub::dispatch::SubscriptionId;
use towpath_proto::push::websub::subscription::HubSubscription;
use towpath_store::{ItemOrder, Precondition, ReadLimit, SeqRange, Store, Table, TableWrite};

use crate::engine::Engine;
use crate::protocols::websub::state::HubState;
use crate::protocols::websub::topic::Topic;
use crate::store_error::StoreError;
use towpath_proto::smart::spec::OrderBy;

// Two records: positions are written every second, and a subscription has up to 1,000 bytes.
pub(super) const SUBSCRIPTIONS: &[u8] = b"s/";
pub(super) const POSITIONS: &[u8] = b"p/";

pub(super) fn key(prefix: &[u8], id: SubscriptionId) -> Vec<u8> {
    [prefix, &id.to_be_bytes()].concat()
}

fn write(prefix: &[u8], id: SubscriptionId, value: Option<Vec<u8>>) -> TableWrite {
    TableWrite { table: Table::Subscriptions, key: key(prefix, id), value: value.map(Into::into) }
}

/// Stores a subscription, and its position if it is new.
pub(super) async fn save(
    store: &dyn Store,
    id: SubscriptionId,
    subscription: &HubSubscription,
    position: Option<Seq>,
) -> Result<(), StoreError> {
    let mut writes = vec![write(SUBSCRIPTIONS, id, Some(subscription.to_bytes()))];
    writes.extend(position.map(|seq| write(POSITIONS, id, Some(seq.to_be_bytes().to_vec()))));
    Ok(store.write(writes, Vec::new()).await?)
}

/// Returns the position of a stored subscription.
pub(crate) async fn position(store: &dyn Store, id: SubscriptionId) -> Result<Option<Seq>, StoreError> {
    if store.get(Table::Subscriptions, &key(SUBSCRIPTIONS, id)).await?.is_none() {
        return Ok(None);
    }
    read_position(store, id).await
}

pub(super) async fn read_position(store: &dyn Store, id: SubscriptionId) -> Result<Option<Seq>, StoreError> {
    Ok(store.get(Table::Subscriptions, &key(POSITIONS, id)).await?.as_deref().and_then(seq_of))
}

pub(super) fn seq_of(value: &[u8]) -> Option<Seq> {
    Some(Seq::from_be_bytes(value.try_into().ok()?))
}

/// Returns the id of a subscription's key.
pub(crate) fn id_of(key: &[u8]) -> Option<SubscriptionId> {
    Some(SubscriptionId::from_be_bytes(key.strip_prefix(SUBSCRIPTIONS)?.try_into().ok()?))
}

/// Deletes a subscription.
pub(crate) async fn delete(
    store: &dyn Store,
    id: SubscriptionId,
    conditions: Vec<Precondition>,
) -> Result<(), StoreError> {
    Ok(store.write(deletion(id).into(), conditions).await?)
}

/// Deletes a subscription if it is stored as it was read: another node may have renewed it since.
pub(super) async fn delete_as_read(
    engine: &Engine,
    id: SubscriptionId,
    value: &[u8],
) -> Result<(), StoreError> {
    let mut conditions = HubState::of(engine).conditions();
    conditions.push(as_read(id, Bytes::copy_from_slice(value)));
    match delete(engine.store.as_ref(), id, conditions).await {
        // Renewed meanwhile, or another node delivers now: then it is not ours to delete.
        Err(error) if error.is_conflict() => Ok(()),
        done => done,
    }
}

/// Stores the positions that changed, and deletes subscriptions that ended.
pub(super) async fn save_positions(engine: &Engine) -> Result<(), StoreError> {
    let _saving = HubState::of(engine).saving.write().await;
    let ids: Vec<SubscriptionId> = HubState::of(engine).unsaved.lock().drain().collect();
    if ids.is_empty() {
        return Ok(());
    }
    let writes: Vec<TableWrite> = {
        let subscribers = HubState::of(engine).subscribers.lock();
        let written = |id| match subscribers.position(id) {
            Some(seq) => vec![write(POSITIONS, id, Some(seq.to_be_bytes().to_vec()))],
            None => deletion(id).into(),
        };
        ids.iter().copied().flat_map(written).collect()
    };
    let kept = engine.store.write(writes, HubState::of(engine).conditions()).await;
    // Noted again, or a position would be lost until the next delivery.
    if kept.is_err() {
        HubState::of(engine).unsaved.lock().extend(ids);
    }
    Ok(kept?)
}

/// Deletes subscriptions in one write: after a long stop, all leases may have ended.
pub(super) async fn delete_all_as_read(
    engine: &Engine,
    ended: Vec<(SubscriptionId, Bytes)>,
) -> Result<(), StoreError> {
    if ended.is_empty() {
        return Ok(());
    }
    let mut conditions = HubState::of(engine).conditions();
    conditions.extend(ended.iter().map(|(id, value)| as_read(*id, value.clone())));
    let writes = ended.iter().flat_map(|(id, _)| deletion(*id)).collect();
    match engine.store.write(writes, conditions).await.map_err(StoreError::from) {
        Err(error) if error.is_conflict() => {
            // One of them was renewed meanwhile.
            for (id, value) in ended {
                delete_as_read(engine, id, &value).await?;
            }
            Ok(())
        }
        done => done,
    }
}

fn as_read(id: SubscriptionId, value: Bytes) -> Precondition {
    Precondition { table: Table::Subscriptions, key: key(SUBSCRIPTIONS, id), value: Some(value) }
}

fn deletion(id: SubscriptionId) -> [TableWrite; 2] {
    [write(SUBSCRIPTIONS, id, None), write(POSITIONS, id, None)]
}

/// Returns the position of the last item of a topic.
pub(crate) async fn end(engine: &Engine, topic: &Topic) -> Result<Seq, StoreError> {
    let order = match topic.by() {
        OrderBy::Created => ItemOrder::Created,
        OrderBy::Modified => ItemOrder::Modified,
    };
    let range = SeqRange { descending: true, ..SeqRange::default() };
    let last = engine.store.items(topic.feed.log(), order, range, ReadLimit::items(1)).await?;
    Ok(last.first().map_or(0, |change| topic.by().position(change)))
}
