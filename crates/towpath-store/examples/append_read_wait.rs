//! Opens a store, appends two items, reads them back, and waits for the next append.
//!
//! ```text
//! cargo run -p towpath-store --example append_read_wait [FOLDER]
//! ```

use std::error::Error;

use towpath_proto::change::NewChange;
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{Content, Item};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{Expected, ReadLimit, Store};

fn order(number: u64) -> NewChange {
    let content = Content::new("application/json", format!("{{\"number\":{number}}}"));
    NewChange::put(Item { content: Some(content), ..Item::new(format!("order-{number}")) })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "store-example".into());
    let store = EmbeddedStore::open(&folder, EmbeddedOptions::default())?;
    let feed = FeedId::new("orders")?;

    // Compare-and-append: fails if another writer came first.
    let head = store.head(&feed).await?;
    let batch = vec![order(head.seq + 1), order(head.seq + 2)];
    let appended = store.append(&feed, Expected::Last(head.seq), batch).await?;
    println!("appended {} to {}", appended.first, appended.head.seq);

    for change in store.read(&feed, head.seq, ReadLimit::items(100)).await? {
        println!("{} {:?} {}", change.seq, change.op, change.item.id);
    }

    // Both at the same time: the wait returns after the append.
    let end = appended.head.seq;
    let (woken, next) =
        tokio::join!(store.wait(&feed, end), store.append(&feed, Expected::Any, vec![order(end + 1)]));
    println!("woken at {}, appended {}", woken?.seq, next?.first);

    store.close().await;
    Ok(())
}
