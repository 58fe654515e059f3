//! Steps back along a log, also where `[feed.log]` let changes go. The store reads forwards only.

use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_store::{ReadError, ReadLimit, Store};

/// Returns the position of the last change between two positions; `None` if there is none.
pub(super) async fn last_between(
    store: &dyn Store,
    log: &FeedId,
    after: Seq,
    before: Seq,
) -> Result<Option<Seq>, ReadError> {
    let (floor, mut width) = (after, 1);
    // Nothing is kept after this position.
    let mut empty = before.saturating_sub(1);
    // A gap may be millions of positions long: the steps double until they meet a change.
    let mut found = loop {
        if empty <= floor {
            return Ok(None);
        }
        let start = before.saturating_sub(1).saturating_sub(width).max(floor);
        if let Some(seq) = first_between(store, log, start, before).await? {
            break seq;
        }
        (empty, width) = (start, width.saturating_mul(2));
    };
    while found < empty {
        let middle = found + (empty - found) / 2;
        match first_between(store, log, middle, before).await? {
            Some(seq) => found = seq,
            None => empty = middle,
        }
    }
    Ok(Some(found))
}

/// Returns the position of the first change between two positions; `None` if there is none.
pub(super) async fn first_between(
    store: &dyn Store,
    log: &FeedId,
    after: Seq,
    before: Seq,
) -> Result<Option<Seq>, ReadError> {
    let read = store.read(log, after, ReadLimit::items(1)).await?;
    Ok(read.first().map(|change| change.seq).filter(|seq| *seq < before))
}

#[cfg(test)]
pub(super) mod tests {
    use towpath_proto::{Item, NewChange};
    use towpath_store::Expected;
    use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};

    use super::*;

    /// Opens a store whose log `aa` has 180 changes of 60 items, and has let go of old versions up to change 175.
    ///
    /// Changes 1 to 90 and 96 to 120 are gone: the items of 91 to 95 have no later version.
    pub(in super::super) async fn store_with_gaps(folder: &std::path::Path) -> (EmbeddedStore, FeedId) {
        let store = EmbeddedStore::open(folder, EmbeddedOptions::default()).unwrap();
        let log = FeedId::new("aa").unwrap();
        let put = |id: u64, n: u64| {
            let title = Some(format!("{id} of {n}"));
            NewChange::put(Item { title, ..Item::new(id.to_string()) })
        };
        let mut changes: Vec<NewChange> = (1..=120).map(|n| put((n - 1) % 60, n)).collect();
        // All but five of the middle, and the first five once more.
        changes.extend((0..60).filter(|id| !(30..35).contains(id)).map(|id| put(id, 200)));
        changes.extend((0..5).map(|id| put(id, 300)));
        store.append(&log, Expected::Any, changes).await.unwrap();
        let mut horizon = 0;
        while horizon < 175 {
            let head = store.let_go(&log, 175).await.unwrap();
            assert!(head.horizon > horizon, "it goes on");
            horizon = head.horizon;
        }
        (store, log)
    }

    #[tokio::test]
    async fn gaps_are_passed() {
        let folder = tempfile::tempdir().unwrap();
        let (store, log) = store_with_gaps(folder.path()).await;
        let kept = store.read(&log, 0, ReadLimit::items(500)).await.unwrap();
        let kept: Vec<Seq> = kept.iter().map(|change| change.seq).collect();
        assert_eq!(kept, (91..=95).chain(121..=180).collect::<Vec<_>>());
        for (after, before) in [
            (0, 1),
            (0, 2),
            (0, 61),
            (0, 91),
            (0, 92),
            (0, 181),
            (70, 75),
            (10, 120),
            (93, 94),
            (94, 121),
            (0, 500),
        ] {
            let between = || kept.iter().copied().filter(|seq| *seq > after && *seq < before);
            let first = first_between(&store, &log, after, before).await.unwrap();
            assert_eq!(first, between().next(), "{after} to {before}");
            let last = last_between(&store, &log, after, before).await.unwrap();
            assert_eq!(last, between().next_back(), "{after} to {before}");
        }
        store.close().await;
    }
}
