//! `towpath snapshot`: a feed's live items at this time, for those who begin to follow it.

use std::io::Write as _;

use clap::Args;

use super::publish::{Target, TargetArgs, feed_id};
use super::{CliError, Exit};
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
        Target::Folder(engine) => match engine.feed(feed.as_str()) {
            Some(feed) => {
                let made = snapshot::make(engine, &feed, Vec::new()).await;
                made.map_err(CliError::from).and_then(|made| {
                    let made = made.ok_or_else(|| CliError::failed("a snapshot is being made already"))?;
                    Ok(format!("{}{}", engine.base_url, snapshot::index_path(&feed, made.id)))
                })
            }
            None => Err(CliError::usage(format!("the configuration has no feed {feed:?}"))),
        },
    };
    target.close().await;
    // A closed standard output does not undo the snapshot.
    let _ = writeln!(std::io::stdout().lock(), "{}", url?);
    Ok(Exit::Done)
}
