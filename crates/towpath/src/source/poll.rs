//! One poll of one source: load, read, compare, append.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use towpath_proto::diff::{Diff, GuardError, Known, Listing, diff};
use towpath_proto::format::{self, FeedDocument, Format, FormatError, ReadOptions};
use towpath_proto::{Item, NewChange};
use towpath_store::{AppendError, Expected, StoreError};

use super::load::{LoadError, Loaded, load};
use super::schedule::{next_poll, next_read};
use super::state::{SourceError, SourceState};
use crate::blocking::blocking;
use crate::client::{Fetcher, local_path};
use crate::config::{SourceConfig, SourceFormat};
use crate::engine::diffdelta::{Run, publish};
use crate::engine::roles::{self, Lease};
use crate::engine::{Engine, Feed};

/// How many problems of a document are kept.
const KEPT_PROBLEMS: usize = 10;
/// How often a poll compares again because somebody else appended to the feed meanwhile.
const TRIES: usize = 5;

/// How a poll ended.
#[derive(Debug, Default)]
pub struct Polled {
    /// Items that are new, came back, changed or went.
    pub new: usize,
    /// Items whose content is another.
    pub updated: usize,
    /// Items that are gone.
    pub removed: usize,
    /// Items that are as they were; `None` where the document was not even read, for it had not changed.
    pub unchanged: Option<usize>,
    /// What was left out of the document.
    pub problems: Vec<String>,
    /// Why the poll failed.
    pub error: Option<SourceError>,
}

