//! Conformance check of any Smart Feed with HTTP pull.
//!
//! The check sends a dozen requests, mostly for pages of two items, and compares the responses. Then it reads the
//! feed to its end, and tests every item and the long poll there. A feed that changes between two requests may fail
//! a comparison that it passes otherwise.

mod response;
mod rules;
#[cfg(test)]
mod tests;
mod walk;

use http::header::{ACCEPT, CONTENT_TYPE};
use jiff::SignedDuration;
use url::Url;

use self::response::SmartResponse;
use self::walk::Walk;
use crate::follow::probes::{ProbeCheck, ProbeQueue};
use crate::follow::single_request::{CollectedResponse, SentRequest};
use crate::follow::{Checker, MAX_DOCUMENT, Now, ReadLimits, Request};
use crate::format::media_type::essence;
use crate::report::{Report, Rule};
use crate::smart::wire::accept::PageFormat;
use crate::smart::wire::spec::{FeedOrder, PositionSpec};
use crate::smart::wire::{Collection, with_parameter, with_since};

/// Returns the rules of the check.
pub fn smart_rules() -> &'static [Rule] {
    rules::ALL
}

/// Callback function for the JSON-P probe.
const CALLBACK: &str = "towpath.check";
/// Long-poll timeout that the check requests, in seconds.
const HOLD: u64 = 2;

/// A request of the check, by the rule that it tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SmartProbe {
    First,
    Again,
    Second,
    Until,
    Next,
    Unlimited,
    Unreadable,
    Time,
    OtherFormat,
    Script,
    /// The next page of a long feed, up to its end.
    Walk,
    AtEnd,
    Hold,
}

impl SmartProbe {
    /// Returns the rule that fails if the request gets no response.
    fn rule(self) -> Rule {
        match self {
            Self::First => rules::OFFERED,
            Self::Again => rules::ORDER,
            Self::Second | Self::Walk => rules::SINCE,
            Self::Until => rules::UNTIL,
            Self::Next => rules::NEXT,
            Self::Unlimited => rules::DEFAULT_MAX,
            Self::Unreadable => rules::DEGRADE,
            Self::Time => rules::TIME,
            Self::OtherFormat => rules::FORMAT,
            Self::Script => rules::SCRIPT,
            Self::AtEnd => rules::AT_ONCE,
            Self::Hold => rules::HOLD,
        }
    }
}

/// A conformance check of one feed.
#[derive(Debug)]
pub struct SmartChecker {
    base: String,
    report: Report,
    probes: ProbeQueue<(SmartProbe, String)>,
    /// Format of the first page: JSON if the feed offers it.
    format: PageFormat,
    first: Option<Collection>,
    second: Option<Collection>,
    /// Number of items by a page in the other format.
    other_total: Option<u64>,
    walk: Walk,
    limits: ReadLimits,
}

impl SmartChecker {
    /// Creates a check of the feed with this base URL.
    pub fn new(url: &str) -> Self {
        let first = with_parameter(&with_parameter(url, "max", "2"), "timeout", "0");
        Self {
            base: url.to_owned(),
            report: Report::default(),
            probes: ProbeQueue::new([(SmartProbe::First, first)]),
            format: PageFormat::Json,
            first: None,
            second: None,
            other_total: None,
            walk: Walk::default(),
            limits: ReadLimits::default(),
        }
    }

    /// Sets the limits of what is read.
    #[must_use]
    pub fn within(mut self, limits: ReadLimits) -> Self {
        self.limits = limits;
        self
    }

    fn probe(&mut self, probe: SmartProbe, url: String) {
        self.probes.push_back((probe, url));
    }

    fn report_rule(&mut self, rule: Rule, problem: Option<String>) {
        self.report.judge(rule, problem);
    }

