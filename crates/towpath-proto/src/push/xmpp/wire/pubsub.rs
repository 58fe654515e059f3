//! Requests to a node (XEP-0060, sections 5.6, 6.1, 6.2 and 6.5), and the elements of responses.

use super::error::StanzaError;
use super::jid;
use super::node::NodeName;
use super::ns;
use super::rsm::RsmRange;
use super::stanza::Element;

/// Supported request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PubsubRequest {
    /// Items of a node (6.5).
    Items {
        /// Node.
        node: NodeName,
        /// Requested range.
        range: RsmRange,
    },
    /// Single items of a node (6.5.8).
    ItemsById {
        /// Node.
        node: NodeName,
        /// Requested ids, as the `id` attributes of items have them; at least one.
        ids: Vec<String>,
    },
    /// Subscribes to a node (6.1).
    Subscribe {
        /// Node.
        node: NodeName,
        /// Address of the subscriber: the sender's own account, with or without a resource.
        jid: String,
    },
    /// Ends a subscription (6.2).
    Unsubscribe {
        /// Name of the node, unparsed: the node may no longer exist.
        node: String,
        /// Address of the subscriber.
        jid: String,
    },
    /// Lists the sender's subscriptions (5.6).
    Subscriptions {
        /// Restricts the list to this node.
        node: Option<String>,
    },
}

/// Maximum number of single items in a request.
const MAX_SINGLE_ITEMS: usize = 100;

/// Unsupported actions, with their feature names of XEP-0060 (section 16.3).
const UNSUPPORTED: [(&str, &str); 8] = [
    ("publish", "publish"),
    ("retract", "retract-items"),
    ("create", "create-nodes"),
    ("configure", "config-node"),
    ("affiliations", "retrieve-affiliations"),
    ("options", "subscription-options"),
    ("default", "retrieve-default-sub"),
    ("publish-options", "publish-options"),
];

/// Type of an `iq` stanza that is a request (RFC 6120, section 8.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IqType {
    /// A query.
    Get,
    /// A change.
    Set,
}

impl PubsubRequest {
    /// Parses the `pubsub` element of a request from `from`, in a stanza of this type.
    ///
    /// # Errors
    ///
    /// Returns the stanza error to respond with.
    pub fn read(pubsub: &Element, iq: IqType, from: &str) -> Result<Self, StanzaError> {
        let own = |child: &&Element| *child.ns == *ns::PUBSUB;
        let actions: Vec<&Element> = pubsub.children().filter(own).collect();
        for action in &actions {
            // Named errors let a client tell a missing feature from a malformed request.
            if let Some((_, feature)) = UNSUPPORTED.iter().find(|(name, _)| action.name == *name) {
                return Err(StanzaError::NOT_IMPLEMENTED.unsupported(feature));
            }
        }
        // XEP-0060 defines each request as a single action.
        let [action] = actions.as_slice() else {
            return Err(StanzaError::BAD_REQUEST.because("one request at a time"));
        };
        match (action.name.as_str(), iq) {
            ("items", IqType::Get) => items(pubsub, action),
            ("subscribe", IqType::Set) => {
                Ok(Self::Subscribe { node: NodeName::parse(node(action)?)?, jid: subscriber(action, from)? })
            }
            ("unsubscribe", IqType::Set) => {
                Ok(Self::Unsubscribe { node: node(action)?.to_owned(), jid: subscriber(action, from)? })
            }
            ("subscriptions", IqType::Get) => {
                Ok(Self::Subscriptions { node: action.attribute("node").map(str::to_owned) })
            }
            ("items" | "subscribe" | "unsubscribe" | "subscriptions", _) => {
                Err(StanzaError::BAD_REQUEST.because("queries have type get, changes have type set"))
            }
            _ => Err(StanzaError::BAD_REQUEST),
        }
    }
}

fn items(pubsub: &Element, action: &Element) -> Result<PubsubRequest, StanzaError> {
    let node = NodeName::parse(node(action)?)?;
    let single: Vec<&Element> = action.children().filter(|child| child.is("item", ns::PUBSUB)).collect();
    if !single.is_empty() {
        return Ok(PubsubRequest::ItemsById { node, ids: item_ids(&single)? });
    }
    let range = match (pubsub.child("set", ns::RSM), action.attribute("max_items")) {
        // Result set management takes precedence over the older max_items.
        (Some(set), _) => RsmRange::read(set)?,
        // 6.5.7: "the most recent items".
        (None, Some(max)) => {
            let max = max
                .trim()
                .parse()
                .map_err(|_| StanzaError::BAD_REQUEST.because("max_items is not a number"))?;
            RsmRange { max: Some(max), before: Some(String::new()), ..RsmRange::default() }
        }
        (None, None) => RsmRange::default(),
    };
    Ok(PubsubRequest::Items { node, range })
}

/// Returns the ids of requested items, each once.
fn item_ids(items: &[&Element]) -> Result<Vec<String>, StanzaError> {
    if items.len() > MAX_SINGLE_ITEMS {
        let why = format!("more than {MAX_SINGLE_ITEMS} items in one request");
        return Err(StanzaError::BAD_REQUEST.because(why));
    }
    let mut ids: Vec<String> = Vec::new();
    for item in items {
        let id = item.attribute("id").filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| StanzaError::BAD_REQUEST.because("an item without an id"))?;
        if !ids.iter().any(|known| known == id) {
            ids.push(id.to_owned());
        }
    }
    Ok(ids)
}

