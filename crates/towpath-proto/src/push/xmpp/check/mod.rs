//! Conformance check of a node with "XMPP Pull/Push": a reader's requests, in sequence.

mod rules;

use std::time::Duration;

use bytes::Bytes;

use crate::follow::{
    Checker, Exchange, FollowError, Monotonic, Now, ReadLimits, Request, RequestId, ResponseHead,
    TransferError,
};
use crate::format::xml::ATOM;
use crate::push::xmpp::wire::lifecycle::Incoming;
use crate::push::xmpp::wire::rsm::{RsmBounds, RsmRange};
use crate::push::xmpp::wire::session::{Authenticate, ClientSession, LARGEST_STANZA, OverXmpp};
use crate::push::xmpp::wire::stanza::Element;
use crate::push::xmpp::wire::uri::NodeUri;
use crate::push::xmpp::wire::{error, jid, ns, pubsub};
use crate::report::{Report, Rule};

/// Returns the rules of the check.
pub fn xmpp_rules() -> &'static [Rule] {
    rules::ALL
}

/// Timeout of a request.
const PATIENCE: Duration = Duration::from_secs(60);

/// Steps of the check, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeCheckStep {
    Info,
    First,
    Next,
    Back,
    Count,
    Unknown,
    Subscribe,
    Unsubscribe,
    Over,
}

impl NodeCheckStep {
    fn next(self) -> Self {
        match self {
            Self::Info => Self::First,
            Self::First => Self::Next,
            Self::Next => Self::Back,
            Self::Back => Self::Count,
            Self::Count => Self::Unknown,
            Self::Unknown => Self::Subscribe,
            Self::Subscribe => Self::Unsubscribe,
            Self::Unsubscribe | Self::Over => Self::Over,
        }
    }
}

/// Page of a response.
#[derive(Debug, Default)]
struct CheckedPage {
    ids: Vec<String>,
    bounds: RsmBounds,
}

/// Check of a node.
#[derive(Debug)]
pub struct NodeChecker {
    session: ClientSession,
    uri: NodeUri,
    report: Report,
    step: NodeCheckStep,
    asked: Option<Monotonic>,
    /// Pages of [`NodeCheckStep::First`] and [`NodeCheckStep::Next`].
    first: CheckedPage,
    second: CheckedPage,
    failed: Option<String>,
}

impl NodeChecker {
    /// Creates a check of a node with the account `jid`.
    ///
    /// # Errors
    ///
    /// Returns [`FollowError::Usage`] for an invalid account.
    pub fn new(uri: &NodeUri, jid: &str, authenticate: Box<dyn Authenticate>) -> Result<Self, FollowError> {
        let own = jid::normalised(jid).filter(|own| jid::local(own).is_some());
        let own = own.ok_or_else(|| FollowError::Usage(format!("{jid:?} is not an account")))?;
        Ok(Self {
            session: ClientSession::new(&own, jid::resource(&own).unwrap_or("towpath-check"), authenticate),
            uri: uri.clone(),
            report: Report::default(),
            step: NodeCheckStep::Info,
            asked: None,
            first: CheckedPage::default(),
            second: CheckedPage::default(),
            failed: None,
        })
    }

    /// Sets the limits of what is read: of a stanza, because the check builds no document from it.
    #[must_use]
    pub fn within(mut self, limits: ReadLimits) -> Self {
        let largest = limits.largest_document(LARGEST_STANZA as u64);
        self.session.set_largest_stanza(usize::try_from(largest).unwrap_or(usize::MAX));
        self
    }

    /// Returns the reason if nothing could be checked.
    pub fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    fn ask(&mut self, now: Now) {
        let items = |range: RsmRange| {
            let items = Element::new("items", ns::PUBSUB).with("node", self.uri.node.as_str());
            pubsub::pubsub(items).with_child(range.element())
        };
        let page = |max, after: &Option<String>, before: &Option<String>| {
            items(RsmRange { max: Some(max), after: after.clone(), before: before.clone(), index: None })
        };
        let own = self.session.own().unwrap_or_default().to_owned();
        let subscription = |name: &str| {
            let action = Element::new(name, ns::PUBSUB).with("node", self.uri.node.as_str());
            pubsub::pubsub(action.with("jid", own))
        };
        let (kind, payload) = match self.step {
            NodeCheckStep::Info => ("get", Element::new("query", ns::DISCO_INFO)),
            // Two items per page show the order and the cursors with the least load on the service.
            NodeCheckStep::First => ("get", page(2, &None, &None)),
            NodeCheckStep::Next => ("get", page(2, &self.first.bounds.last, &None)),
            NodeCheckStep::Back => ("get", page(2, &None, &self.second.bounds.first)),
            NodeCheckStep::Count => ("get", page(0, &None, &None)),
            NodeCheckStep::Unknown => {
                // A valid but unlikely name: the response must be about the node, not about its syntax.
                let items = Element::new("items", ns::PUBSUB).with("node", "no-such-node-here");
                ("get", pubsub::pubsub(items))
            }
            NodeCheckStep::Subscribe => ("set", subscription("subscribe")),
            NodeCheckStep::Unsubscribe => ("set", subscription("unsubscribe")),
            NodeCheckStep::Over => return,
        };
        let iq = Element::new("iq", ns::CLIENT).with("type", kind).with("id", self.id());
        self.session.send(&iq.with("to", self.uri.service.as_str()).with_child(payload));
        self.asked = Some(now.after(PATIENCE));
    }