    fn judge(&mut self, probe: SmartProbe, response: &SmartResponse) {
        match probe {
            SmartProbe::First => self.judge_first(response),
            SmartProbe::Again => {
                let expected = ids(self.first.as_ref());
                self.compare(rules::ORDER, response, &expected, |found| found == expected);
            }
            SmartProbe::Second => self.judge_second(response),
            SmartProbe::Until => {
                let mut expected = ids(self.first.as_ref());
                expected.extend(ids(self.second.as_ref()));
                // `until` excludes the item of its cursor, which is the last of the second page.
                expected.pop();
                // `max` is an upper limit: a publisher may send fewer items.
                self.compare(rules::UNTIL, response, &expected, |found| {
                    !found.is_empty() && expected.windows(found.len()).any(|some| some == found)
                });
            }
            SmartProbe::Next => {
                let expected = ids(self.second.as_ref());
                // The publisher may choose another size for the next page.
                self.compare(rules::NEXT, response, &expected, |found| {
                    found.starts_with(&expected) || !found.is_empty() && expected.starts_with(found)
                });
            }
            SmartProbe::Unlimited => self.judge_unlimited(response),
            SmartProbe::Unreadable => {
                let problem = (response.status != 200).then(|| response.describe());
                self.report_rule(rules::DEGRADE, problem);
            }
            SmartProbe::Time => self.judge_time(response),
            SmartProbe::OtherFormat => self.judge_other_format(response),
            SmartProbe::Walk => self.judge_walk(response),
            SmartProbe::Script if rules::is_script(response) => {
                let expected = ids(self.first.as_ref());
                self.report_rule(rules::SCRIPT, rules::script_problem(response, CALLBACK, &expected));
            }
            // The media type alone makes the difference to a script.
            SmartProbe::Script
                if memchr::memmem::find(&response.body, CALLBACK.as_bytes())
                    .is_some_and(|at| response.body.get(at + CALLBACK.len()) == Some(&b'(')) =>
            {
                self.report_rule(rules::SCRIPT, Some(response.describe()));
            }
            SmartProbe::Script => {
                self.report.pass_over(&[rules::SCRIPT], "the feed does not offer scripts (MAY)");
            }
            SmartProbe::AtEnd => self.judge_end(response),
            SmartProbe::Hold => {
                // Half a second of tolerance for the publisher's clock and timer.
                let early = response.elapsed < SignedDuration::from_millis(HOLD as i64 * 1000 - 500);
                let problem = early || response.status != 200;
                let text = format!("{} after {:#}", response.describe(), response.elapsed);
                self.report_rule(rules::HOLD, problem.then_some(text));
            }
        }
    }

    fn judge_first(&mut self, response: &SmartResponse) {
        // Later probes request this format, so that pages are compared like with like.
        self.format = rules::format(response).unwrap_or(self.format);
        let Some(page) = self.judge_page(self.format, response) else { return };
        let count = page.items.len();
        let problem = (count > 2).then(|| format!("{}: {count} items with max=2", response.url));
        self.report_rule(rules::MAX, problem);
        let again = response.url.clone();
        self.probe(SmartProbe::Again, again);
        self.queue_probes(&page);
        self.first = Some(page);
    }

    /// Tests a single page; `None` if the response is not one.
    fn judge_page(&mut self, format: PageFormat, response: &SmartResponse) -> Option<Collection> {
        let page = rules::page(response, format)
            .map_err(|problem| self.report_rule(rules::FORMAT, Some(problem)))
            .ok()?;
        self.report_rule(rules::FORMAT, None);
        for (rule, problem) in rules::page_problems(format, &page, &response.body, &self.base) {
            self.report_rule(rule, problem);
        }
        Some(page)
    }

    /// Tests the parts of a page in the format of the first.
    fn judge_parts(&mut self, response: &SmartResponse, page: &Collection) {
        for (rule, problem) in rules::page_problems(self.format, page, &response.body, &self.base) {
            self.report_rule(rule, problem.map(|problem| format!("{}: {problem}", response.url)));
        }
    }

