//! Check of stored pages: their ranges follow each other, and the log still gives the bytes that were sealed.

use towpath_proto::FeedId;
use towpath_proto::change::{Change, Seq};
use towpath_proto::replication::pages::PageSpan;
use towpath_proto::replication::publish;
use towpath_store::{FeedSummary, ReadLimit, Store, Table};

use crate::engine::check_pool::CheckPool;
use crate::engine::finding::Findings;
use crate::engine::json_record;
use crate::engine::table_scan::TableScan;
use crate::protocols::pages::log_range::READ;
use crate::protocols::pages::table::{self, PageHeaders, RetentionRecord, SealedPage};
use crate::store_error::StoreError;

/// Place of a finding about all pages of a feed.
const PAGES: &str = "pages of Data Replication";

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
        // No more than is asked for: a snapshot's page may be made of a thousand single changes.
        let items = usize::try_from(last - after).unwrap_or(usize::MAX).min(READ.items);
        let read = store.read(feed, after, ReadLimit { items, ..READ }).await?;
        let Some(reached) = read.last().map(|change| change.seq) else { break };
        after = reached;
        // Up to the horizon the changes between may be gone, and the first that is left be behind.
        changes.extend(read.into_iter().filter(|change| change.seq <= last));
    }
    Ok(changes)
}

/// Checks the pages of a feed.
pub(crate) async fn verify(pool: &CheckPool, feed: &FeedSummary) -> Result<Findings, StoreError> {
    let mut findings = Findings::default();
    match check(pool, feed, &mut findings).await {
        Err(StoreError::Damaged(reason)) => {
            findings.add(Some(feed.feed.as_str()), PAGES, reason);
        }
        done => done?,
    }
    Ok(findings)
}

async fn check(pool: &CheckPool, feed: &FeedSummary, findings: &mut Findings) -> Result<(), StoreError> {
    let (store, id) = (&*pool.store, &feed.feed);
    let retention: Option<RetentionRecord> = json_record::load(store, &table::retention_key(id)).await?;
    let gone_below = retention.unwrap_or_default().cleanup.gone_below;
    let last: Option<PageSpan> = json_record::load(store, &table::last_key(id)).await?;
    let mut before: Option<PageSpan> = None;
    let first_key = table::page_key(id, gone_below.saturating_sub(1));
    let mut scan = TableScan::after(store, Table::Chains, table::prefix(&first_key), first_key.clone());
    while let Some(records) = scan.next().await? {
        let mut pages = Vec::with_capacity(records.len());
        let mut damage = Ok(());
        for (key, value) in &records {
            let page: SealedPage = match json_record::parse(key, value) {
                Ok(page) => page,
                Err(error) => {
                    damage = Err(error);
                    break;
                }
            };
            let due = before.map_or((gone_below.max(1), None), |page| (page.number + 1, Some(page.last + 1)));
            let follows = page.span.number == due.0 && due.1.is_none_or(|first| first == page.span.first);
            let begins = before.is_some() || page.span.number > 1 || page.span.first == 1;
            findings.expect(follows && begins, id, &place(&page), "it does not follow the page before it");
            before = Some(page.span);
            pages.push(page);
        }
        let checks = pages.into_iter().map(|page| {
            let (store, feed) = (pool.store.clone(), feed.clone());
            pool.run(async move { check_page(&*store, &feed, &page).await })
        });
        findings.0.extend(pool.join(checks).await?.0);
        damage?;
    }
    // All pages may be gone, and the last one's record stays.
    let is_last = before == last || (before.is_none() && last.is_some_and(|last| last.number < gone_below));
    findings.expect(is_last, id, PAGES, "the record of the last page is not that page's");
    let in_log = last.is_none_or(|last| last.last <= feed.head.seq);
    findings.expect(in_log, id, PAGES, "they have changes that the log does not have");
    Ok(())
}

fn place(page: &SealedPage) -> String {
    format!("page {}", page.span.number)
}

async fn check_page(
    store: &dyn Store,
    feed: &FeedSummary,
    page: &SealedPage,
) -> Result<Findings, StoreError> {
    let (PageSpan { number, first, last, .. }, id) = (page.span, &feed.feed);
    let (mut findings, place) = (Findings::default(), place(page));
    // A damaged span may be of any length.
    if first > last || last > feed.head.seq {
        findings.add(Some(id.as_str()), &place, "its range is not one of the log");
        return Ok(findings);
    }
    let changes = changes_between(store, id, first, last).await?;
    let is_whole = changes.len() as u64 == last - first + 1;
    findings.expect(is_whole, id, &place, "changes of it are missing in the log");
    if is_whole {
        let built = publish::page(id, number, &changes);
        let is_same = built.is_some_and(|built| PageHeaders::of(&built) == page.made);
        findings.expect(is_same, id, &place, "the log gives other bytes than those that were sealed");
    }
    Ok(findings)
}