    fn id(&self) -> String {
        // With the step: a late answer to an earlier request must not pass for this one's.
        format!("check-{:?}", self.step)
    }

    /// Returns true for the answer to the current request.
    fn is_answer(&self, iq: &Element) -> bool {
        // Anybody may send a stanza to this account; only the service can answer.
        iq.attribute("from") == Some(self.uri.service.as_str())
            && iq.attribute("id") == Some(self.id().as_str())
            && matches!(iq.attribute("type"), Some("result" | "error"))
    }

    fn take(&mut self, iq: &Element) {
        if !self.is_answer(iq) {
            return;
        }
        let refused = if iq.attribute("type") == Some("error") { error::read(iq) } else { None };
        let refused =
            refused.map(|(condition, text)| format!("answered {condition} {text}").trim().to_owned());
        self.advance(iq, refused);
    }

    /// Judges an answer of which only the start tag was kept.
    fn take_too_large(&mut self, start: &Element) {
        let limit = self.session.largest_stanza();
        self.advance(start, Some(format!("answered with more than {limit} bytes (limit: max_mib)")));
    }

    fn advance(&mut self, iq: &Element, refused: Option<String>) {
        if self.asked.take().is_none() {
            return;
        }
        self.judge(iq, refused);
        self.step = self.step.next();
        // Without a second page there is no page to go back from.
        if self.step == NodeCheckStep::Next && self.first.bounds.last.is_none() {
            self.skip_paging("the node has no items");
        }
        if self.step == NodeCheckStep::Back && self.second.ids.is_empty() {
            self.skip_paging("the node has one page only");
        }
    }

    fn skip_paging(&mut self, why: &str) {
        self.report.pass_over(&[rules::BEFORE], why);
        self.step = NodeCheckStep::Count;
    }

    fn judge(&mut self, iq: &Element, refused: Option<String>) {
        match self.step {
            NodeCheckStep::Info => self.judge_info(iq, refused.as_deref()),
            NodeCheckStep::First => {
                self.report.judge(rules::ITEMS, refused);
                self.first = self.judge_page(iq);
            }
            NodeCheckStep::Next => {
                let seen = self.judge_page(iq);
                let again = seen.ids.iter().find(|id| self.first.ids.contains(id));
                let problem = refused.or(again.map(|id| format!("{id:?} is on both pages")));
                self.report.judge(rules::AFTER, problem);
                self.second = seen;
            }
            NodeCheckStep::Back => {
                let seen = self.judge_page(iq);
                let same = (seen.ids == self.first.ids).then_some(());
                let told = || format!("{:?} instead of {:?}", seen.ids, self.first.ids);
                let problem = refused.or_else(|| same.is_none().then(told));
                self.report.judge(rules::BEFORE, problem);
            }
            NodeCheckStep::Count => self.judge_count(iq, refused),
            NodeCheckStep::Unknown => {
                let problem = match refused {
                    Some(told) if told.contains("item-not-found") => None,
                    Some(told) => Some(told),
                    None => Some("answered with items".into()),
                };
                self.report.judge(rules::UNKNOWN, problem);
            }
            NodeCheckStep::Subscribe => self.report.judge(rules::SUBSCRIBE, refused),
            NodeCheckStep::Unsubscribe => self.report.judge(rules::UNSUBSCRIBE, refused),
            NodeCheckStep::Over => {}
        }
    }

    fn judge_info(&mut self, iq: &Element, refused: Option<&str>) {
        let query = iq.child("query", ns::DISCO_INFO);
        let has = |feature: &str| {
            let named = |child: &Element| child.attribute("var") == Some(feature);
            query.is_some_and(|query| query.children().any(named))
        };
        for (feature, rule) in [
            (ns::PUBSUB, rules::ADVERTISED_PUBSUB),
            (ns::RSM, rules::ADVERTISED_RSM),
            (ns::SHIM, rules::ADVERTISED_SHIM),
        ] {
            let missing = (!has(feature)).then(|| refused.unwrap_or("it is not").to_owned());
            self.report.judge(rule, missing);
        }
    }