/// Why a poll failed.
#[derive(Debug, thiserror::Error)]
enum PollError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("{address}: {source}")]
    Format { address: String, source: FormatError },
    #[error("{address}: {source}")]
    Guard { address: String, source: GuardError },
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error("reading the document failed: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

impl From<StoreError> for PollError {
    fn from(error: StoreError) -> Self {
        Self::Append(error.into())
    }
}

/// What a successful poll leaves behind.
struct Success {
    polled: Polled,
    kept: Option<Kept>,
}

/// What is kept of a document that was read.
struct Kept {
    body: String,
    validators: crate::client::Validators,
    moved_to: Option<String>,
}

/// Polls a feed's source once, appends what changed, and publishes. An error never deletes anything: it is
/// kept as the source's state, with every known item and the cursor as they were.
pub async fn poll(
    engine: &Arc<Engine>,
    fetcher: &Fetcher,
    lease: &Lease,
    feed: &Arc<Feed>,
) -> Result<Polled, StoreError> {
    let Some((source, address)) = feed.config.polled() else { return Ok(Polled::default()) };
    let mut state = SourceState::load(engine.store.as_ref(), feed.id(), &fingerprint(source)).await?;
    let now = engine.now();
    let result = attempt(engine, fetcher, (feed, lease), source, address, &state, now).await;
    state.last_attempt = Some(now);
    let (polled, stay_away) = match result {
        Ok(success) => (settle(&mut state, success, now), None),
        Err(error) => {
            let stay_away = error.retry_after();
            (fail(&mut state, &error), stay_away)
        }
    };
    let wait = match local_path(address) {
        Some(_) => next_read(source.every()),
        None => next_poll(source.every(), state.failures, stay_away, fastrand::u64(..)),
    };
    state.next = now.checked_add(jiff::SignedDuration::try_from(wait).unwrap_or_default()).ok();
    state.save(engine.store.as_ref(), lease, feed.id()).await?;
    let run = match &state.error {
        None => Run::Polled,
        Some(error) => Run::Failed { code: error.code.clone(), http_status: error.http_status },
    };
    let counter = if state.error.is_none() { &engine.metrics.polls_ok } else { &engine.metrics.polls_failed };
    counter.inc();
    publish(engine, feed, run).await?;
    Ok(polled)
}

fn settle(state: &mut SourceState, success: Success, now: Timestamp) -> Polled {
    state.last_ok = Some(now);
    state.failures = 0;
    state.error = None;
    if let Some(kept) = success.kept {
        state.body = Some(kept.body);
        state.validators = kept.validators;
        state.moved_to = kept.moved_to;
        state.problems = success.polled.problems.iter().take(KEPT_PROBLEMS).cloned().collect();
    }
    success.polled
}

fn fail(state: &mut SourceState, error: &PollError) -> Polled {
    let error = error.kept();
    state.failures = state.failures.saturating_add(1);
    state.error = Some(error.clone());
    Polled { error: Some(error), ..Polled::default() }
}

async fn attempt(
    engine: &Arc<Engine>,
    fetcher: &Fetcher,
    own: (&Arc<Feed>, &Lease),
    source: &SourceConfig,
    address: &str,
    state: &SourceState,
    now: Timestamp,
) -> Result<Success, PollError> {
    let loaded = load(fetcher, source, address, &engine.config.folder, state, now).await?;
    let Loaded::Document { bytes, content_type, base_url, validators, moved_to } = loaded else {
        return Ok(Success { polled: Polled::default(), kept: None });
    };
    let body = hex::encode(Sha256::digest(&bytes));
    let kept = Kept { body, validators, moved_to };
    // The same bytes as last time: nothing to read. (Unless somebody else could have changed the feed since.)
    if state.error.is_none() && state.body.as_ref() == Some(&kept.body) {
        return Ok(Success { polled: Polled::default(), kept: Some(kept) });
    }
    let document = read(source, address, bytes, content_type, base_url).await?;
    let polled = apply(engine, own, source, address, document).await?;
    Ok(Success { polled, kept: Some(kept) })
}

/// Reads a document, apart from the threads that serve and fetch.
async fn read(
    source: &SourceConfig,
    address: &str,
    bytes: Bytes,
    content_type: Option<String>,
    base_url: Option<String>,
) -> Result<FeedDocument, PollError> {
    let format = match source.format {
        SourceFormat::Auto => None,
        SourceFormat::Rss => Some(Format::Rss),
        SourceFormat::Atom => Some(Format::Atom),
        SourceFormat::JsonFeed => Some(Format::JsonFeed),
        SourceFormat::Json => Some(Format::Json),
    };
    let mapping = source.json.clone();
    let address = address.to_owned();
    let reading = blocking(move || {
        let options = ReadOptions {
            format,
            content_type: content_type.as_deref(),
            base_url: base_url.as_deref(),
            mapping: mapping.as_ref(),
        };
        format::read(&bytes, &options).map_err(|source| PollError::Format { address, source })
    });
    reading.await?
}

/// Compares a document with what is known and appends the difference; compares again where somebody else
/// appended in between.
async fn apply(
    engine: &Arc<Engine>,
    (feed, lease): (&Arc<Feed>, &Lease),
    source: &SourceConfig,
    address: &str,
    document: FeedDocument,
) -> Result<Polled, PollError> {
    let complete = source.complete || document.is_complete();
    let listing = if complete { Listing::Complete } else { Listing::Window };
    let document = Arc::new(document);
    let mut tries = 0;
    loop {
        let head = engine.store.head(feed.id()).await?;
        let known = known(engine, feed, listing, &document).await?;
        let guard = source.guard.into();
        let (compared, address) = (document.clone(), address.to_owned());
        let comparing = blocking(move || {
            let newest_first = compared.format != Format::Json;
            let found = diff(&known, compared.items.clone(), newest_first, listing, guard);
            found.map(|mut found| {
                remove_deleted(&mut found, &known, &compared);
                found
            })
        });
        let found = comparing.await?.map_err(|source| PollError::Guard { address, source })?;
        let polled = summary(&found, &document);
        // Another node may have polled since: what it appended, this document may not undo.
        roles::check(lease)?;
        match append(engine, feed, head.seq, found.changes).await {
            Err(PollError::Append(AppendError::Conflict { .. })) if tries < TRIES => tries += 1,
            other => return other.map(|()| polled),
        }
    }
}

async fn known(
    engine: &Engine,
    feed: &Feed,
    listing: Listing,
    document: &FeedDocument,
) -> Result<Known, StoreError> {
    if listing == Listing::Complete {
        return engine.store.known(feed.id(), None).await;
    }
    let items = document.items.iter().map(|item: &Item| item.id.clone());
    let deleted = document.deleted.iter().map(|entry| entry.id.clone());
    let ids: Vec<String> = items.chain(deleted).collect();
    engine.store.known(feed.id(), Some(&ids)).await
}

/// RFC 6721: entries that the document says are deleted, where they are known and live.
fn remove_deleted(found: &mut Diff, known: &Known, document: &FeedDocument) {
    let mut listed: HashSet<&str> = found.changes.iter().map(|change| change.item.id.as_str()).collect();
    let is_live = |id: &str| known.get(id).is_some_and(Option::is_some);
    let ids = document.deleted.iter().map(|entry| entry.id.as_str());
    let removed: Vec<NewChange> =
        ids.filter(|id| is_live(id) && listed.insert(id)).map(NewChange::delete).collect();
    found.removed += removed.len();
    found.changes.extend(removed);
}

async fn append(engine: &Engine, feed: &Feed, last: u64, changes: Vec<NewChange>) -> Result<(), PollError> {
    if !changes.is_empty() {
        engine.store.append(feed.id(), Expected::Last(last), changes).await?;
    }
    Ok(())
}

fn summary(found: &Diff, document: &FeedDocument) -> Polled {
    Polled {
        new: found.new,
        updated: found.updated,
        removed: found.removed,
        unchanged: Some(found.unchanged),
        problems: document.problems.iter().chain(&found.problems).cloned().collect(),
        error: None,
    }
}

impl PollError {
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Load(LoadError::Status { retry_after, .. }) => *retry_after,
            _ => None,
        }
    }

    fn kept(&self) -> SourceError {
        let message = self.to_string();
        let code = match self {
            Self::Load(LoadError::Status { status, .. }) => return SourceError::of_status(*status, message),
            Self::Load(LoadError::Transfer { source, .. }) => {
                return SourceError::of_transfer(source, message);
            }
            Self::Format { source: FormatError::Truncated { .. }, .. } => "TRUNCATED",
            Self::Format { .. } => "PARSE_ERROR",
            Self::Guard { .. } => "GUARD",
            Self::Append(_) => "STORE_ERROR",
            Self::Broken(_) => "INTERNAL_ERROR",
        };
        SourceError::new(code, message)
    }
}

