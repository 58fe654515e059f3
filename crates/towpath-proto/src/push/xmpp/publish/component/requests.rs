//! Handlers of the supported requests, and their responses.

use super::index_walk::{IndexWalk, WalkStep};
use super::{
    Component, DEFAULT_ITEMS, MAX_ADDRESSING, MAX_ITEMS, MAX_LISTED, PendingReply, ReplyAddress, StoreRequest,
};
use crate::feed_id::FeedId;
use crate::push::xmpp::publish::disco;
use crate::push::xmpp::publish::entry::{MIN_ROOM, fit, stored_id};
use crate::push::xmpp::publish::fanout::{NodeSubscription, PushPosition};
use crate::push::xmpp::wire::error::StanzaError;
use crate::push::xmpp::wire::log_reset::LogReset;
use crate::push::xmpp::wire::node::NodeName;
use crate::push::xmpp::wire::ns;
use crate::push::xmpp::wire::pubsub::{self, IqType, PubsubRequest};
use crate::push::xmpp::wire::rsm::{RsmBounds, RsmPlan, RsmRange};
use crate::push::xmpp::wire::stanza::{Element, write_attribute};
use crate::smart::pull::{FeedSettings, PullPage};
use crate::smart::query::PullQuery;
use crate::smart::spec::{OrderBy, PositionSpec};

impl Component {
    pub(super) fn handle_request(
        &mut self,
        reply: &ReplyAddress,
        payload: &Element,
        iq: IqType,
    ) -> Result<(), StanzaError> {
        match (payload.name.as_str(), &*payload.ns, iq) {
            ("pubsub", ns::PUBSUB, _) => {
                let request = PubsubRequest::read(payload, iq, &reply.to)?;
                self.handle_pubsub(reply, request)
            }
            // Nodes follow from the configured feeds; nobody can create or delete them.
            ("pubsub", ns::PUBSUB_OWNER, _) => Err(StanzaError::NOT_IMPLEMENTED),
            ("query", ns::DISCO_INFO, IqType::Get) => self.handle_info(reply, payload.attribute("node")),
            ("query", ns::DISCO_ITEMS, IqType::Get) => self.handle_list(reply, payload),
            ("ping", ns::PING, IqType::Get) => {
                self.result(reply, "");
                Ok(())
            }
            _ => Err(StanzaError::UNAVAILABLE),
        }
    }

    pub(super) fn handle_pubsub(
        &mut self,
        reply: &ReplyAddress,
        request: PubsubRequest,
    ) -> Result<(), StanzaError> {
        match request {
            PubsubRequest::Items { node, range } => {
                let plan = range.plan(&node, DEFAULT_ITEMS, MAX_ITEMS)?;
                match plan.index.filter(|index| *index > 0) {
                    Some(index) => {
                        let (walk, query) = IndexWalk::begin(plan, index);
                        let request = StoreRequest::Page(node.feed.clone(), query);
                        self.send_store_request(request, PendingReply::Index(reply.clone(), node, walk));
                    }
                    None => self.read_page(reply.clone(), node, plan),
                }
            }
            PubsubRequest::ItemsById { node, ids } => {
                let ids = ids.iter().map(|id| stored_id(id)).collect();
                let request = StoreRequest::Items(node.feed.clone(), node.query(0), ids);
                self.send_store_request(request, PendingReply::Single(reply.clone(), node));
            }
            PubsubRequest::Subscribe { node, jid } => {
                if !self.fanout.has(&jid, &node.text) {
                    // Subscribing again is a renewal: it must succeed at the limit.
                    self.check_limits(&jid)?;
                }
                let subscription =
                    NodeSubscription { jid, node: node.text.clone(), from: reply.from.clone() };
                let request =
                    StoreRequest::Page(node.feed.clone(), PushPosition::Unknown(None).query(node.order.by));
                self.send_store_request(request, PendingReply::Begin(reply.clone(), node, subscription));
            }
            PubsubRequest::Unsubscribe { node, jid } => {
                // XEP-0060, 6.2.3.2.
                if !self.fanout.has(&jid, &node) {
                    return Err(StanzaError::UNEXPECTED.and("not-subscribed"));
                }
                let subscription = NodeSubscription { jid, node, from: reply.from.clone() };
                let request = StoreRequest::Forget(subscription.clone());
                self.send_store_request(request, PendingReply::Forget(Some(reply.clone()), subscription));
            }
            PubsubRequest::Subscriptions { node } => self.answer_subscriptions(reply, node.as_deref()),
        }
        Ok(())
    }

