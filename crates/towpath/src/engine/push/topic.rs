//! What can be subscribed to: a feed's base URL ("HTTP Push": "The topic URL is the same as the feed's base URL"), and
//! its newest Atom, RSS and JSON Feed documents.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use towpath_proto::change::Seq;
use towpath_proto::history::wire::Syntax;
use towpath_proto::push::websub::Dialect;
use towpath_proto::smart::accept::PageFormat;
use towpath_proto::smart::query::{FORMAT, PullQuery};
use towpath_proto::smart::spec::{By, Order};
use towpath_proto::smart::wire::base_url;

use crate::engine::smart::Access;
use crate::engine::{Engine, Feed};

/// A feed in one order, or its newest document in one syntax.
///
/// An order that is descending is pushed as the ascending one: "Push notifications MUST be delivered in order".
#[derive(Clone)]
pub struct Topic {
    /// The feed.
    pub feed: Arc<Feed>,
    /// What stands for it among all topics: `feed?query` with the query of its base URL, or `feed/syntax`.
    pub key: Box<str>,
    /// Its query.
    pub query: PullQuery,
    /// The syntax, if it is a document.
    pub document: Option<Syntax>,
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)
    }
}

/// Why something is no topic. The subscriber's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// Of another hub.
    #[error("hub.topic {topic:?} is none of this hub's: they begin with {base}")]
    Foreign {
        /// What was asked for.
        topic: String,
        /// What this hub's topics begin with.
        base: String,
    },
    /// With parameters that are no part of a base URL.
    #[error("hub.topic {0}")]
    Query(String),
    /// A document that is not there for this subscriber.
    #[error("hub.topic: what is open to this subscriber are the topics of /items")]
    Closed,
}

impl Topic {
    /// The topic of a feed with this address, for a subscriber who may see so much of it.
    pub fn of_url(engine: &Engine, feed: &Arc<Feed>, url: &str, access: Access) -> Result<Self, TopicError> {
        let base = format!("{}/feeds/{}/", engine.base_url, feed.id());
        let foreign = || TopicError::Foreign { topic: url.chars().take(200).collect(), base: base.clone() };
        let rest = url.strip_prefix(&base).ok_or_else(foreign)?;
        if let Some(syntax) = Syntax::of_name(rest) {
            return Self::of_document(engine, feed, syntax, access);
        }
        let query = match rest.strip_prefix("items").ok_or_else(foreign)? {
            "" => "",
            rest => rest.strip_prefix('?').ok_or_else(foreign)?,
        };
        Self::of_query(engine, feed, query)
    }

    /// The topic that a key stands for, as long as its feed is there and a subscriber may see so much of it.
    pub fn of_key(engine: &Engine, key: &str, access: Access) -> Option<Self> {
        match key.split_once('?') {
            Some((feed, query)) => Self::of_query(engine, &engine.feed(feed)?, query).ok(),
            None => {
                let (feed, name) = key.split_once('/')?;
                Self::of_document(engine, &engine.feed(feed)?, Syntax::of_name(name)?, access).ok()
            }
        }
    }

    /// The feed of a key.
    pub fn feed_of_key(key: &str) -> &str {
        key.split(['?', '/']).next().unwrap_or_default()
    }

    /// The address that a key stands for.
    pub fn url_of_key(engine: &Engine, key: &str) -> String {
        let feeds = format!("{}/feeds", engine.base_url);
        match key.split_once('?') {
            Some((feed, query)) => base_url(&format!("{feeds}/{feed}/items"), query),
            None => format!("{feeds}/{key}"),
        }
    }

    /// A filter has no documents, and who sees a part of a feed none either.
    fn of_document(
        engine: &Engine,
        feed: &Arc<Feed>,
        syntax: Syntax,
        access: Access,
    ) -> Result<Self, TopicError> {
        if access != Access::Whole || feed.is_filter() {
            return Err(TopicError::Closed);
        }
        let key = format!("{}/{}", feed.id(), syntax.name()).into();
        Ok(Self { key, document: Some(syntax), ..Self::of_query(engine, feed, "")? })
    }

    fn of_query(engine: &Engine, feed: &Arc<Feed>, query: &str) -> Result<Self, TopicError> {
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let name = pair.split_once('=').map_or(pair, |(name, _)| name);
            if name != "order" && name != FORMAT {
                return Err(TopicError::Query(format!(
                    "has the parameter {name:?}; a topic has order and format"
                )));
            }
        }
        let limits = &feed.settings(engine).limits;
        let query =
            PullQuery::parse(query, limits).map_err(|e| TopicError::Query(format!("is no base URL: {e}")))?;
        let key = format!("{}?{}", feed.id(), query.base_query).into();
        Ok(Self { feed: feed.clone(), key, query, document: None })
    }

    /// Its address.
    pub fn url(&self, engine: &Engine) -> String {
        Self::url_of_key(engine, &self.key)
    }

    /// What its order goes by.
    pub fn by(&self) -> By {
        self.query.order.by
    }

    /// Its query, in the direction in which things happen.
    pub fn ascending(&self) -> PullQuery {
        let order = Order { descending: false, ..self.query.order };
        PullQuery { order, ..self.query.clone() }
    }

    /// Where its log ends.
    pub fn head(&self) -> Seq {
        self.feed.head.load(Ordering::Acquire)
    }

    /// What it is pushed as: an Atom document in the text that Smart Feeds goes by ("HTTP Push"), the topic's own
    /// representation in WebSub ("MUST have a Content-Type Header corresponding to the Content-Type of the topic",
    /// section 7).
    pub fn format(&self, dialect: Dialect) -> PageFormat {
        match dialect {
            Dialect::PubSubHubbub => PageFormat::Atom,
            Dialect::WebSub => self.query.format().unwrap_or(PageFormat::Json),
        }
    }
}
