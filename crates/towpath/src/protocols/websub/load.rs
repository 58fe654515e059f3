//! Subscriptions that are read from the store: at a start, and after writes of other nodes.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use towpath_proto::change::Seq;
use towpath_proto::push::websub::dispatch::SubscriptionId;
use towpath_proto::push::websub::subscription::HubSubscription;
use towpath_store::{Store, Table};

use crate::engine::Engine;
use crate::engine::access::{Access, access_of};
use crate::engine::table_scan::TableScan;
use crate::protocols::websub::ended;
use crate::protocols::websub::state::HubState;
use crate::protocols::websub::stored::{
    POSITIONS, SUBSCRIPTIONS, delete_all_as_read, delete_as_read, end, id_of, key, read_position, seq_of,
};
use crate::protocols::websub::topic::Topic;
use crate::store_error::StoreError;

/// Loads all subscriptions that are not known yet, beside their positions: a hub may have a million of them.
pub(crate) async fn load(engine: &Arc<Engine>) -> Result<(), StoreError> {
    let store = engine.store.as_ref();
    let mut topics = KnownTopics::default();
    // A merge of two scans: a read per subscription would take minutes for a million of them.
    let mut positions = PositionScan::new(store);
    let mut scan = TableScan::new(store, Table::Subscriptions, SUBSCRIPTIONS);
    while let Some(page) = scan.next().await? {
        let mut ended = Vec::new();
        for (key, value) in page {
            // A repeated load must not bring back what ended after this page was read.
            let Some(id) = id_of(&key).filter(|id| !HubState::of(engine).knows(*id)) else { continue };
            let position = positions.of(id).await?;
            if let Some(id) = apply(engine, &mut topics, id, &value, position).await? {
                ended.push((id, value));
            }
        }
        // Per page, so that a hub of a million ended leases does not collect them all.
        delete_all_as_read(engine, ended).await?;
    }
    Ok(())
}

/// Positions in the order of their ids, which is the order of the subscriptions as well.
struct PositionScan<'a> {
    scan: TableScan<'a>,
    page: std::vec::IntoIter<(Bytes, Bytes)>,
    next: Option<(SubscriptionId, Option<Seq>)>,
}

impl<'a> PositionScan<'a> {
    fn new(store: &'a dyn Store) -> Self {
        let scan = TableScan::new(store, Table::Subscriptions, POSITIONS);
        Self { scan, page: Vec::new().into_iter(), next: None }
    }

    /// Returns the position of a subscription. Ids must ascend from call to call.
    async fn of(&mut self, id: SubscriptionId) -> Result<Option<Seq>, StoreError> {
        while self.next.is_none_or(|(next, _)| next < id) {
            let Some((key, value)) = self.page.next() else {
                let Some(page) = self.scan.next().await? else { return Ok(None) };
                self.page = page.into_iter();
                continue;
            };
            let next = key.strip_prefix(POSITIONS).and_then(|id| id.try_into().ok());
            self.next = next.map(|next| (SubscriptionId::from_be_bytes(next), seq_of(&value)));
        }
        Ok(self.next.filter(|(next, _)| *next == id).and_then(|(_, position)| position))
    }
}

/// Topics that were looked up, by key and reader: most subscriptions are of the same few.
#[derive(Default)]
struct KnownTopics(HashMap<Box<str>, HashMap<Option<Box<str>>, ReadableTopic>>);

type ReadableTopic = Option<(Arc<Topic>, Access)>;

impl KnownTopics {
    fn get(&mut self, engine: &Engine, subscription: &HubSubscription) -> ReadableTopic {
        let HubSubscription { topic, reader, .. } = subscription;
        if let Some(known) = self.0.get(topic).and_then(|readers| readers.get(reader)) {
            return known.clone();
        }
        let feed = engine.feed(Topic::feed_of_key(topic));
        let access = feed.and_then(|feed| access_of(&feed, &engine.tokens.load(), reader.as_deref()));
        let found = access.and_then(|access| Some((Topic::of_key(engine, topic, access)?.into(), access)));
        self.0.entry(topic.clone()).or_default().insert(reader.clone(), found.clone());
        found
    }
}

/// Applies a subscription as it is stored, or its removal.
pub(super) async fn refresh(engine: &Arc<Engine>, id: SubscriptionId) -> Result<(), StoreError> {
    let key = key(SUBSCRIPTIONS, id);
    match engine.store.get(Table::Subscriptions, &key).await? {
        Some(value) => {
            let position = read_position(engine.store.as_ref(), id).await?;
            let Some(ended) = apply(engine, &mut KnownTopics::default(), id, &value, position).await? else {
                return Ok(());
            };
            delete_as_read(engine, ended, &value).await
        }
        None => {
            HubState::of(engine).remove(id);
            Ok(())
        }
    }
}

/// Adds a stored subscription. Returns its id if it has ended, and is to be deleted.
async fn apply(
    engine: &Arc<Engine>,
    topics: &mut KnownTopics,
    id: SubscriptionId,
    value: &[u8],
    position: Option<Seq>,
) -> Result<Option<SubscriptionId>, StoreError> {
    let Some(subscription) = HubSubscription::from_bytes(value) else {
        // Left where it is: a later version may have written it, and can read it again.
        tracing::error!("a stored subscription cannot be decoded");
        return Ok(None);
    };
    let readable = topics.get(engine, &subscription);
    let ended = subscription.end() <= engine.now();
    if !HubState::of(engine).delivers() && (ended || readable.is_none()) {
        // The delivering node deletes it, and tells the subscriber.
        return Ok(None);
    }
    let Some((topic, access)) = readable else {
        tracing::info!(
            callback = subscription.callback,
            topic = subscription.topic,
            "a subscription ended with its feed"
        );
        ended::deny(engine, &subscription);
        return Ok(Some(id));
    };
    // No denial: the subscriber knew when its lease would end.
    if ended {
        return Ok(Some(id));
    }
    let position = match position {
        Some(position) => position,
        // A subscription without a position begins at the end, as a new one does.
        None => end(engine, &topic).await?,
    };
    HubState::of(engine).add(id, position, subscription, topic, access);
    Ok(None)
}
