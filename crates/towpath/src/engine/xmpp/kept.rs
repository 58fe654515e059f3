//! Subscriptions over XMPP in the store: nobody has to subscribe again after a restart.

use sha2::{Digest, Sha256};
use towpath_proto::push::xmpp::fanout::Subscription;
use towpath_store::{Store, StoreError, Table, Write};

const PREFIX: &[u8] = b"x/";
/// How many are read at a time.
const PAGE: usize = 1000;

fn key(subscription: &Subscription) -> Vec<u8> {
    let name =
        Sha256::new().chain_update(&subscription.jid).chain_update([0]).chain_update(&subscription.node);
    [PREFIX, &name.finalize()[..16]].concat()
}

/// Keeps a subscription.
pub(super) async fn keep(store: &dyn Store, subscription: &Subscription) -> Result<(), StoreError> {
    let value = serde_json::to_vec(subscription).map_err(|e| StoreError::Write(e.to_string()))?;
    write(store, subscription, Some(value)).await
}

/// Forgets one.
pub(super) async fn forget(store: &dyn Store, subscription: &Subscription) -> Result<(), StoreError> {
    write(store, subscription, None).await
}

async fn write(
    store: &dyn Store,
    subscription: &Subscription,
    value: Option<Vec<u8>>,
) -> Result<(), StoreError> {
    let write = Write { table: Table::Subscriptions, key: key(subscription), value: value.map(Into::into) };
    store.write(vec![write], Vec::new()).await
}

/// All that were kept.
pub(super) async fn load(store: &dyn Store) -> Result<Vec<Subscription>, StoreError> {
    let (mut all, mut after) = (Vec::new(), None::<Vec<u8>>);
    loop {
        let page = store.scan(Table::Subscriptions, PREFIX, after.as_deref(), PAGE).await?;
        for (_, value) in &page {
            match serde_json::from_slice(value) {
                Ok(subscription) => all.push(subscription),
                Err(e) => tracing::error!("a kept subscription cannot be read: {e}"),
            }
        }
        let Some((last, _)) = page.last().filter(|_| page.len() == PAGE) else { return Ok(all) };
        after = Some(last.to_vec());
    }
}
