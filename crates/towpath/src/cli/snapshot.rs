//! `towpath snapshot`: creates a snapshot of a feed's live items, from which new followers bootstrap.

use std::sync::Arc;

use clap::Args;
use towpath_proto::FeedId;

use super::error::{CliError, Exit};
use super::progress::patiently;
use super::publish_target::{PublishTarget, TargetArgs, feed_id, known_feed};
use super::style::print_output;
use crate::engine::Engine;
use crate::protocols::replication::snapshot;

#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    /// Id of the feed
    feed: String,
    #[command(flatten)]
    target: TargetArgs,
}

/// Creates a snapshot and prints the URL of its index.
pub(crate) async fn snapshot(args: SnapshotArgs) -> Result<Exit, CliError> {
    let feed = feed_id(&args.feed)?;
    let target = args.target.open().await?;
    let making = async {
        match &target {
            PublishTarget::Server(server) => server.snapshot(&feed).await,
            PublishTarget::Folder(engine) => in_folder(engine, &feed).await,
        }
    };
    let url = patiently("making the snapshot", making).await;
    target.close().await;
    print_output(format!("{}\n", url?))?;
    Ok(Exit::Done)
}

async fn in_folder(engine: &Arc<Engine>, id: &FeedId) -> Result<String, CliError> {
    let feed = known_feed(engine, id)?;
    // A filter has no log of its own; its source feed has the snapshot.
    if let Some(why) = feed.without_log() {
        return Err(CliError::failed(why));
    }
    let created = snapshot::make(engine, &feed, Vec::new()).await?;
    let created =
        created.ok_or_else(|| CliError::failed("a snapshot of this feed is already in progress"))?;
    Ok(format!("{}{}", engine.base_url, snapshot::index_path(&feed, created.id)))
}