    fn read_page(&mut self, reply: ReplyAddress, node: NodeName, plan: RsmPlan) {
        let request = StoreRequest::Page(node.feed.clone(), plan.query.clone());
        self.send_store_request(request, PendingReply::Items(reply, node, plan));
    }

    /// Takes the next step to a page by index.
    pub(super) fn go_to_index(
        &mut self,
        reply: ReplyAddress,
        node: NodeName,
        mut walk: IndexWalk,
        feed: &FeedSettings,
        page: &PullPage,
    ) {
        match walk.step(feed, page) {
            Ok(WalkStep::Skip(query)) => {
                let request = StoreRequest::Page(node.feed.clone(), query);
                self.send_store_request(request, PendingReply::Index(reply, node, walk));
            }
            Ok(WalkStep::Page(plan)) => self.read_page(reply, node, plan),
            Err(error) => self.refuse(&reply, error),
        }
    }

    pub(super) fn check_limits(&self, jid: &str) -> Result<(), StanzaError> {
        let many = self.fanout.of_account(jid).take(self.settings.account_subscriptions).count();
        if many >= self.settings.account_subscriptions || self.fanout.len() >= self.settings.subscriptions {
            return Err(StanzaError::POLICY.and("too-many-subscriptions"));
        }
        Ok(())
    }

    pub(super) fn answer_subscriptions(&mut self, reply: &ReplyAddress, node: Option<&str>) {
        let mut list = Element::new("subscriptions", ns::PUBSUB).with_some("node", node);
        let mut room = self.settings.stanza_bytes.saturating_sub(MAX_ADDRESSING);
        for subscription in self.fanout.of_account(&reply.to) {
            if node.is_some_and(|node| node != subscription.node) {
                continue;
            }
            let element = pubsub::subscription(&subscription.node, &subscription.jid, "subscribed");
            // A list that exceeds the stanza limit would break the stream.
            let Some(left) = room.checked_sub(element.to_xml().len()) else { break };
            room = left;
            list = list.with_child(element);
        }
        self.answer(reply, &pubsub::pubsub(list));
    }

    pub(super) fn handle_info(
        &mut self,
        reply: &ReplyAddress,
        node: Option<&str>,
    ) -> Result<(), StanzaError> {
        match node {
            None => self.answer(reply, &disco::service()),
            Some(ns::SHIM) => self.answer(reply, &disco::headers()),
            Some(node) => {
                let node = NodeName::parse(node)?;
                let request = StoreRequest::Page(node.feed.clone(), node.query(0));
                self.send_store_request(request, PendingReply::Info(reply.clone(), node));
            }
        }
        Ok(())
    }

    /// Handles a request for the list of nodes, which can be paged by feed id (XEP-0059, 3.1).
    pub(super) fn handle_list(&mut self, reply: &ReplyAddress, query: &Element) -> Result<(), StanzaError> {
        if query.attribute("node").is_some() {
            return Err(StanzaError::NOT_IMPLEMENTED.because("a node's items are read, not listed"));
        }
        let range = query.child("set", ns::RSM).map(RsmRange::read).transpose()?.unwrap_or_default();
        // The ids of feeds are stored in ascending order only.
        if range.before.is_some() {
            return Err(StanzaError::NOT_IMPLEMENTED.because("the list of nodes is paged forwards"));
        }
        let after = range.after.filter(|after| !after.is_empty()).map(|after| FeedId::new(&after));
        let after = after.transpose().map_err(|_| StanzaError::ITEM_NOT_FOUND)?;
        let max = range.max.unwrap_or(MAX_LISTED).min(MAX_LISTED);
        self.send_store_request(
            StoreRequest::Feeds(after.clone(), max),
            PendingReply::List(reply.clone(), after),
        );
        Ok(())
    }

    pub(super) fn answer_list(
        &mut self,
        reply: &ReplyAddress,
        is_first: bool,
        feeds: &[(FeedId, String)],
        total: u64,
    ) {
        let mut list = disco::nodes(&self.settings.jid, feeds);
        let uid = |feed: Option<&(FeedId, String)>| feed.map(|(feed, _)| feed.to_string());
        let (first, last) = (uid(feeds.first()), uid(feeds.last()));
        // A complete list needs no bounds.
        if !is_first || (feeds.len() as u64) < total {
            let bounds = RsmBounds { first, index: is_first.then_some(0), last, count: Some(total) };
            list = list.with_child(bounds.element());
        }
        self.answer(reply, &list);
    }

