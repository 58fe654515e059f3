//! A conformance check of any Smart Feed that is offered by HTTP pull.
//!
//! It asks a dozen times, for pages of two items, and compares what comes. A feed that changes between two
//! requests may fail a comparison that it would pass at rest.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use jiff::{SignedDuration, Timestamp};
use url::Url;

use super::accept::PageFormat;
use super::check_rules as rules;
use super::spec::{Order, Spec};
use super::wire::{Collection, with_parameter, with_since};
use crate::asking::{Answer, Asked, Asking};
use crate::follow::{Checker, Exchange, Request, RequestId, ResponseHead, TransferError};
use crate::report::{Report, Rule};

/// The function that the check has answers wrapped in.
const CALLBACK: &str = "towpath.check";
/// How long the check asks a publisher to hold a request, in seconds.
const HOLD: u64 = 2;
/// How many items a feed may have and send in one answer, to be taken for one with a default maximum.
const MANY: u64 = 1000;

/// What a request is to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probe {
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
    AtEnd,
    Hold,
}

impl Probe {
    /// The rule that is broken where there is no answer at all.
    fn rule(self) -> Rule {
        match self {
            Self::First => rules::OFFERED,
            Self::Again => rules::ORDER,
            Self::Second => rules::SINCE,
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

/// An answer that has come whole.
pub(super) struct Response {
    pub(super) url: String,
    pub(super) status: u16,
    pub(super) media_type: String,
    pub(super) body: Bytes,
    pub(super) took: SignedDuration,
}

/// A conformance check of one feed.
#[derive(Debug)]
pub struct SmartChecker {
    base: String,
    report: Report,
    probes: VecDeque<(Probe, String)>,
    asking: Asking<Probe>,
    /// What the feed answers in: JSON where it can.
    format: PageFormat,
    first: Option<Collection>,
    second: Option<Collection>,
}

impl SmartChecker {
    /// A check of the feed with this base URL.
    pub fn new(url: &str) -> Self {
        let first = with_parameter(&with_parameter(url, "max", "2"), "timeout", "0");
        Self {
            base: url.to_owned(),
            report: Report::default(),
            probes: VecDeque::from([(Probe::First, first)]),
            asking: Asking::default(),
            format: PageFormat::Json,
            first: None,
            second: None,
        }
    }

    fn probe(&mut self, probe: Probe, url: String) {
        self.probes.push_back((probe, url));
    }

    fn note(&mut self, rule: Rule, problem: Option<String>) {
        self.report.judge(rule, problem);
    }

    fn judge(&mut self, probe: Probe, response: &Response) {
        match probe {
            Probe::First => self.judge_first(response),
            Probe::Again => {
                let wanted = ids(self.first.as_ref());
                self.compare(rules::ORDER, response, &wanted, |found| found == wanted);
            }
            Probe::Second => self.judge_second(response),
            Probe::Until => {
                let mut wanted = ids(self.first.as_ref());
                wanted.extend(ids(self.second.as_ref()));
                wanted.pop();
                // A publisher may send fewer than were asked for.
                self.compare(rules::UNTIL, response, &wanted, |found| {
                    !found.is_empty() && wanted.windows(found.len()).any(|some| some == found)
                });
            }
            Probe::Next => {
                let wanted = ids(self.second.as_ref());
                self.compare(rules::NEXT, response, &wanted, |found| {
                    found.starts_with(&wanted) || !found.is_empty() && wanted.starts_with(found)
                });
            }
            Probe::Unlimited => self.judge_unlimited(response),
            Probe::Unreadable => {
                let problem = (response.status >= 500).then(|| response.describe());
                self.note(rules::DEGRADE, problem);
            }
            Probe::Time => self.judge_time(response),
            Probe::OtherFormat => self.judge_other_format(response),
            Probe::Script if rules::is_script(response) => {
                self.note(rules::SCRIPT, rules::script_problem(response, CALLBACK));
            }
            Probe::Script => {
                self.report.pass_over(&[rules::SCRIPT], "the feed does not offer scripts (MAY)");
            }
            Probe::AtEnd => self.judge_end(response),
            Probe::Hold => {
                let early = response.took < SignedDuration::from_millis(HOLD as i64 * 1000 - 500);
                let problem = early || response.status != 200;
                let text = format!("{} after {:#}", response.describe(), response.took);
                self.note(rules::HOLD, problem.then_some(text));
            }
        }
    }

    fn judge_first(&mut self, response: &Response) {
        self.format = rules::format(response).unwrap_or(self.format);
        let Some(page) = self.judge_page(self.format, response) else { return };
        let count = page.items.len();
        let problem = (count > 2).then(|| format!("{}: {count} items with max=2", response.url));
        self.note(rules::MAX, problem);
        let again = response.url.clone();
        self.probe(Probe::Again, again);
        self.ask_further(&page);
        self.first = Some(page);
    }

    /// What one page shows, if it is one.
    fn judge_page(&mut self, format: PageFormat, response: &Response) -> Option<Collection> {
        let page =
            rules::page(response, format).map_err(|problem| self.note(rules::FORMAT, Some(problem))).ok()?;
        self.note(rules::FORMAT, None);
        for (rule, problem) in rules::page_problems(format, &page, &response.body, &self.base) {
            self.note(rule, problem);
        }
        Some(page)
    }

    fn ask_further(&mut self, page: &Collection) {
        let base = self.base.clone();
        let two = with_parameter(&with_parameter(&base, "max", "2"), "timeout", "0");
        match &page.last_cursor {
            Some(cursor) => self.probe(Probe::Second, with_since(&two, &Spec::Cursor(cursor.clone()))),
            None => self.report.pass_over(&[rules::SINCE, rules::UNTIL], "the feed is empty"),
        }
        match &page.next {
            Some(next) if Url::parse(next).is_ok() => self.probe(Probe::Next, next.clone()),
            Some(next) => self.note(rules::NEXT, Some(format!("next is {next:?}"))),
            None => {}
        }
        self.probe(Probe::Unlimited, with_parameter(&base, "timeout", "0"));
        self.probe(Probe::Unreadable, with_since(&two, &Spec::Cursor("~towpath~check~".into())));
        let time =
            page.items.first().and_then(|item| item.modified).filter(|_| order(&base) == Order::MODIFIED);
        match time {
            Some(time) => self.probe(Probe::Time, with_parameter(&two, "since", &format!("time:{time}"))),
            None => self
                .report
                .pass_over(&[rules::TIME], "the items have no times, or the order is not order=modified"),
        }
        self.probe(Probe::OtherFormat, two.clone());
        self.probe(Probe::Script, with_parameter(&two, "callback", CALLBACK));
    }

    fn judge_second(&mut self, response: &Response) {
        let page = match rules::page(response, self.format) {
            Ok(page) => page,
            Err(problem) => return self.note(rules::SINCE, Some(problem)),
        };
        let before = ids(self.first.as_ref());
        let twice = page.items.iter().map(|object| &object.item.id).find(|id| before.contains(id));
        let problem = twice.map(|id| format!("{}: item {id:?} stands before the cursor", response.url));
        self.note(rules::SINCE, problem);
        if let (Some(cursor), false) = (&page.last_cursor, page.items.is_empty()) {
            let url = with_parameter(&self.base, "max", "4");
            let until = Spec::Cursor(cursor.clone()).to_string();
            self.probes.push_front((Probe::Until, with_parameter(&url, "until", &until)));
        } else {
            self.report.pass_over(&[rules::UNTIL], "the feed has too few items");
        }
        self.second = Some(page);
    }

    /// The answer must hold the items `wanted`, as far as `fits` says.
    fn compare(
        &mut self,
        rule: Rule,
        response: &Response,
        wanted: &[String],
        fits: impl Fn(&[String]) -> bool,
    ) {
        let problem = match rules::page(response, self.format) {
            Err(problem) => Some(problem),
            Ok(page) => {
                let found = ids(Some(&page));
                (!fits(&found)).then(|| format!("{}: items {found:?} instead of {wanted:?}", response.url))
            }
        };
        self.note(rule, problem);
    }

    fn judge_unlimited(&mut self, response: &Response) {
        let page = match rules::page(response, self.format) {
            Ok(page) => page,
            Err(problem) => return self.note(rules::DEFAULT_MAX, Some(problem)),
        };
        let (count, total) = (page.items.len() as u64, page.total.unwrap_or_default());
        if count >= total && total <= MANY {
            self.report.pass_over(&[rules::DEFAULT_MAX], "the whole feed is no more than a page");
        } else {
            let problem = (count >= total).then(|| format!("{}: all {count} items at once", response.url));
            self.note(rules::DEFAULT_MAX, problem);
        }
        match page.last_cursor.filter(|_| count >= total && page.next.is_none()) {
            Some(cursor) => {
                let url = with_since(&self.base, &Spec::Cursor(cursor));
                self.probe(Probe::AtEnd, with_parameter(&url, "timeout", "0"));
                if order(&self.base).descending {
                    self.report.pass_over(&[rules::HOLD], "in a descending order nothing comes at the end");
                } else {
                    self.probe(Probe::Hold, with_parameter(&url, "timeout", &HOLD.to_string()));
                }
            }
            None => self.report.pass_over(&[rules::AT_ONCE, rules::HOLD], "the feed's end is too far away"),
        }
    }

    fn judge_time(&mut self, response: &Response) {
        if response.status != 200 {
            return self.report.pass_over(&[rules::TIME], "the feed does not support it (OPTIONAL)");
        }
        let wanted = ids(self.first.as_ref()).into_iter().next();
        let problem = match rules::page(response, self.format) {
            Err(problem) => Some(problem),
            Ok(page) => wanted
                .filter(|id| !ids(Some(&page)).contains(id))
                .map(|id| format!("{}: item {id:?} has just this time and is missing", response.url)),
        };
        self.note(rules::TIME, problem);
    }

    /// A feed may offer either format, or both.
    fn judge_other_format(&mut self, response: &Response) {
        let other = self.format.other();
        if response.status < 500 && rules::format(response) != Some(other) {
            self.report.pass_over(rules::of_format(other), "the feed does not offer this format here");
            return self.report.pass_over(&[rules::SAME_ITEMS], "the feed has one format here");
        }
        let Some(page) = self.judge_page(other, response) else { return };
        let (found, wanted) = (ids(Some(&page)), ids(self.first.as_ref()));
        let problem = (found != wanted).then(|| format!("the items are {found:?} and {wanted:?}"));
        self.note(rules::SAME_ITEMS, problem);
    }

    fn judge_end(&mut self, response: &Response) {
        let late = response.took > SignedDuration::from_secs(5);
        let problem = (late || response.status != 200)
            .then(|| format!("{} after {:#}", response.describe(), response.took));
        self.note(rules::AT_ONCE, problem);
    }

    fn end(&mut self, now: Timestamp, answer: Answer<Probe>) {
        let (Asked { purpose: probe, url, sent }, whole) = answer.whole();
        let took = now.duration_since(sent);
        let (head, body) = match whole {
            Ok(whole) => whole,
            Err(error) => return self.note(probe.rule(), Some(format!("{url}: {error}"))),
        };
        self.note(rules::OFFERED, None);
        let media_type = head.header(CONTENT_TYPE.as_str()).unwrap_or_default();
        let media_type = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        self.judge(probe, &Response { url, status: head.status, media_type, body, took });
    }
}

/// The order in which the items come.
fn order(base: &str) -> Order {
    let query = base.split_once('?').map_or("", |(_, query)| query);
    let order = query.split('&').find_map(|pair| pair.strip_prefix("order="));
    order.and_then(Order::parse).unwrap_or(Order::MODIFIED)
}

fn ids(page: Option<&Collection>) -> Vec<String> {
    page.into_iter().flat_map(|page| &page.items).map(|object| object.item.id.clone()).collect()
}

impl Exchange for SmartChecker {
    fn poll_request(&mut self, now: Timestamp) -> Option<Request> {
        if self.asking.is_busy() {
            return None;
        }
        let (probe, url) = self.probes.pop_front()?;
        let accept = match probe {
            Probe::First => "application/json, application/atom+xml;q=0.5",
            Probe::OtherFormat => self.format.other().media_type(),
            Probe::Script => "application/javascript, */*;q=0.1",
            _ => self.format.media_type(),
        };
        let mut request = self.asking.get(url).with(ACCEPT, accept);
        request.max_body = 16 << 20;
        request.patience += Duration::from_secs(HOLD);
        Some(self.asking.ask(now, probe, request))
    }

    fn handle_head(&mut self, _now: Timestamp, id: RequestId, head: ResponseHead) {
        self.asking.handle_head(id, head);
    }

    fn handle_chunk(&mut self, _now: Timestamp, id: RequestId, chunk: Bytes) {
        self.asking.handle_chunk(id, &chunk);
    }

    fn handle_end(&mut self, now: Timestamp, id: RequestId, result: Result<(), TransferError>) {
        if let Some(answer) = self.asking.handle_end(id, result) {
            self.end(now, answer);
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        None
    }

    fn is_finished(&self) -> bool {
        !self.asking.is_busy() && self.probes.is_empty()
    }
}

impl Checker for SmartChecker {
    fn report(&self) -> &Report {
        &self.report
    }
}
