//! Topics: a feed's base URL ("HTTP Push": "The topic URL is the same as the feed's base URL"), and
//! its newest Atom, RSS and JSON Feed documents.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use towpath_proto::change::Seq;
use towpath_proto::history::wire::Syntax;
use towpath_proto::push::websub::{Dialect, decode_unreserved};
use towpath_proto::smart::accept::PageFormat;
use towpath_proto::smart::query::{PullQuery, is_topic_parameter};
use towpath_proto::smart::spec::{FeedOrder, OrderBy};
use towpath_proto::smart::wire::base_url;

use crate::engine::{Engine, Feed};
use crate::protocols::smart::{Access, settings};

/// A feed in one order, or its newest document in one syntax.
///
/// An order that is descending is pushed as the ascending one: "Push notifications MUST be delivered in order".
#[derive(Clone)]
pub struct Topic {
    /// The feed.
    pub feed: Arc<Feed>,
    /// Key among all topics: `feed?query` with the query of its base URL, or `feed/syntax`.
    pub key: Box<str>,
    /// Query of its base URL.
    pub query: PullQuery,
    /// Syntax, if the topic is a document.
    pub document: Option<Syntax>,
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)
    }
}

/// Reason why an address is no topic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// The address is not below this feed.
    #[error("hub.topic {topic:?} is none of this hub's: they begin with {base}")]
    Foreign {
        /// The requested topic.
        topic: String,
        /// Begin of this hub's topics.
        base: String,
    },
    /// The query has parameters other than order and format.
    #[error("hub.topic {0}")]
    Query(String),
    /// The subscriber may not read the whole feed, so it has no documents.
    #[error("hub.topic: what is open to this subscriber are the topics of /items")]
    Closed,
}

impl Topic {
    /// Returns the topic of an address, for a subscriber with this access.
    ///
    /// # Errors
    ///
    /// [`TopicError`].
    pub fn of_url(engine: &Engine, feed: &Arc<Feed>, url: &str, access: Access) -> Result<Self, TopicError> {
        let base = format!("{}/feeds/{}/", engine.base_url, feed.id());
        // Cut, because it is the client's text and is sent back.
        let foreign = || TopicError::Foreign { topic: url.chars().take(200).collect(), base: base.clone() };
        // Percent-encoded letters are equal to the letters themselves (RFC 3986, section 6.2.2.2), and clients encode
        // more than they must.
        let decoded = decode_unreserved(url);
        let rest = decoded.strip_prefix(&base).ok_or_else(foreign)?;
        if let Some(syntax) = Syntax::of_name(rest) {
            return Self::of_document(engine, feed, syntax, access);
        }
        let query = match rest.strip_prefix("items").ok_or_else(foreign)? {
            "" => "",
            rest => rest.strip_prefix('?').ok_or_else(foreign)?,
        };
        Self::of_query(engine, feed, query)
    }

    /// Returns the topic of a key, if its feed exists and the access suffices.
    pub fn of_key(engine: &Engine, key: &str, access: Access) -> Option<Self> {
        match key.split_once('?') {
            Some((feed, query)) => Self::of_query(engine, &engine.feed(feed)?, query).ok(),
            None => {
                let (feed, name) = key.split_once('/')?;
                Self::of_document(engine, &engine.feed(feed)?, Syntax::of_name(name)?, access).ok()
            }
        }
    }

    /// Returns the name of the feed in a key.
    pub fn feed_of_key(key: &str) -> &str {
        key.split(['?', '/']).next().unwrap_or_default()
    }

    /// Returns the address of a key.
    pub fn url_of_key(engine: &Engine, key: &str) -> String {
        let feeds = format!("{}/feeds", engine.base_url);
        match key.split_once('?') {
            Some((feed, query)) => base_url(&format!("{feeds}/{feed}/items"), query),
            None => format!("{feeds}/{key}"),
        }
    }

    /// Returns the topic of a document. Filters have no documents, and readers of a part of a feed see none.
    fn of_document(
        engine: &Engine,
        feed: &Arc<Feed>,
        syntax: Syntax,
        access: Access,
    ) -> Result<Self, TopicError> {
        // A document shows the whole feed, so its pushes would tell a reader of what its filter hides.
        if access != Access::Whole || feed.is_filter() {
            return Err(TopicError::Closed);
        }
        let key = format!("{}/{}", feed.id(), syntax.name()).into();
        Ok(Self { key, document: Some(syntax), ..Self::of_query(engine, feed, "")? })
    }

    fn of_query(engine: &Engine, feed: &Arc<Feed>, query: &str) -> Result<Self, TopicError> {
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            if !is_topic_parameter(pair) {
                let name = pair.split_once('=').map_or(pair, |(name, _)| name);
                return Err(TopicError::Query(format!(
                    "has the parameter {name:?}; a topic has order and format"
                )));
            }
        }
        let limits = &settings(engine, feed).limits;
        let query =
            PullQuery::parse(query, limits).map_err(|e| TopicError::Query(format!("is no base URL: {e}")))?;
        // From the parsed query: `order=created&format=atom` and `format=atom&order=created` are one topic.
        let key = format!("{}?{}", feed.id(), query.base_query).into();
        Ok(Self { feed: feed.clone(), key, query, document: None })
    }

    /// Returns the topic's address.
    pub fn url(&self, engine: &Engine) -> String {
        Self::url_of_key(engine, &self.key)
    }

    /// Returns the order that positions count in.
    pub fn by(&self) -> OrderBy {
        self.query.order.by
    }

    /// Returns the query with ascending order: deliveries go forward.
    pub fn ascending(&self) -> PullQuery {
        let order = FeedOrder { descending: false, ..self.query.order };
        PullQuery { order, ..self.query.clone() }
    }

    /// Returns the last position of its log.
    pub fn head(&self) -> Seq {
        self.feed.head.load(Ordering::Acquire)
    }

    /// Returns the format of deliveries: an Atom document in the text that Smart Feeds goes by ("HTTP Push"), the topic's own
    /// representation in WebSub ("MUST have a Content-Type Header corresponding to the Content-Type of the topic",
    /// section 7).
    pub fn format(&self, dialect: Dialect) -> PageFormat {
        match dialect {
            Dialect::PubSubHubbub => PageFormat::Atom,
            Dialect::WebSub => self.query.format().unwrap_or(PageFormat::Json),
        }
    }
}
