//! Start of a stream of changes: the state, the protocol, the follower.

use towpath_proto::FeedId;
use towpath_proto::follow::FollowError;
use url::Url;

use super::saver::StateSaver;
use super::{ChangesError, StatePlace};
use crate::discover::{DiscoverError, discover, locate};
use crate::fetch::Fetcher;
use crate::follow::{Follow, FollowStream, named_fetcher};
use crate::progress::FollowProgress;
use crate::protocol::{FollowPace, FollowerConfig, Protocol, follower};
use crate::state_file::{SavedFollow, StateError, StateFile, StateHeader, load, parse};

/// A follow that has started.
pub(super) struct OpenFollow {
    pub(super) stream: FollowStream,
    pub(super) saver: Option<StateSaver>,
    pub(super) header: StateHeader,
    pub(super) progress: FollowProgress,
}

/// Protocol and URL of a follow.
struct FeedRoute {
    protocol: Protocol,
    url: String,
    name: Option<FeedId>,
}

pub(super) async fn open(follow: Follow) -> Result<OpenFollow, ChangesError> {
    let feed = Url::parse(&follow.url)
        .map_err(|e| FollowError::Usage(format!("{:?} is not a URL: {e}", follow.url)))?;
    let saved = saved_follow(&follow, &feed)?;
    let config = follow.config()?;
    let Follow { url, protocol, state, mode, fetcher, place, clock, .. } = follow;
    let fetcher = named_fetcher(fetcher, &url)?;
    let (route, state, acknowledged) = match (saved, state, protocol) {
        (Some(SavedFollow { protocol, follows, state, acknowledged }), _, _) => {
            (FeedRoute { protocol, url: follows, name: None }, state, acknowledged)
        }
        // Discovering again might find another protocol, whose state differs.
        (None, Some(state), Some(protocol)) => {
            (FeedRoute { protocol, url, name: None }, Some(state), Vec::new())
        }
        (None, state, requested) => (choose(&fetcher, &url, requested).await?, state, Vec::new()),
    };
    let FeedRoute { protocol, url, name } = route;
    // Before the first request, so that an unwritable state file fails at once.
    let saver = match &place {
        StatePlace::File(path) => Some(StateSaver::new(StateFile::open(path, &feed, protocol, &url)?)),
        _ => None,
    };
    let header = StateHeader::new(&feed, protocol, &url);
    let progress = FollowProgress::resume(state.clone(), &acknowledged);
    let config = FollowerConfig { url: url.clone(), name, state, ..config };
    let follower = follower(protocol, config)?;
    let stream = FollowStream::spawn(follower, fetcher, clock, protocol, url, mode);
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

/// Finds the feed's strongest protocol, or its address for the requested one.
async fn choose(fetcher: &Fetcher, url: &str, requested: Option<Protocol>) -> Result<FeedRoute, FollowError> {
    if let Some(protocol) = requested {
        let found = locate(fetcher, url, protocol).await.map_err(follow_error)?;
        let url = found.unwrap_or_else(|| url.to_owned());
        return Ok(FeedRoute { protocol, url, name: None });
    }
    let offer = discover(fetcher, url, FollowPace::Held).await.map_err(follow_error)?;
    tracing::info!(url = %offer.url, protocol = %offer.protocol, because = %offer.why, "following");
    Ok(FeedRoute { protocol: offer.protocol, url: offer.url, name: offer.feed })
}

/// Converts the error without naming an option of the command line.
fn follow_error(error: DiscoverError) -> FollowError {
    match error {
        DiscoverError::Unknown { url, what } => {
            let reason = format!("{what}, not a feed that can be recognised");
            FollowError::Protocol { url, reason }
        }
        other => other.into(),
    }
}
