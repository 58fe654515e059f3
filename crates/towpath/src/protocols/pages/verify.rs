//! Check of stored pages: their ranges follow each other, and the log still gives the bytes that were sealed.

use towpath_proto::FeedId;
use towpath_proto::change::{Change, Seq};
use towpath_proto::replication::pages::PageSpan;
use towpath_proto::replication::publish;
use towpath_store::{FeedSummary, Store, Table};

use crate::engine::finding::Findings;
use crate::engine::json_record;
use crate::engine::table_scan::TableScan;
use crate::protocols::pages::log_range::READ;
use crate::protocols::pages::table::{self, PageHeaders, RetentionRecord, SealedPage};
use crate::store_error::StoreError;

/// Reads the changes `first` to `last` that a log has, for a check.
pub(crate) async fn changes_between(
    store: &dyn Store,
    feed: &FeedId,
    first: Seq,
    last: Seq,
) -> Result<Vec<Change>, StoreError> {
    let mut changes: Vec<Change> = Vec::new();
    let mut after = first.saturating_sub(1);
    while after < last {
        let read = store.read(feed, after, READ).await?;
        let Some(reached) = read.last().map(|change| change.seq) else { break };
        after = reached;
        changes.extend(read.into_iter().filter(|change| change.seq <= last));
    }
    Ok(changes)
}

/// Checks the pages of a feed.
pub(crate) async fn verify(
    store: &dyn Store,
    feed: &FeedSummary,
    findings: &mut Findings,
) -> Result<(), StoreError> {
    match check(store, feed, findings).await {
        Err(StoreError::Damaged(reason)) => {
            findings.add(Some(feed.feed.as_str()), "pages of Data Replication", reason);
            Ok(())
        }
        done => done,
    }
}

async fn check(store: &dyn Store, feed: &FeedSummary, findings: &mut Findings) -> Result<(), StoreError> {
    let id = &feed.feed;
    let retention: Option<RetentionRecord> = json_record::load(store, &table::retention_key(id)).await?;
    let gone_below = retention.unwrap_or_default().cleanup.gone_below;
    let last: Option<PageSpan> = json_record::load(store, &table::last_key(id)).await?;
    let mut before: Option<PageSpan> = None;
    let first_key = table::page_key(id, gone_below.saturating_sub(1));
    let mut scan = TableScan::after(store, Table::Chains, table::prefix(&first_key), first_key.clone());
    while let Some(records) = scan.next().await? {
        for (key, value) in &records {
            let page: SealedPage = json_record::parse(key, value)?;
            let place = format!("page {}", page.span.number);
            let due = before.map_or((gone_below.max(1), None), |page| (page.number + 1, Some(page.last + 1)));
            let follows = page.span.number == due.0 && due.1.is_none_or(|first| first == page.span.first);
            let begins = before.is_some() || page.span.number > 1 || page.span.first == 1;
            findings.expect(follows && begins, id, &place, "it does not follow the page before it");
            check_page(store, id, &page, &place, findings).await?;
            before = Some(page.span);
        }
    }
    // All pages may be gone, and the last one's record stays.
    let is_last = before == last || (before.is_none() && last.is_some_and(|last| last.number < gone_below));
    findings.expect(
        is_last,
        id,
        "pages of Data Replication",
        "the record of the last page is not that page's",
    );
    let in_log = last.is_none_or(|last| last.last <= feed.head.seq);
    findings.expect(in_log, id, "pages of Data Replication", "they have changes that the log does not have");
    Ok(())
}

async fn check_page(
    store: &dyn Store,
    feed: &FeedId,
    page: &SealedPage,
    place: &str,
    findings: &mut Findings,
) -> Result<(), StoreError> {
    let (PageSpan { number, first, last, .. }, id) = (page.span, feed.clone());
    // A damaged span may be of any length.
    let head = store.head(feed).await?.seq;
    if first > last || last > head {
        findings.expect(false, feed, place, "its range is not one of the log");
        return Ok(());
    }
    let changes = changes_between(store, feed, first, last).await?;
    let is_whole = changes.len() as u64 == last - first + 1;
    findings.expect(is_whole, feed, place, "changes of it are missing in the log");
    if is_whole {
        let building = tokio::task::spawn_blocking(move || publish::page(&id, number, &changes));
        let built = building.await.map_err(|e| StoreError::View(e.to_string()))?;
        let is_same = built.is_some_and(|built| PageHeaders::of(&built) == page.made);
        findings.expect(is_same, feed, place, "the log gives other bytes than those that were sealed");
    }
    Ok(())
}
