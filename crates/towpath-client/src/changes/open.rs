//! Start of a stream of changes: the state, the protocol, the follower.

use towpath_proto::follow::FollowError;
use url::Url;

use super::saver::StateSaver;
use super::{ChangesError, StatePlace};
use crate::follow::{Follow, FollowStream};
use crate::progress::FollowProgress;
use crate::route::FollowRoute;
use crate::state_file::{SavedFollow, StateError, StateFile, StateHeader, load, parse};

/// A follow that has started.
pub(super) struct OpenFollow {
    pub(super) stream: FollowStream,
    pub(super) saver: Option<StateSaver>,
    pub(super) header: StateHeader,
    pub(super) progress: FollowProgress,
}

impl OpenFollow {
    /// Takes note that the feed is at another URL, before anything of it has arrived.
    pub(super) fn relocate(&mut self, url: &str) {
        self.header.relocate(url);
        self.saver.iter().for_each(|saver| saver.relocate(url));
    }
}

pub(super) async fn open(follow: Follow) -> Result<OpenFollow, ChangesError> {
    let feed = Url::parse(&follow.url)
        .map_err(|e| FollowError::Usage(format!("{:?} is not a URL: {e}", follow.url)))?;
    let saved = saved_follow(&follow, &feed)?;
    let fetcher = follow.named_fetcher()?;
    let (held, acknowledged) = match saved {
        Some(SavedFollow { protocol, follows, state, acknowledged }) => {
            (Some(FollowRoute::held(protocol, follows, state)), acknowledged)
        }
        None => (None, Vec::new()),
    };
    let route = follow.route(&fetcher, held).await.map_err(FollowError::from)?;
    let FollowRoute { protocol, url, state, .. } = route.clone();
    // Before the first request, so that an unwritable state file fails at once.
    let saver = match &follow.place {
        StatePlace::File(path) => Some(StateSaver::new(StateFile::open(path, &feed, protocol, &url)?)),
        _ => None,
    };
    let header = StateHeader::new(&feed, protocol, &url);
    let progress = FollowProgress::resume(state, &acknowledged);
    let stream = FollowStream::spawn(follow.follower(route)?, fetcher, follow.clock, follow.mode);
    Ok(OpenFollow { stream, saver, header, progress })
}

fn saved_follow(follow: &Follow, feed: &Url) -> Result<Option<SavedFollow>, StateError> {
    match &follow.place {
        StatePlace::None => Ok(None),
        StatePlace::File(path) => load(path, feed, follow.protocol),
        StatePlace::Content { name, content } => {
            content.as_ref().map(|content| parse(name, content, feed, follow.protocol)).transpose()
        }
    }
}