fn node(action: &Element) -> Result<&str, StanzaError> {
    let node = action.attribute("node").filter(|node| !node.is_empty());
    node.ok_or_else(|| StanzaError::BAD_REQUEST.and("nodeid-required"))
}

/// Returns the subscriber's address. Senders may only subscribe themselves (6.1.3.1).
fn subscriber(action: &Element, from: &str) -> Result<String, StanzaError> {
    let given = action.attribute("jid").filter(|given| !given.is_empty());
    let given = given.ok_or_else(|| StanzaError::BAD_REQUEST.and("jid-required"))?;
    match jid::normalised(given) {
        Some(jid) if jid::same_account(&jid, from) => Ok(jid),
        _ => Err(StanzaError::BAD_REQUEST.and("invalid-jid")),
    }
}

/// Wraps a response in a `pubsub` element.
pub fn pubsub(child: Element) -> Element {
    Element::new("pubsub", ns::PUBSUB).with_child(child)
}

/// Returns the state of a subscription: `subscribed` or `none`.
pub fn subscription(node: &str, jid: &str, state: &str) -> Element {
    let element = Element::new("subscription", ns::PUBSUB);
    element.with("node", node).with("jid", jid).with("subscription", state)
}

/// Returns a message that a node was deleted (XEP-0060, 8.4.2), with the reason for people.
pub fn deletion(node: &str, reason: &str) -> Element {
    let delete = Element::new("delete", ns::PUBSUB_EVENT).with("node", node);
    Element::new("message", "")
        .with("type", "headline")
        .with_child(Element::new("event", ns::PUBSUB_EVENT).with_child(delete))
        .with_child(Element::new("body", "").with_text(reason))
}

#[cfg(test)]
mod tests {
    use super::super::stream::read_one;
    use super::*;

    fn read(inner: &str, iq: IqType) -> Result<PubsubRequest, (&'static str, Option<&'static str>)> {
        let xml = format!("<pubsub xmlns='http://jabber.org/protocol/pubsub'>{inner}</pubsub>");
        let request = PubsubRequest::read(&read_one(&xml).unwrap(), iq, "alice@example.net/1");
        request.map_err(|error| (error.condition, error.pubsub))
    }

    #[test]
    fn requests() {
        let node = NodeName::parse("comments?order=created").unwrap();
        let jid = "alice@example.net/1".to_owned();
        assert_eq!(
            read("<subscribe node='comments?order=created' jid='Alice@example.net/1'/>", IqType::Set),
            Ok(PubsubRequest::Subscribe { node: node.clone(), jid })
        );
        assert_eq!(
            read("<unsubscribe node='gone!' jid='alice@example.net'/>", IqType::Set),
            Ok(PubsubRequest::Unsubscribe { node: "gone!".into(), jid: "alice@example.net".into() })
        );
        assert_eq!(read("<subscriptions/>", IqType::Get), Ok(PubsubRequest::Subscriptions { node: None }));
        let range = RsmRange { max: Some(2), before: Some(String::new()), ..RsmRange::default() };
        assert_eq!(
            read("<items node='comments?order=created' max_items='2'/>", IqType::Get),
            Ok(PubsubRequest::Items { node: node.clone(), range })
        );
        // 6.5.8: "implementations MUST allow multiple items to be specified in the request".
        assert_eq!(
            read(
                "<items node='comments?order=created'><item id='a'/><item id='b'/><item id='a'/></items>",
                IqType::Get
            ),
            Ok(PubsubRequest::ItemsById { node, ids: vec!["a".into(), "b".into()] })
        );
        let many = format!("<items node='comments'>{}</items>", "<item id='a'/>".repeat(101));
        assert!(read(&many, IqType::Get).is_err());
    }

    /// XEP-0060, 6.1.3, 6.2.3 and 6.5.9.
    #[test]
    fn what_is_refused() {
        let bad = |own| Err(("bad-request", own));
        for (inner, iq, expected) in [
            ("", IqType::Get, bad(None)),
            ("<items/>", IqType::Get, bad(Some("nodeid-required"))),
            ("<items node=''/>", IqType::Get, bad(Some("nodeid-required"))),
            ("<items node='xx'/>", IqType::Set, bad(None)),
            ("<items node='xx'/><items node='yy'/>", IqType::Get, bad(None)),
            ("<items node='xx' max_items='many'/>", IqType::Get, bad(None)),
            ("<items xmlns='u:other' node='xx'/>", IqType::Get, bad(None)),
            ("<subscribe node='xx'/>", IqType::Set, bad(Some("jid-required"))),
            ("<subscribe node='xx' jid='bob@example.net'/>", IqType::Set, bad(Some("invalid-jid"))),
            ("<subscribe node='xx' jid='alice@example.net/1'/>", IqType::Get, bad(None)),
            ("<subscribe node='No' jid='alice@example.net/1'/>", IqType::Set, Err(("item-not-found", None))),
            ("<unsubscribe node='xx'/>", IqType::Set, bad(Some("jid-required"))),
            ("<items node='xx'><item/></items>", IqType::Get, Err(("bad-request", None))),
            ("<items node='xx'><item id=''/></items>", IqType::Get, Err(("bad-request", None))),
            ("<publish node='xx'/>", IqType::Set, Err(("feature-not-implemented", Some("unsupported")))),
            (
                "<subscribe node='xx' jid='alice@example.net'/><options/>",
                IqType::Set,
                Err(("feature-not-implemented", Some("unsupported"))),
            ),
            ("<nonsense/>", IqType::Get, bad(None)),
        ] {
            assert_eq!(read(inner, iq), expected, "{inner}");
        }
    }
}
