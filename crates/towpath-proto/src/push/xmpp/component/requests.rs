//! Requests that the component understands, and their answers.

use super::{Component, DEFAULT_ITEMS, LISTED, MAX_ADDRESSING, MAX_ITEMS, Pending, Question, Reply};
use crate::feed_id::FeedId;
use crate::push::xmpp::disco;
use crate::push::xmpp::entry::{MIN_ROOM, fit};
use crate::push::xmpp::error::StanzaError;
use crate::push::xmpp::fanout::{Place, Subscription};
use crate::push::xmpp::node::NodeName;
use crate::push::xmpp::ns;
use crate::push::xmpp::pubsub::{self, Request};
use crate::push::xmpp::rsm::{Bounds, Plan, Range};
use crate::push::xmpp::stanza::{Element, write_attribute};
use crate::smart::pull::{FeedSettings, Page};
use crate::smart::query::PullQuery;
use crate::smart::spec::{By, Spec};

impl Component {
    pub(super) fn take_request(
        &mut self,
        reply: &Reply,
        payload: &Element,
        is_set: bool,
    ) -> Result<(), StanzaError> {
        match (payload.name.as_str(), &*payload.ns, is_set) {
            ("pubsub", ns::PUBSUB, _) => {
                let request = Request::read(payload, is_set, &reply.to)?;
                self.take_pubsub(reply, request)
            }
            ("pubsub", ns::PUBSUB_OWNER, _) => Err(StanzaError::NOT_IMPLEMENTED),
            ("query", ns::DISCO_INFO, false) => self.take_info(reply, payload.attribute("node")),
            ("query", ns::DISCO_ITEMS, false) => self.take_list(reply, payload),
            ("ping", ns::PING, false) => {
                self.result(reply, "");
                Ok(())
            }
            _ => Err(StanzaError::UNAVAILABLE),
        }
    }

    pub(super) fn take_pubsub(&mut self, reply: &Reply, request: Request) -> Result<(), StanzaError> {
        match request {
            Request::Items { node, range } => {
                let plan = range.plan(&node, DEFAULT_ITEMS, MAX_ITEMS)?;
                let question = Question::Page(node.feed.clone(), plan.query.clone());
                self.ask(question, Pending::Items(reply.clone(), node, plan));
            }
            Request::Subscribe { node, jid } => {
                if !self.fanout.has(&jid, &node.text) {
                    self.check_limits(&jid)?;
                }
                let subscription = Subscription { jid, node: node.text.clone(), from: reply.from.clone() };
                let question = Question::Page(node.feed.clone(), Place::Unknown(None).query(node.order.by));
                self.ask(question, Pending::Begin(reply.clone(), node, subscription));
            }
            Request::Unsubscribe { node, jid } => {
                if !self.fanout.has(&jid, &node) {
                    return Err(StanzaError::UNEXPECTED.and("not-subscribed"));
                }
                let subscription = Subscription { jid, node, from: reply.from.clone() };
                let question = Question::Forget(subscription.clone());
                self.ask(question, Pending::Forget(Some(reply.clone()), subscription));
            }
            Request::Subscriptions { node } => self.answer_subscriptions(reply, node.as_deref()),
        }
        Ok(())
    }

    pub(super) fn check_limits(&self, jid: &str) -> Result<(), StanzaError> {
        let many = self.fanout.of_account(jid).take(self.settings.account_subscriptions).count();
        if many >= self.settings.account_subscriptions || self.fanout.len() >= self.settings.subscriptions {
            return Err(StanzaError::POLICY.and("too-many-subscriptions"));
        }
        Ok(())
    }

    pub(super) fn answer_subscriptions(&mut self, reply: &Reply, node: Option<&str>) {
        let mut list = Element::new("subscriptions", ns::PUBSUB).with_some("node", node);
        let mut room = self.settings.stanza_bytes.saturating_sub(MAX_ADDRESSING);
        for subscription in self.fanout.of_account(&reply.to) {
            if node.is_some_and(|node| node != subscription.node) {
                continue;
            }
            let element = pubsub::subscription(&subscription.node, &subscription.jid, "subscribed");
            let Some(left) = room.checked_sub(element.to_xml().len()) else { break };
            room = left;
            list = list.with_child(element);
        }
        self.answer(reply, &pubsub::pubsub(list));
    }

    pub(super) fn take_info(&mut self, reply: &Reply, node: Option<&str>) -> Result<(), StanzaError> {
        match node {
            None => self.answer(reply, &disco::service()),
            Some(ns::SHIM) => self.answer(reply, &disco::headers()),
            Some(node) => {
                let node = NodeName::parse(node)?;
                let question = Question::Page(node.feed.clone(), node.query(0));
                self.ask(question, Pending::Info(reply.clone(), node));
            }
        }
        Ok(())
    }