    pub(super) fn answer_items(
        &mut self,
        reply: &ReplyAddress,
        node: &NodeName,
        plan: &RsmPlan,
        feed: &FeedSettings,
        page: PullPage,
    ) {
        let mut start = items_start(node);
        let by = node.order.by;
        let reset = plan.reset || page.reset;
        if page.changes.is_empty() && page.more && page.last_cursor.is_some() {
            // The filter hid all scanned items: the page goes on after them.
            let query = PullQuery { since: page.last_cursor.map(PositionSpec::Cursor), ..plan.query.clone() };
            return self.read_page(reply.clone(), node.clone(), RsmPlan { query, reset, ..plan.clone() });
        }
        let mut fitting = fit(feed, by, &page.changes, self.room(&start, reply));
        let count = fitting.items.len();
        let bounds = bounds(feed, plan, by, &page, count, fitting.cut);
        // Read from the end, but a page is always in the node's order.
        if plan.backwards {
            fitting.items.reverse();
        }
        start.push_str(if count == 0 { "/>" } else { ">" });
        start.extend(fitting.items);
        if count > 0 {
            start.push_str("</items>");
        }
        bounds.element().write(&mut start, "");
        if reset {
            LogReset { cursor: page.last_cursor.filter(|_| count == 0) }.element().write(&mut start, "");
        }
        start.push_str("</pubsub>");
        self.result(reply, &start);
    }

    /// Answers with single items, as many as fit. Those that do not exist are left out (XEP-0060, 6.5.8).
    pub(super) fn answer_single(
        &mut self,
        reply: &ReplyAddress,
        node: &NodeName,
        feed: &FeedSettings,
        page: &PullPage,
    ) {
        if page.changes.is_empty() {
            return self.refuse(reply, StanzaError::ITEM_NOT_FOUND.because("there is no such item"));
        }
        let mut answer = items_start(node);
        let fitting = fit(feed, node.order.by, &page.changes, self.room(&answer, reply));
        answer.push('>');
        answer.extend(fitting.items);
        answer.push_str("</items></pubsub>");
        self.result(reply, &answer);
    }

    /// Returns the bytes that items may have in a response. The rest is for the markup around them: addresses, node,
    /// bounds.
    fn room(&self, start: &str, reply: &ReplyAddress) -> usize {
        self.settings.stanza_bytes.saturating_sub(start.len() + reply.weight() + 1024).max(MIN_ROOM)
    }
}

/// Returns the start of a response with items, up to the last attribute.
fn items_start(node: &NodeName) -> String {
    let mut start = String::from("<pubsub");
    write_attribute(&mut start, "xmlns", ns::PUBSUB);
    start.push_str("><items");
    write_attribute(&mut start, "node", &node.text);
    start
}

/// Returns the bounds of a page of which `count` items fit.
fn bounds(
    feed: &FeedSettings,
    plan: &RsmPlan,
    by: OrderBy,
    page: &PullPage,
    count: usize,
    cut: bool,
) -> RsmBounds {
    let uid = |cursor: String| format!("cursor:{cursor}");
    let own = |index: usize| page.changes.get(index).map(|change| page.cursor(&feed.tag, by, change));
    let total = page.total;
    let Some(end) = count.checked_sub(1) else {
        return RsmBounds { count: Some(total), ..RsmBounds::default() };
    };
    // A cut page ends at its last item, a complete one at the position scanned.
    let far = if cut { own(end) } else { page.last_cursor.clone().or_else(|| own(end)) };
    let (first, last) = if plan.backwards { (far, own(0)) } else { (own(0), far) };
    let reached_end = !cut && !page.more;
    let from_far_end = total.checked_sub(count as u64);
    // Without a requested one, the index is known only if the page touches an end of the feed.
    let index = match (plan.backwards, &plan.query.since, &plan.query.until) {
        // XEP-0059, 2.6: the same as in the request.
        _ if plan.index.is_some() => plan.index,
        (false, None, _) => Some(0),
        (false, Some(_), None) if reached_end => from_far_end,
        (true, None, _) => from_far_end,
        (true, Some(_), None) if reached_end => Some(0),
        _ => None,
    };
    RsmBounds { first: first.map(uid), index, last: last.map(uid), count: Some(total) }
}
