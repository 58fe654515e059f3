//! Reads a feed to its end and tests every item on the way.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use jiff::Timestamp;

use super::response::SmartResponse;
use super::{HOLD, SmartChecker, SmartProbe, ids, order, rules};
use crate::report::Rule;
use crate::smart::wire::accept::PageFormat;
use crate::smart::wire::spec::{FeedOrder, PositionSpec};
use crate::smart::wire::{Collection, with_parameter, with_since};

/// Largest feed that may fit one page without proof of a default maximum, in items.
const MAX_SINGLE_PAGE: u64 = 1000;
/// Number of items that a request of the walk asks for.
const PAGE_ITEMS: &str = "1000";
/// Maximum number of pages and items that the walk reads.
const MAX_PAGES: u32 = 1000;
const MAX_ITEMS: usize = 200_000;

/// Facts of the items read so far.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Time of each item by the hash of its id: whole ids of a long feed would fill the memory.
    times: HashMap<u64, Option<Timestamp>>,
    hasher: RandomState,
    last_time: Option<Timestamp>,
    pages: u32,
    /// `totalItems` of the first page.
    total: Option<u64>,
    /// The first item that was read again with another time.
    returned: Option<String>,
    /// Cursor of the last item.
    cursor: Option<String>,
}

impl Walk {
    /// Tests the items of a page among themselves and with those before. Returns the problem of each rule.
    fn read(&mut self, page: &Collection, base: &str) -> (Option<String>, Option<String>) {
        let (mut repeated, mut disordered) = (None, None);
        let by_time = base.contains("order=modified") || base.contains("order=-modified");
        let is_descending = order(base).descending;
        for object in &page.items {
            let id = self.hasher.hash_one(&object.item.id);
            let other = self.times.insert(id, object.modified);
            let problem = || format!("item {:?} occurs twice", object.item.id);
            match other {
                Some(time) if time.is_none() || time == object.modified => {
                    repeated.get_or_insert_with(problem);
                }
                // An item that changed during the walk moved to the end, with a new time.
                Some(_) if self.returned.is_none() => self.returned = Some(problem()),
                _ => {}
            }
            if let (Some(before), Some(time), true) = (self.last_time, object.modified, by_time)
                && (if is_descending { time > before } else { time < before })
            {
                disordered
                    .get_or_insert_with(|| format!("item {:?} of {time} is after {before}", object.item.id));
            }
            self.last_time = object.modified;
        }
        (repeated, disordered)
    }
}

impl SmartChecker {
    /// Judges the page without `max`, from which the walk begins.
    pub(super) fn judge_unlimited(&mut self, response: &SmartResponse) {
        let page = match rules::page(response, self.format) {
            Ok(page) => page,
            Err(problem) => return self.report_rule(rules::DEFAULT_MAX, Some(problem)),
        };
        let (count, total) = (page.items.len() as u64, page.total.unwrap_or_default());
        if count >= total && total <= MAX_SINGLE_PAGE {
            self.report.pass_over(&[rules::DEFAULT_MAX], "the whole feed fits one page");
        } else {
            let problem = (count >= total).then(|| format!("{}: all {count} items at once", response.url));
            self.report_rule(rules::DEFAULT_MAX, problem);
        }
        // The pages of two items were read with cursors: a cursor that skips an item shows here.
        let mut expected = ids(self.first.as_ref());
        expected.extend(ids(self.second.as_ref()));
        let found = ids(Some(&page));
        let problem = (found.len() >= expected.len() && !found.starts_with(&expected))
            .then(|| format!("{}: items {found:.4?} begin unlike {expected:?}", response.url));
        self.report_rule(rules::SINCE, problem);
        self.judge_parts(response, &page);
        self.walk.total = page.total;
        self.walk_on(page, &response.url);
    }

    pub(super) fn judge_walk(&mut self, response: &SmartResponse) {
        match rules::page(response, self.format) {
            Ok(page) => {
                // On a long feed the counts of each page are tested too.
                self.judge_parts(response, &page);
                self.walk_on(page, &response.url);
            }
            Err(problem) => self.report_rule(rules::SINCE, Some(problem)),
        }
    }