    /// XEP-0059, 3.1: the list of nodes can be paged, by the names of feeds.
    pub(super) fn take_list(&mut self, reply: &Reply, query: &Element) -> Result<(), StanzaError> {
        if query.attribute("node").is_some() {
            return Err(StanzaError::NOT_IMPLEMENTED.because("a node's items are read, not listed"));
        }
        let range = query.child("set", ns::RSM).map(Range::read).transpose()?.unwrap_or_default();
        if range.before.is_some() {
            return Err(StanzaError::NOT_IMPLEMENTED.because("the list of nodes is paged forwards"));
        }
        let after = range.after.filter(|after| !after.is_empty()).map(|after| FeedId::new(&after));
        let after = after.transpose().map_err(|_| StanzaError::ITEM_NOT_FOUND)?;
        let max = range.max.unwrap_or(LISTED).min(LISTED);
        self.ask(Question::Feeds(after.clone(), max), Pending::List(reply.clone(), after));
        Ok(())
    }

    pub(super) fn answer_list(
        &mut self,
        reply: &Reply,
        is_first: bool,
        feeds: &[(FeedId, String)],
        total: u64,
    ) {
        let mut list = disco::nodes(&self.settings.jid, feeds);
        let uid = |feed: Option<&(FeedId, String)>| feed.map(|(feed, _)| feed.to_string());
        let (first, last) = (uid(feeds.first()), uid(feeds.last()));
        // Everything at once needs no page.
        if !is_first || (feeds.len() as u64) < total {
            let bounds = Bounds { first, index: is_first.then_some(0), last, count: Some(total) };
            list = list.with_child(bounds.element());
        }
        self.answer(reply, &list);
    }

    pub(super) fn answer_items(
        &mut self,
        reply: &Reply,
        node: &NodeName,
        plan: &Plan,
        feed: &FeedSettings,
        page: Page,
    ) {
        let mut start = String::from("<pubsub");
        write_attribute(&mut start, "xmlns", ns::PUBSUB);
        start.push_str("><items");
        write_attribute(&mut start, "node", &node.text);
        let by = node.order.by;
        if page.changes.is_empty() && page.more && page.last_cursor.is_some() {
            // A filter hides all that was looked at: further on there may be something.
            let query = PullQuery { since: page.last_cursor.map(Spec::Cursor), ..plan.query.clone() };
            let (question, plan) =
                (Question::Page(node.feed.clone(), query.clone()), Plan { query, ..plan.clone() });
            return self.ask(question, Pending::Items(reply.clone(), node.clone(), plan));
        }
        // Around the items: addresses, the node, the page's bounds.
        let room =
            self.settings.stanza_bytes.saturating_sub(start.len() + reply.weight() + 1024).max(MIN_ROOM);
        let mut fitting = fit(feed, by, &page.changes, room);
        let count = fitting.items.len();
        let bounds = bounds(feed, plan, by, &page, count, fitting.cut);
        if plan.backwards {
            fitting.items.reverse();
        }
        start.push_str(if count == 0 { "/>" } else { ">" });
        start.extend(fitting.items);
        if count > 0 {
            start.push_str("</items>");
        }
        bounds.element().write(&mut start, "");
        start.push_str("</pubsub>");
        self.result(reply, &start);
    }
}

/// What a page says of itself, when so many of its items fit.
fn bounds(feed: &FeedSettings, plan: &Plan, by: By, page: &Page, count: usize, cut: bool) -> Bounds {
    let uid = |cursor: String| format!("cursor:{cursor}");
    let own = |index: usize| page.changes.get(index).map(|change| feed.tag.cursor(by, by.position(change)));
    let total = page.total;
    let Some(end) = count.checked_sub(1) else {
        return Bounds { count: Some(total), ..Bounds::default() };
    };
    let far = if cut { own(end) } else { page.last_cursor.clone().or_else(|| own(end)) };
    let (first, last) = if plan.backwards { (far, own(0)) } else { (own(0), far) };
    let reached_end = !cut && !page.more;
    let from_far_end = total.checked_sub(count as u64);
    // Known where the page touches an end of the whole.
    let index = match (plan.backwards, &plan.query.since, &plan.query.until) {
        (false, None, _) => Some(0),
        (false, Some(_), None) if reached_end => from_far_end,
        (true, None, _) => from_far_end,
        (true, Some(_), None) if reached_end => Some(0),
        _ => None,
    };
    Bounds { first: first.map(uid), index, last: last.map(uid), count: Some(total) }
}
