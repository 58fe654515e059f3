//! Result set management (XEP-0059): requested ranges, and the bounds of a page.
//!
//! "Position specs are used for the Result Set Management UIDs": `after` is `since`, `before` is `until`.
//! With `before` alone the page is the last one before it (XEP-0059, 2.4). An empty `before` selects the last
//! page of all (2.5).

use super::error::StanzaError;
use super::node::NodeName;
use super::ns;
use super::stanza::Element;
use crate::smart::query::{MAX_VALUE, PullQuery};
use crate::smart::spec::{FeedOrder, OrderBy, PositionSpec};

/// Range requested by a `set`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RsmRange {
    /// Maximum number of items; zero requests the count only.
    pub max: Option<usize>,
    /// Exclusive lower bound.
    pub after: Option<String>,
    /// Exclusive upper bound; empty for the last page.
    pub before: Option<String>,
    /// Index of the first item, from 0 (2.6). Counts only without the bounds.
    pub index: Option<u64>,
}

/// Query that answers a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RsmPlan {
    /// Query of the log. With `max` 0 only the count is needed.
    pub query: PullQuery,
    /// `true` if the query runs backwards, so that the result must be reversed.
    pub backwards: bool,
    /// Index of the page's first item, if the range names it.
    pub index: Option<u64>,
    /// True if the log did not know the position that was asked for: an earlier part of the answer told so.
    pub reset: bool,
}

impl RsmRange {
    /// Parses a `set`.
    ///
    /// # Errors
    ///
    /// Returns `bad-request` for a malformed number, and for an index beside `after` or `before`: each of them
    /// says where the page begins.
    pub fn read(set: &Element) -> Result<Self, StanzaError> {
        let value = |name: &str| match set.child_text(name, ns::RSM) {
            Some(text) if text.len() > MAX_VALUE => {
                Err(StanzaError::BAD_REQUEST.because(format!("{name} is longer than {MAX_VALUE} bytes")))
            }
            value => Ok(value),
        };
        let max = match value("max")? {
            None => None,
            Some(text) => Some(usize::try_from(number("max", text.trim())?).unwrap_or(usize::MAX)),
        };
        let index = value("index")?.map(|text| number("index", text.trim())).transpose()?;
        let (after, before) = (value("after")?, value("before")?);
        if index.is_some() && (after.is_some() || before.is_some()) {
            return Err(StanzaError::BAD_REQUEST.because("an index together with after or before"));
        }
        Ok(Self { max, after, before, index })
    }

    /// Returns the `set` that requests the range.
    pub fn element(&self) -> Element {
        let mut set = Element::new("set", ns::RSM);
        let max = self.max.map(|max| max.to_string());
        let index = self.index.map(|index| index.to_string());
        let values = [("max", &max), ("after", &self.after), ("before", &self.before), ("index", &index)];
        for (name, value) in values {
            if let Some(value) = value {
                let child = Element::new(name, ns::RSM);
                set = set.with_child(if value.is_empty() { child } else { child.with_text(value.as_str()) });
            }
        }
        set
    }

    /// Returns the query of a node's feed for the range, with `default` items if the range has no `max`.
    ///
    /// # Errors
    ///
    /// Returns `bad-request` for an invalid position.
    pub fn plan(&self, node: &NodeName, default: usize, largest: usize) -> Result<RsmPlan, StanzaError> {
        let mut query = node.query(self.max.unwrap_or(default).min(largest));
        let after = spec("after", self.after.as_deref(), node.order)?;
        let before = spec("before", self.before.as_deref(), node.order)?;
        // With both bounds the page is the first of the range ("XMPP Pull/Push").
        let backwards = self.before.is_some() && (after.is_none() || before.is_none());
        // Read from the end; the caller reverses the result.
        if backwards {
            query.order = FeedOrder { descending: !node.order.descending, ..node.order };
            // A reversed order begins at the upper bound of the range.
            (query.since, query.until) = (before, after);
        } else {
            (query.since, query.until) = (after, before);
        }
        Ok(RsmPlan { query, backwards, index: self.index, reset: false })
    }
}

/// Parses a number; one beyond `u64` becomes the largest.
fn number(name: &str, text: &str) -> Result<u64, StanzaError> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if is_number {
        Ok(text.parse().unwrap_or(u64::MAX))
    } else {
        Err(StanzaError::BAD_REQUEST.because(format!("{name} must be a number from 0")))
    }
}

/// Parses a position: "The client can submit a UID containing any type". An empty one is absent.
fn spec(name: &str, uid: Option<&str>, order: FeedOrder) -> Result<Option<PositionSpec>, StanzaError> {
    let Some(uid) = uid.filter(|uid| !uid.is_empty()) else { return Ok(None) };
    match PositionSpec::parse(uid) {
        // The position of an id changes with every edit.
        Ok(PositionSpec::Id(_)) if order.by == OrderBy::Modified => {
            let why = "in an order by modification items move, so a position cannot be an id";
            Err(StanzaError::BAD_REQUEST.because(format!("{name}: {why}")))
        }
        Ok(spec) => Ok(Some(spec)),
        Err(error) => Err(StanzaError::BAD_REQUEST.because(format!("{name}: {error}"))),
    }
}