    fn judge_page(&mut self, iq: &Element) -> CheckedPage {
        let Some(pubsub) = iq.child("pubsub", ns::PUBSUB) else { return CheckedPage::default() };
        let items = pubsub.child("items", ns::PUBSUB);
        let node = items.and_then(|items| items.attribute("node"));
        let wrong = (node != Some(self.uri.node.as_str())).then(|| format!("it says {node:?}"));
        self.report.judge(rules::NODE, wrong);
        let items: Vec<&Element> = items.into_iter().flat_map(Element::children).collect();
        let without = items.iter().position(|item| item.child("entry", ATOM).is_none());
        let without = without.map(|index| format!("item {index} is none"));
        self.report.judge(rules::ATOM, without);
        let ids: Vec<String> =
            items.iter().map(|item| item.attribute("id").unwrap_or_default().to_owned()).collect();
        let nameless = ids.iter().position(String::is_empty).map(|index| format!("item {index} has none"));
        // Quadratic, but a page has two items.
        let twice = ids.iter().enumerate().find(|(index, id)| ids[..*index].contains(id));
        let twice = twice.map(|(_, id)| format!("{id:?} is there twice"));
        self.report.judge(rules::UNIQUE_ID, nameless.or(twice));
        let bounds = pubsub.child("set", ns::RSM).map(RsmBounds::read).unwrap_or_default();
        if !ids.is_empty() {
            let is_cursor = |uid: &Option<String>| uid.as_ref().is_some_and(|uid| uid.starts_with("cursor:"));
            let typed = is_cursor(&bounds.first) && is_cursor(&bounds.last);
            let problem = (!typed).then(|| format!("first {:?}, last {:?}", bounds.first, bounds.last));
            self.report.judge(rules::CURSORS, problem);
            let problem = bounds.count.is_none().then(|| "there is none".to_owned());
            self.report.judge(rules::TOTAL, problem);
        } else if bounds.first.is_some() || bounds.last.is_some() {
            let told = "an empty page has some".to_owned();
            self.report.judge(rules::EMPTY, Some(told));
        }
        CheckedPage { ids, bounds }
    }

    fn judge_count(&mut self, iq: &Element, refused: Option<String>) {
        let pubsub = iq.child("pubsub", ns::PUBSUB);
        let bounds = pubsub.and_then(|pubsub| pubsub.child("set", ns::RSM)).map(RsmBounds::read);
        let counted = bounds.and_then(|bounds| bounds.count);
        let problem = refused.or_else(|| counted.is_none().then(|| "there is no count".into()));
        self.report.judge(rules::COUNT, problem);
    }

    fn give_up(&mut self, why: String) {
        // Without any response the node was not checked, which is a failure of its own.
        if self.report.findings.is_empty() {
            self.failed = Some(why);
        } else {
            self.report.judge(rules::ANSWERED, Some(why));
        }
        self.step = NodeCheckStep::Over;
    }
}

impl OverXmpp for NodeChecker {
    fn session(&mut self) -> &mut ClientSession {
        &mut self.session
    }

    fn handle_received(&mut self, now: Now) {
        while let Some(incoming) = self.session.poll_received(now) {
            match incoming {
                Incoming::Stanza(stanza) if stanza.name == "iq" => self.take(&stanza),
                Incoming::TooLarge(start) if self.is_answer(&start) => self.take_too_large(&start),
                _ => {}
            }
        }
        if let Some(problem) = self.session.take_problem() {
            return self.give_up(problem);
        }
        if self.asked.is_some_and(|until| now.monotonic >= until) {
            // A service that ignores a request keeps the reader waiting, so the check ends here.
            self.give_up(format!("{:?} was not answered", self.step));
        }
        if self.session.is_ready() && self.asked.is_none() {
            self.ask(now);
        }
    }
}

/// XMPP checks have no HTTP requests.
impl Exchange for NodeChecker {
    fn poll_request(&mut self, _now: Now) -> Option<Request> {
        None
    }

    fn handle_head(&mut self, _now: Now, _id: RequestId, _head: ResponseHead) {}

    fn handle_chunk(&mut self, _now: Now, _id: RequestId, _chunk: Bytes) {}

    fn handle_end(&mut self, _now: Now, _id: RequestId, _result: Result<(), TransferError>) {}

    fn poll_timeout(&self) -> Option<Monotonic> {
        [Some(self.session.poll_timeout()), self.asked].into_iter().flatten().min()
    }

    fn is_finished(&self) -> bool {
        self.step == NodeCheckStep::Over
    }
}

impl Checker for NodeChecker {
    fn report(&self) -> &Report {
        &self.report
    }
}
