//! `towpath snapshot`: a feed's live items at this time, for those who begin to follow it.

use std::io::Write as _;
use std::sync::Arc;

use clap::Args;
use towpath_proto::FeedId;

use super::publish::{Target, TargetArgs, feed_id};
use super::{CliError, Exit};
use crate::engine::Engine;
use crate::engine::replication::snapshot;

#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    /// The feed's id
    feed: String,
    #[command(flatten)]
    target: TargetArgs,
}

/// Makes a snapshot and prints where its index is.
pub(crate) async fn snapshot(args: SnapshotArgs) -> Result<Exit, CliError> {
    let feed = feed_id(&args.feed)?;
    let target = args.target.open().await?;
    let url = match &target {
        Target::Server(server) => server.snapshot(&feed).await,
        Target::Folder(engine) => in_folder(engine, &feed).await,
    };
    target.close().await;
    // A closed standard output does not undo the snapshot.
    let _ = writeln!(std::io::stdout().lock(), "{}", url?);
    Ok(Exit::Done)
}

async fn in_folder(engine: &Arc<Engine>, id: &FeedId) -> Result<String, CliError> {
    let feed = engine.feed(id.as_str());
    let feed = feed.ok_or_else(|| CliError::usage(format!("the configuration has no feed {id:?}")))?;
    if let Some(why) = feed.without_log() {
        return Err(CliError::failed(why));
    }
    let made = snapshot::make(engine, &feed, Vec::new()).await?;
    let made = made.ok_or_else(|| CliError::failed("a snapshot is being made already"))?;
    Ok(format!("{}{}", engine.base_url, snapshot::index_path(&feed, made.id)))
}