    fn queue_probes(&mut self, page: &Collection) {
        let base = self.base.clone();
        let two = with_parameter(&with_parameter(&base, "max", "2"), "timeout", "0");
        match &page.last_cursor {
            Some(cursor) => {
                self.probe(SmartProbe::Second, with_since(&two, &PositionSpec::Cursor(cursor.clone())));
            }
            None => self.report.pass_over(&[rules::SINCE, rules::UNTIL], "the feed is empty"),
        }
        match &page.next {
            Some(next) if Url::parse(next).is_ok() => self.probe(SmartProbe::Next, next.clone()),
            Some(next) => self.report_rule(rules::NEXT, Some(format!("next is {next:?}"))),
            None => {}
        }
        self.probe(SmartProbe::Unlimited, with_parameter(&base, "timeout", "0"));
        // No publisher issues this cursor: it must degrade, and not fail with a server error.
        self.probe(SmartProbe::Unreadable, with_since(&two, &PositionSpec::Cursor("~towpath~check~".into())));
        // Only in this order is an item's time the time of its position.
        let time =
            page.items.first().and_then(|item| item.modified).filter(|_| order(&base) == FeedOrder::MODIFIED);
        match time {
            Some(time) => {
                self.probe(SmartProbe::Time, with_parameter(&two, "since", &format!("time:{time}")));
            }
            None => self
                .report
                .pass_over(&[rules::TIME], "the items have no times, or the order is not order=modified"),
        }
        self.probe(SmartProbe::OtherFormat, two.clone());
        self.probe(SmartProbe::Script, with_parameter(&two, "callback", CALLBACK));
    }

    fn judge_second(&mut self, response: &SmartResponse) {
        let page = match rules::page(response, self.format) {
            Ok(page) => page,
            Err(problem) => return self.report_rule(rules::SINCE, Some(problem)),
        };
        self.judge_parts(response, &page);
        let before = ids(self.first.as_ref());
        let repeated = page.items.iter().map(|object| &object.item.id).find(|id| before.contains(id));
        let problem = repeated.map(|id| format!("{}: item {id:?} is before the cursor", response.url));
        self.report_rule(rules::SINCE, problem);
        if let (Some(cursor), false) = (&page.last_cursor, page.items.is_empty()) {
            let url = with_parameter(&self.base, "max", "4");
            let until = PositionSpec::Cursor(cursor.clone()).to_string();
            // Before the others: the less time passes, the less a busy feed changes between the compared pages.
            self.probes.push_front((SmartProbe::Until, with_parameter(&url, "until", &until)));
        } else {
            self.report.pass_over(&[rules::UNTIL], "the feed has too few items");
        }
        self.second = Some(page);
    }

    /// Reports a rule: the response must have items for which `fits` returns true, such as `expected`.
    fn compare(
        &mut self,
        rule: Rule,
        response: &SmartResponse,
        expected: &[String],
        fits: impl Fn(&[String]) -> bool,
    ) {
        let problem = match rules::page(response, self.format) {
            Err(problem) => Some(problem),
            Ok(page) => {
                self.judge_parts(response, &page);
                let found = ids(Some(&page));
                (!fits(&found)).then(|| format!("{}: items {found:?} instead of {expected:?}", response.url))
            }
        };
        self.report_rule(rule, problem);
    }

    fn judge_time(&mut self, response: &SmartResponse) {
        // Time positions are OPTIONAL: a client error is a refusal, and not a violation.
        if (400..500).contains(&response.status) {
            return self.report.pass_over(&[rules::TIME], "the feed does not support it (OPTIONAL)");
        }
        let expected = ids(self.first.as_ref()).into_iter().next();
        let problem = match rules::page(response, self.format) {
            Err(problem) => Some(problem),
            Ok(page) => expected
                .filter(|id| !ids(Some(&page)).contains(id))
                .map(|id| format!("{}: item {id:?} has exactly this time and is missing", response.url)),
        };
        self.report_rule(rules::TIME, problem);
    }

