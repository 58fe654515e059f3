//! Opens a node of a cluster, appends an item, and reads it from the node's replica.
//!
//! Start a server with JetStream first, and then as many nodes as you like, each with its own folder:
//!
//! ```text
//! nats-server --jetstream --store_dir nats-data
//! cargo run -p towpath-cluster --example open_node nats://127.0.0.1:4222 node-1
//! ```

use std::error::Error;

use towpath_cluster::{ClusterAddress, ClusterOptions, ClusterStore};
use towpath_proto::change::NewChange;
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::Item;
use towpath_store::{Expected, ReadLimit, Store};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "nats://127.0.0.1:4222".into());
    let folder = arguments.next().unwrap_or_else(|| "node-example".into());

    let address = ClusterAddress::parse(&address)?;
    let store = ClusterStore::open(&address, &folder, ClusterOptions::default()).await?;
    let feed = FeedId::new("orders")?;

    // The append returns when this node's replica has applied it: the read below sees it.
    let put = NewChange::put(Item::new("order-1"));
    let appended = store.append(&feed, Expected::Any, vec![put]).await?;
    for change in store.read(&feed, appended.first - 1, ReadLimit::items(1)).await? {
        println!("{} {} at log position {}", change.seq, change.item.id, store.position());
    }

    store.close().await;
    Ok(())
}
