//! Result set management (XEP-0059): ranges that are asked for, and what a page says of itself.
//!
//! "Position specs are used for the Result Set Management UIDs": `after` is `since`, `before` is `until`. With `before`
//! alone the page is the last one before it (XEP-0059, 2.4), and with an empty `before` the last of all (2.5).

use super::error::StanzaError;
use super::node::NodeName;
use super::ns;
use super::stanza::Element;
use crate::smart::query::{MAX_VALUE, PullQuery};
use crate::smart::spec::{By, Order, Spec};

/// What a `set` asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Range {
    /// How many items at the most; none, only their count, for zero.
    pub max: Option<usize>,
    /// Only what comes after this.
    pub after: Option<String>,
    /// Only what comes before this; the last page where it is empty.
    pub before: Option<String>,
}

/// A page to get from the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What to ask. With `max` 0 nothing but the count is wanted.
    pub query: PullQuery,
    /// Whether it is asked from its end backwards, so that what comes is to be turned round.
    pub backwards: bool,
}

impl Range {
    /// Reads a `set`.
    ///
    /// # Errors
    ///
    /// `bad-request` for what is no number, `feature-not-implemented` for an index (2.6).
    pub fn read(set: &Element) -> Result<Self, StanzaError> {
        if set.child("index", ns::RSM).is_some() {
            return Err(StanzaError::NOT_IMPLEMENTED.because("pages are asked for by their neighbours"));
        }
        let value = |name: &str| match set.child_text(name, ns::RSM) {
            Some(text) if text.len() > MAX_VALUE => {
                Err(StanzaError::BAD_REQUEST.because(format!("{name} is longer than {MAX_VALUE} bytes")))
            }
            value => Ok(value),
        };
        let max = match value("max")? {
            None => None,
            Some(text) => Some(parse_max(text.trim())?),
        };
        Ok(Self { max, after: value("after")?, before: value("before")? })
    }

    /// The `set` that asks for it.
    pub fn element(&self) -> Element {
        let mut set = Element::new("set", ns::RSM);
        let max = self.max.map(|max| max.to_string());
        let values = [("max", &max), ("after", &self.after), ("before", &self.before)];
        for (name, value) in values {
            if let Some(value) = value {
                let child = Element::new(name, ns::RSM);
                set = set.with_child(if value.is_empty() { child } else { child.with_text(value.as_str()) });
            }
        }
        set
    }

    /// What to ask of a node's feed for it, with so many items where it does not say.
    ///
    /// # Errors
    ///
    /// `bad-request` for a position that cannot be one.
    pub fn plan(&self, node: &NodeName, default: usize, largest: usize) -> Result<Plan, StanzaError> {
        let mut query = node.query(self.max.unwrap_or(default).min(largest));
        let after = spec("after", self.after.as_deref(), node.order)?;
        let before = spec("before", self.before.as_deref(), node.order)?;
        let backwards = self.before.is_some() && (after.is_none() || before.is_none());
        if backwards {
            query.order = Order { descending: !node.order.descending, ..node.order };
            (query.since, query.until) = (before, after);
        } else {
            (query.since, query.until) = (after, before);
        }
        Ok(Plan { query, backwards })
    }
}

/// More than a number can hold counts as the largest.
fn parse_max(text: &str) -> Result<usize, StanzaError> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if is_number {
        Ok(text.parse().unwrap_or(usize::MAX))
    } else {
        Err(StanzaError::BAD_REQUEST.because("max must be a number from 0"))
    }
}

/// "The client can submit a UID containing any type". An empty one is none.
fn spec(name: &str, uid: Option<&str>, order: Order) -> Result<Option<Spec>, StanzaError> {
    let Some(uid) = uid.filter(|uid| !uid.is_empty()) else { return Ok(None) };
    match Spec::parse(uid) {
        Ok(Spec::Id(_)) if order.by == By::Modified => {
            let why = "in an order by modification items move, so a position cannot be an id";
            Err(StanzaError::BAD_REQUEST.because(format!("{name}: {why}")))
        }
        Ok(spec) => Ok(Some(spec)),
        Err(error) => Err(StanzaError::BAD_REQUEST.because(format!("{name}: {error}"))),
    }
}

/// What a page says of itself. UIDs have their type here, `cursor:`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bounds {
    /// The UID of the first item.
    pub first: Option<String>,
    /// Its place among all items, from 0, where that is known.
    pub index: Option<u64>,
    /// The UID of the last item.
    pub last: Option<String>,
    /// How many items there are.
    pub count: Option<u64>,
}

impl Bounds {
    /// The `set` that says it. "If there are no items in the page, then the first and last UIDs MUST NOT be included."
    pub fn element(&self) -> Element {
        let mut set = Element::new("set", ns::RSM);
        if let Some(first) = &self.first {
            let index = self.index.map(|index| index.to_string());
            let element = Element::new("first", ns::RSM).with_some("index", index.as_deref());
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

    /// Reads what a `set` says; what is no number is nothing.
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

    fn read(inner: &str) -> Result<Range, &'static str> {
        let xml = format!("<set xmlns='http://jabber.org/protocol/rsm'>{inner}</set>");
        Range::read(&read_one(&xml).unwrap()).map_err(|error| error.condition)
    }

    fn plan(inner: &str, node: &str) -> Result<Plan, &'static str> {
        let node = NodeName::parse(node).unwrap();
        read(inner)?.plan(&node, 50, 1000).map_err(|error| error.condition)
    }

    #[test]
    fn ranges_come_back() {
        for range in [
            Range::default(),
            Range { max: Some(0), after: Some("cursor:a".into()), before: None },
            Range { max: Some(50), after: None, before: Some(String::new()) },
        ] {
            assert_eq!(Range::read(&range.element()), Ok(range));
        }
        let bounds = Bounds {
            first: Some("cursor:a".into()),
            index: Some(0),
            last: Some("<".into()),
            count: Some(427),
        };
        assert_eq!(Bounds::read(&bounds.element()), bounds);
        assert_eq!(Bounds { count: Some(0), ..Bounds::default() }.element().children().count(), 1);
    }

    /// XEP-0059, 2.2 to 2.6: forwards, backwards, the last page, counting, an index.
    #[test]
    fn what_a_range_asks_for() {
        let cursor = |text: &str| Some(Spec::Cursor(text.into()));
        let forward = plan("<max>5</max><after>cursor:a</after>", "xx").unwrap();
        assert_eq!((forward.query.max, forward.query.since, forward.backwards), (5, cursor("a"), false));
        let before = plan("<before>cursor:a</before>", "xx").unwrap();
        assert_eq!((before.query.max, before.query.since, before.backwards), (50, cursor("a"), true));
        assert_eq!(before.query.order.to_string(), "-modified");
        let last = plan("<max>5000</max><before/>", "xx?order=-created").unwrap();
        assert_eq!((last.query.max, last.query.since, last.backwards), (1000, None, true));
        assert_eq!(last.query.order.to_string(), "created");
        // Smart Feeds: since and until together are a range of which the first items are sent.
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
        assert_eq!(read("<index>5</index>"), Err("feature-not-implemented"));
        for bad in
            ["<max>-1</max>", "<max/>", "<max>a</max>", &format!("<after>{}</after>", "x".repeat(7000))]
        {
            assert_eq!(read(bad), Err("bad-request"), "{bad:.40}");
        }
        for bad in ["<after>a</after>", "<before>id:a</before>", "<after>time:never</after>"] {
            assert_eq!(plan(bad, "xx"), Err("bad-request"), "{bad}");
        }
        assert!(plan("<before>id:a</before>", "xx?order=created").is_ok());
    }
}
