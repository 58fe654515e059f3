//! A conformance check of any Smart Feed that is offered by HTTP pull.
//!
//! It asks a dozen times, for pages of two items, and compares what comes. A feed that changes between two
//! requests may fail a comparison that it would pass at rest.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use jiff::{SignedDuration, Timestamp};

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
    Atom,
    Script,
    AtEnd,
    Hold,
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
            Probe::Again => self.compare(rules::ORDER, response, &ids(self.first.as_ref())),
            Probe::Second => self.judge_second(response),
            Probe::Until => {
                let mut wanted = ids(self.first.as_ref());
                wanted.extend(ids(self.second.as_ref()));
                wanted.pop();
                self.compare(rules::UNTIL, response, &wanted);
            }
            Probe::Next => self.compare(rules::NEXT, response, &ids(self.second.as_ref())),
            Probe::Unlimited => self.judge_unlimited(response),
            Probe::Unreadable => {
                let problem = (response.status >= 500).then(|| response.describe());
                self.note(rules::DEGRADE, problem);
            }
            Probe::Time => self.judge_time(response),
            Probe::Atom => self.judge_atom(response),
            Probe::Script => self.note(rules::SCRIPT, rules::script_problem(response, CALLBACK)),
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
        let page = match rules::json_page(response) {
            Ok(page) => page,
            Err(problem) => return self.note(rules::JSON, Some(problem)),
        };
        self.note(rules::JSON, None);
        for (rule, problem) in rules::page_problems(&page, &self.base) {
            self.note(rule, problem);
        }
        let count = page.items.len();
        let problem = (count > 2).then(|| format!("{}: {count} items with max=2", response.url));
        self.note(rules::MAX, problem);
        let again = response.url.clone();
        self.probe(Probe::Again, again);
        self.ask_further(&page);
        self.first = Some(page);
    }

    fn ask_further(&mut self, page: &Collection) {
        let base = self.base.clone();
        let two = with_parameter(&with_parameter(&base, "max", "2"), "timeout", "0");
        match &page.last_cursor {
            Some(cursor) => self.probe(Probe::Second, with_since(&two, &Spec::Cursor(cursor.clone()))),
            None => self.report.pass_over(&[rules::SINCE, rules::UNTIL], "the feed is empty"),
        }
        if let Some(next) = &page.next {
            self.probe(Probe::Next, next.clone());
        }
        self.probe(Probe::Unlimited, with_parameter(&base, "timeout", "0"));
        self.probe(Probe::Unreadable, with_since(&two, &Spec::Cursor("~towpath~check~".into())));
        let time = page.items.first().and_then(|item| item.modified).filter(|_| by_modified(&base));
        match time {
            Some(time) => self.probe(Probe::Time, with_parameter(&two, "since", &format!("time:{time}"))),
            None => self
                .report
                .pass_over(&[rules::TIME], "the items have no times, or the order is not order=modified"),
        }
        self.probe(Probe::Atom, two.clone());
        self.probe(Probe::Script, with_parameter(&two, "callback", CALLBACK));
    }

    fn judge_second(&mut self, response: &Response) {
        let page = match rules::json_page(response) {
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

    /// The answer must hold just the items `wanted`, or begin with them where it may hold more.
    fn compare(&mut self, rule: Rule, response: &Response, wanted: &[String]) {
        let problem = match rules::json_page(response) {
            Err(problem) => Some(problem),
            Ok(page) => {
                let found = ids(Some(&page));
                let same = if rule == rules::NEXT { found.starts_with(wanted) } else { found == wanted };
                (!same).then(|| format!("{}: items {found:?} instead of {wanted:?}", response.url))
            }
        };
        self.note(rule, problem);
    }

    fn judge_unlimited(&mut self, response: &Response) {
        let page = match rules::json_page(response) {
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
                self.probe(Probe::Hold, with_parameter(&url, "timeout", &HOLD.to_string()));
            }
            None => self.report.pass_over(&[rules::AT_ONCE, rules::HOLD], "the feed's end is too far away"),
        }
    }

    fn judge_time(&mut self, response: &Response) {
        if response.status != 200 {
            return self.report.pass_over(&[rules::TIME], "the feed does not support it (OPTIONAL)");
        }
        let wanted = ids(self.first.as_ref()).into_iter().next();
        let problem = match rules::json_page(response) {
            Err(problem) => Some(problem),
            Ok(page) => wanted
                .filter(|id| !ids(Some(&page)).contains(id))
                .map(|id| format!("{}: item {id:?} has just this time and is missing", response.url)),
        };
        self.note(rules::TIME, problem);
    }

    fn judge_atom(&mut self, response: &Response) {
        if response.status == 406 {
            let all = [
                rules::ATOM,
                rules::ATOM_TOTAL,
                rules::ATOM_CURSOR,
                rules::ATOM_SELF,
                rules::ATOM_ID,
                rules::ATOM_ITEMS,
            ];
            return self.report.pass_over(&all, "the feed does not offer Atom here");
        }
        let page = match rules::atom_page(response) {
            Ok(page) => page,
            Err(problem) => return self.note(rules::ATOM, Some(problem)),
        };
        self.note(rules::ATOM, None);
        for (rule, problem) in rules::atom_problems(&page, &self.base) {
            self.note(rule, problem);
        }
        let (found, wanted) = (ids(Some(&page)), ids(self.first.as_ref()));
        let nameless = super::atom::entry_without_id(&response.body);
        self.note(rules::ATOM_ID, nameless.map(|index| format!("{}: entry {index} has none", response.url)));
        let problem = (found != wanted).then(|| format!("items are {found:?}, and JSON has {wanted:?}"));
        self.note(rules::ATOM_ITEMS, problem);
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
            Err(error) => return self.note(rules::OFFERED, Some(format!("{url}: {error}"))),
        };
        self.note(rules::OFFERED, None);
        let media_type = head.header(CONTENT_TYPE.as_str()).unwrap_or_default();
        let media_type = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        self.judge(probe, &Response { url, status: head.status, media_type, body, took });
    }
}

/// Whether the items come in the order in which they change.
fn by_modified(base: &str) -> bool {
    let query = base.split_once('?').map_or("", |(_, query)| query);
    let order = query.split('&').find_map(|pair| pair.strip_prefix("order="));
    order.and_then(Order::parse).unwrap_or(Order::MODIFIED) == Order::MODIFIED
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
            Probe::Atom => "application/atom+xml",
            Probe::Script => "application/javascript, application/json;q=0.9",
            _ => "application/json",
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
