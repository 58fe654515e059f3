//! A node among others: the place of an append in its answer, readers that wait for theirs, and how old what is read may
//! be.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::timeout;
use towpath_proto::FeedId;
use towpath_proto::change::Seq;

use super::problem::Problem;
use crate::engine::Engine;

/// In the answer to an append: the feed's last place then. In a request to read: the place that the answer must have.
pub(super) const POSITION: HeaderName = HeaderName::from_static("towpath-position");
/// How old what is read may be, in seconds, where it is not current; `unknown` since a start without the cluster.
pub(super) const AGE: HeaderName = HeaderName::from_static("towpath-replica-age");

/// The longest that a read waits for its place.
const PATIENCE: Duration = Duration::from_secs(5);

/// Says where a feed's log ends with what was just appended.
pub(super) fn say_position(headers: &mut HeaderMap, seq: Seq) {
    headers.insert(POSITION, seq.into());
}

/// Says how old what is answered may be, unless it is current.
pub(super) fn say_age(engine: &Engine, headers: &mut HeaderMap) {
    let age = engine.replica_age().map(|age| age.map_or(HeaderValue::from_static("unknown"), Into::into));
    age.map(|age| headers.insert(AGE, age));
}

/// Waits until this node has the place of a feed's log that the request demands.
pub(super) async fn wait(engine: &Arc<Engine>, feed: &str, request: &HeaderMap) -> Result<(), Problem> {
    let Some(value) = request.get(POSITION) else { return Ok(()) };
    let wanted: Option<Seq> = value.to_str().ok().and_then(|value| value.trim().parse().ok());
    let wanted = wanted.ok_or_else(|| Problem::bad_request("Towpath-Position is not a number"))?;
    let known = engine.feed(feed);
    let has = |seq: Seq| seq >= wanted;
    if wanted == 0 || known.as_ref().is_some_and(|known| has(known.head.load(Ordering::Acquire))) {
        return Ok(());
    }
    // Another node may have made the feed by that very append.
    let log = match &known {
        Some(known) => known.log().clone(),
        None => FeedId::new(feed).map_err(|e| Problem::not_found(e.to_string()))?,
    };
    let behind = || Problem::behind(format!("this node does not have the place {wanted} of {log} yet"));
    match timeout(PATIENCE, engine.store.wait(&log, wanted - 1)).await {
        Ok(reached) => Ok(reached.map(drop)?),
        Err(_) => Err(behind()),
    }
}