    fn walk_on(&mut self, page: Collection, url: &str) {
        let base = self.base.clone();
        self.walk.pages += 1;
        let (repeated, disordered) = self.walk.read(&page, &base);
        let at = |problem: String| format!("{url}: {problem}");
        self.report_rule(rules::UNIQUE, repeated.map(at));
        if order(&base) == FeedOrder::MODIFIED || order(&base).descending {
            self.report_rule(rules::TIMES_ORDER, disordered.map(at));
        }
        self.report_rule(rules::DELETED, rules::deleted_with_content(&page).map(at));
        let seen = self.walk.times.len();
        let is_last = page.items.is_empty()
            || (page.next.is_none() && page.total.is_some_and(|total| seen as u64 >= total));
        // A page without items need not repeat the cursor.
        self.walk.cursor = page.last_cursor.or(self.walk.cursor.take().filter(|_| page.items.is_empty()));
        let Some(cursor) = self.walk.cursor.clone().map(PositionSpec::Cursor) else {
            let why = "the last page has no cursor";
            return self.report.pass_over(&[rules::AT_ONCE, rules::HOLD], why);
        };
        if !is_last && self.walk.pages < MAX_PAGES && seen < MAX_ITEMS {
            let next = with_parameter(&with_since(&base, &cursor), "max", PAGE_ITEMS);
            return self.probe(SmartProbe::Walk, with_parameter(&next, "timeout", "0"));
        }
        if !is_last {
            let why = format!("the end of the feed is more than {seen} items away");
            return self.report.pass_over(&[rules::AT_ONCE, rules::HOLD], &why);
        }
        // Only a total that stood still can be compared with what was read meanwhile.
        let is_wrong = self.walk.total == page.total && page.total.is_some_and(|total| total != seen as u64);
        let problem = is_wrong.then(|| format!("{url}: {:?}, and the feed has {seen} items", page.total));
        self.report_rule(self.total_rule(self.format), problem);
        // Too few items for the total: what was read again did not change, but is another item.
        let is_short = is_wrong && page.total.is_some_and(|total| total > seen as u64);
        let returned = self.walk.returned.take().filter(|_| is_short);
        self.report_rule(rules::UNIQUE, returned);
        self.probe_end(&with_since(&base, &cursor));
    }

    fn total_rule(&self, format: PageFormat) -> Rule {
        if format == PageFormat::Json { rules::TOTAL } else { rules::ATOM_TOTAL }
    }

    /// Compares the totals of the empty page at the end with those before.
    pub(super) fn judge_totals(&mut self, response: &SmartResponse, page: &Collection) {
        let (seen, url) = (self.walk.times.len() as u64, &response.url);
        // In an ascending order all that is new is at the end, so it was read.
        let is_whole = !order(&self.base).descending && page.items.is_empty();
        let unseen = page.total.filter(|total| is_whole && *total > seen);
        let problem = unseen.map(|total| format!("{url}: {total}, and the feed has {seen} items"));
        self.report_rule(self.total_rule(self.format), problem);
        // Read between two pages with this total, the other format has it too.
        let stood = self.walk.total.filter(|total| page.total == Some(*total));
        if let (Some(total), Some(other)) = (stood, self.other_total) {
            let problem = (total != other).then(|| format!("{other} in one format, {total} in the other"));
            self.report_rule(self.total_rule(self.format.other()), problem);
        }
    }

    /// Queues the requests at the end of the feed.
    fn probe_end(&mut self, url: &str) {
        self.probe(SmartProbe::AtEnd, with_parameter(url, "timeout", "0"));
        if order(&self.base).descending {
            self.report.pass_over(&[rules::HOLD], "in a descending order no items are appended at the end");
        } else {
            self.probe(SmartProbe::Hold, with_parameter(url, "timeout", &HOLD.to_string()));
        }
    }
}