    /// Tests the other format, which a feed need not offer.
    fn judge_other_format(&mut self, response: &SmartResponse) {
        let other = self.format.other();
        // A server error is a failure in any format.
        if response.status < 500 && rules::format(response) != Some(other) {
            self.report.pass_over(rules::of_format(other), "the feed does not offer this format here");
            return self.report.pass_over(&[rules::SAME_ITEMS], "the feed has one format here");
        }
        let Some(page) = self.judge_page(other, response) else { return };
        let (found, expected) = (ids(Some(&page)), ids(self.first.as_ref()));
        let problem = (found != expected).then(|| format!("the items are {found:?} and {expected:?}"));
        self.report_rule(rules::SAME_ITEMS, problem);
        self.other_total = page.total;
        let Some(first) = &self.first else { return };
        let differs = |a: &Option<String>, b: &Option<String>| a.is_some() && b.is_some() && a != b;
        let cursor = differs(&page.last_cursor, &first.last_cursor)
            .then(|| format!("{:?} in one format, {:?} in the other", page.last_cursor, first.last_cursor));
        self.report_rule(rules::LAST_CURSOR, cursor);
    }

    fn judge_end(&mut self, response: &SmartResponse) {
        // Five seconds leave room for a slow link; a publisher that ignores `timeout=0` holds for 55.
        let late = response.elapsed > SignedDuration::from_secs(5);
        let problem = (late || response.status != 200)
            .then(|| format!("{} after {:#}", response.describe(), response.elapsed));
        self.report_rule(rules::AT_ONCE, problem);
        if response.status != 200 {
            return;
        }
        match rules::page(response, self.format) {
            Err(problem) => self.report_rule(rules::FORMAT, Some(problem)),
            Ok(page) => {
                self.judge_parts(response, &page);
                self.judge_totals(response, &page);
            }
        }
    }

    fn end(&mut self, now: Now, answer: CollectedResponse<(SmartProbe, String)>) {
        let (SentRequest { purpose: (probe, _), url, sent }, whole) = answer.whole();
        let elapsed = SignedDuration::try_from(now.monotonic.since(sent)).unwrap_or(SignedDuration::MAX);
        let (head, body) = match whole {
            Ok(whole) => whole,
            Err(error) => return self.report_rule(probe.rule(), Some(format!("{url}: {error}"))),
        };
        self.report_rule(rules::OFFERED, None);
        let media_type = head.header(CONTENT_TYPE.as_str()).unwrap_or_default();
        let media_type = essence(media_type).to_ascii_lowercase();
        self.judge(
            probe,
            &SmartResponse {
                url,
                status: head.status,
                media_type,
                body,
                limits: self.limits.document,
                elapsed,
            },
        );
    }
}

/// Returns the order that the base URL selects.
fn order(base: &str) -> FeedOrder {
    let query = base.split_once('?').map_or("", |(_, query)| query);
    let order = query.split('&').find_map(|pair| pair.strip_prefix("order="));
    order.and_then(FeedOrder::parse).unwrap_or(FeedOrder::MODIFIED)
}

fn ids(page: Option<&Collection>) -> Vec<String> {
    page.into_iter().flat_map(|page| &page.items).map(|object| object.item.id.clone()).collect()
}

impl ProbeCheck for SmartChecker {
    type Probe = (SmartProbe, String);

    fn probes(&self) -> &ProbeQueue<Self::Probe> {
        &self.probes
    }

    fn probes_mut(&mut self) -> &mut ProbeQueue<Self::Probe> {
        &mut self.probes
    }

    fn url(&self, (_, url): &Self::Probe) -> String {
        url.clone()
    }

    fn prepare(&self, (probe, _): &Self::Probe, mut request: Request) -> Request {
        let accept = match probe {
            SmartProbe::First => "application/json, application/atom+xml;q=0.5",
            SmartProbe::OtherFormat => self.format.other().media_type(),
            // `*/*` lets a feed without scripts respond with a page, and not with 406.
            SmartProbe::Script => "application/javascript, */*;q=0.1",
            _ => self.format.media_type(),
        };
        // A publisher without a default maximum may send everything.
        request.max_body = self.limits.largest_document(MAX_DOCUMENT);
        request.patience += std::time::Duration::from_secs(HOLD);
        request.with(ACCEPT, accept)
    }

    fn judge_response(&mut self, now: Now, response: CollectedResponse<Self::Probe>) {
        self.end(now, response);
    }
}

impl Checker for SmartChecker {
    fn report(&self) -> &Report {
        &self.report
    }
}