/// A digest of what a source's state holds for: another address, format or mapping begins anew.
pub(crate) fn fingerprint(source: &SourceConfig) -> String {
    let address = source.url.as_ref().or(source.follow.as_ref());
    let text = format!("{address:?} {:?} {:?} {}", source.format, source.json, source.complete);
    hex::encode(&Sha256::digest(text.as_bytes())[..8])
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use towpath_proto::format::DeletedEntry;

    use super::*;

    fn document(ids: impl Iterator<Item = String>) -> FeedDocument {
        let mut document = FeedDocument::new(Format::Atom);
        document.deleted.extend(ids.map(|id| DeletedEntry { id, when: None }));
        document
    }

    #[test]
    fn what_is_said_to_be_deleted_is_removed_once_where_it_is_live_and_not_listed() {
        let live = |id: &str| (id.to_owned(), Some(Item::new(id).content_hash()));
        let known = Known::from_iter([live("a"), live("b"), ("c".into(), None)]);
        let changes = vec![NewChange::put(Item::new("b"))];
        let mut found = Diff { changes, ..Diff::default() };
        remove_deleted(
            &mut found,
            &known,
            &document(["a", "b", "a", "c", "d"].map(String::from).into_iter()),
        );
        assert_eq!(found.removed, 1);
        assert_eq!(found.changes[1..], [NewChange::delete("a")]);
    }

    /// Looking through all changes for each would take half a minute.
    #[test]
    fn many_deleted_entries_take_little_time() {
        let ids = || (0..100_000).map(|number| format!("{number:08}"));
        let hash = Item::new("a").content_hash();
        let known = ids().map(|id| (id, Some(hash))).collect();
        let (mut found, document) = (Diff::default(), document(ids()));
        let begun = Instant::now();
        remove_deleted(&mut found, &known, &document);
        assert_eq!(found.removed, 100_000);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}