/// Bounds of a page. UIDs carry their type here, `cursor:`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RsmBounds {
    /// UID of the first item.
    pub first: Option<String>,
    /// Index of the first item, from 0, if known.
    pub index: Option<u64>,
    /// UID of the last item.
    pub last: Option<String>,
    /// Total number of items.
    pub count: Option<u64>,
}

impl RsmBounds {
    /// Returns the `set` with the bounds. "If there are no items in the page, then the first and last UIDs
    /// MUST NOT be included".
    pub fn element(&self) -> Element {
        let mut set = Element::new("set", ns::RSM);
        if let Some(first) = &self.first {
            let index = self.index.map(|index| index.to_string());
            let element = Element::new("first", ns::RSM).with_some("index", index.as_deref());
            // XEP-0059, 2.6: the index is an attribute of the first UID.
            set = set.with_child(element.with_text(first.as_str()));
        }
        if let Some(last) = &self.last {
            set = set.with_child(Element::new("last", ns::RSM).with_text(last.as_str()));
        }
        match self.count {
            Some(count) => set.with_child(Element::new("count", ns::RSM).with_text(count.to_string())),
            None => set,
        }
    }

    /// Parses a `set`. A malformed number counts as absent.
    pub fn read(set: &Element) -> Self {
        let first = set.child("first", ns::RSM);
        let number = |text: Option<&str>| text.and_then(|text| text.trim().parse().ok());
        Self {
            first: first.map(Element::text),
            index: number(first.and_then(|first| first.attribute("index"))),
            last: set.child_text("last", ns::RSM),
            count: number(set.child_text("count", ns::RSM).as_deref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::read_one;
    use super::*;

    fn read(inner: &str) -> Result<RsmRange, &'static str> {
        let xml = format!("<set xmlns='http://jabber.org/protocol/rsm'>{inner}</set>");
        RsmRange::read(&read_one(&xml).unwrap()).map_err(|error| error.condition)
    }

    fn plan(inner: &str, node: &str) -> Result<RsmPlan, &'static str> {
        let node = NodeName::parse(node).unwrap();
        read(inner)?.plan(&node, 50, 1000).map_err(|error| error.condition)
    }

    #[test]
    fn ranges_come_back() {
        for range in [
            RsmRange::default(),
            RsmRange { max: Some(0), after: Some("cursor:a".into()), ..RsmRange::default() },
            RsmRange { max: Some(50), before: Some(String::new()), ..RsmRange::default() },
            RsmRange { max: Some(50), index: Some(7), ..RsmRange::default() },
        ] {
            assert_eq!(RsmRange::read(&range.element()), Ok(range));
        }
        let bounds = RsmBounds {
            first: Some("cursor:a".into()),
            index: Some(0),
            last: Some("<".into()),
            count: Some(427),
        };
        assert_eq!(RsmBounds::read(&bounds.element()), bounds);
        assert_eq!(RsmBounds { count: Some(0), ..RsmBounds::default() }.element().children().count(), 1);
    }

    /// XEP-0059, 2.2 to 2.6: forwards, backwards, the last page, counting, an index.
    #[test]
    fn what_a_range_asks_for() {
        let cursor = |text: &str| Some(PositionSpec::Cursor(text.into()));
        let forward = plan("<max>5</max><after>cursor:a</after>", "xx").unwrap();
        assert_eq!((forward.query.max, forward.query.since, forward.backwards), (5, cursor("a"), false));
        let before = plan("<before>cursor:a</before>", "xx").unwrap();
        assert_eq!((before.query.max, before.query.since, before.backwards), (50, cursor("a"), true));
        assert_eq!(before.query.order.to_string(), "-modified");
        let last = plan("<max>5000</max><before/>", "xx?order=-created").unwrap();
        assert_eq!((last.query.max, last.query.since, last.backwards), (1000, None, true));
        assert_eq!(last.query.order.to_string(), "created");
        // Smart Feeds: since and until together select a range, of which the first items are sent.
        let both = plan("<after>cursor:a</after><before>cursor:b</before>", "xx").unwrap();
        assert_eq!((both.query.since, both.query.until, both.backwards), (cursor("a"), cursor("b"), false));
        let tail = plan("<after>cursor:a</after><before/>", "xx").unwrap();
        assert_eq!((tail.query.since, tail.query.until, tail.backwards), (None, cursor("a"), true));
        assert_eq!(plan("<max>0</max>", "xx").unwrap().query.max, 0);
        assert_eq!(plan("<max>99999999999999999999</max>", "xx").unwrap().query.max, 1000);
        assert_eq!(plan("<after/>", "xx").unwrap().query.since, None);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for bad in [
            "<max>-1</max>",
            "<max/>",
            "<max>a</max>",
            "<index>-1</index>",
            "<index/>",
            "<index>0</index><after>cursor:a</after>",
            "<index>0</index><before/>",
            &format!("<after>{}</after>", "x".repeat(7000)),
        ] {
            assert_eq!(read(bad), Err("bad-request"), "{bad:.40}");
        }
        for bad in ["<after>a</after>", "<before>id:a</before>", "<after>time:never</after>"] {
            assert_eq!(plan(bad, "xx"), Err("bad-request"), "{bad}");
        }
        assert!(plan("<before>id:a</before>", "xx?order=created").is_ok());
    }
}
