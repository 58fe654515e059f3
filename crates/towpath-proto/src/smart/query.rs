//! The query of a pull request ("HTTP Pull").

use std::borrow::Cow;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::accept::PageFormat;
use super::jsonp::{Callback, CallbackError};
use super::spec::{By, Order, Spec, SpecError, shorten};

/// The longest query, in bytes.
pub const MAX_QUERY: usize = 32 << 10;
/// The longest value of one parameter as sent, in bytes: an item's id with every byte encoded, and its type.
pub const MAX_VALUE: usize = 3 * crate::item::MAX_ID_BYTES + 16;

/// What a publisher allows a request to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Items of an answer where `max` is not given.
    pub default_items: usize,
    /// Items of an answer at the most; a larger `max` is taken for this.
    pub max_items: usize,
    /// About how many bytes of items make a page full, whatever `max` says. One item is always sent.
    pub page_bytes: usize,
    /// The longest wait; a larger `timeout` is taken for this.
    pub max_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            default_items: 50,
            max_items: 1000,
            page_bytes: 4 << 20,
            max_timeout: Duration::from_secs(300),
        }
    }
}

/// How long to wait for data where `timeout` is not given ("HTTP Pull").
const DEFAULT_TIMEOUT: u64 = 55;

/// What a pull request asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PullQuery {
    /// In which order; [`Order::MODIFIED`] where it is not said.
    pub order: Order,
    /// Only what comes after this in the order.
    pub since: Option<Spec>,
    /// Only what comes before this in the order.
    pub until: Option<Spec>,
    /// How many items at the most.
    pub max: usize,
    /// What `max` said, where it was given.
    pub asked_max: Option<usize>,
    /// How long the answer may be held while there is nothing to answer.
    pub timeout: Duration,
    /// The function to wrap the answer in.
    pub callback: Option<Callback>,
    /// The parameters that belong to the feed's base URL, as they were sent, joined with `&`.
    pub base_query: String,
}

/// Why a query cannot be answered. The client's fault; names the parameter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Longer than [`MAX_VALUE`].
    #[error("{parameter} is longer than {MAX_VALUE} bytes")]
    ValueTooLong {
        /// Which parameter.
        parameter: &'static str,
    },
    /// Longer than [`MAX_QUERY`].
    #[error("the query is longer than {MAX_QUERY} bytes")]
    QueryTooLong,
    /// Given more than once.
    #[error("{parameter} is given twice")]
    Twice {
        /// Which parameter.
        parameter: &'static str,
    },
    /// Its bytes, decoded, are not UTF-8.
    #[error("{parameter} is not UTF-8")]
    Encoding {
        /// Which parameter.
        parameter: &'static str,
    },
    /// Not a position spec.
    #[error("{parameter}: {source}")]
    Spec {
        /// `since` or `until`.
        parameter: &'static str,
        /// What is wrong.
        source: SpecError,
    },
    /// `id:` where items move ("Pull Interface": only makes sense where items don't change position).
    #[error("{parameter}: in an order by modification items move, so a position cannot be an id")]
    IdMoves {
        /// `since` or `until`.
        parameter: &'static str,
    },
    /// Not an order.
    #[error("order {0:?} is unknown; created, modified, -created and -modified are known")]
    Order(String),
    /// An order in which a stream of events cannot be.
    #[error("events come in the order modified, and not in {0}")]
    EventsOrder(Order),
    /// Not a number of the kind that is needed.
    #[error("{parameter} must be {needed}, and is {value:?}")]
    Number {
        /// `max` or `timeout`.
        parameter: &'static str,
        /// What it must be.
        needed: &'static str,
        /// What was sent.
        value: String,
    },
    /// Not a name that can be called.
    #[error("callback: {0}")]
    Callback(#[from] CallbackError),
}

impl QueryError {
    /// The parameter at fault; `query` where it is all of them together.
    pub fn parameter(&self) -> &'static str {
        match self {
            Self::ValueTooLong { parameter }
            | Self::Twice { parameter }
            | Self::Encoding { parameter }
            | Self::Spec { parameter, .. }
            | Self::IdMoves { parameter }
            | Self::Number { parameter, .. } => parameter,
            Self::QueryTooLong => "query",
            Self::Order(_) | Self::EventsOrder(_) => "order",
            Self::Callback(_) => "callback",
        }
    }
}

/// The parameter of a base URL that fixes the format of its pages.
pub const FORMAT: &str = "format";

/// The parameters that have a meaning here. All but the first are no part of the base URL.
const NAMES: [&str; 6] = ["order", "since", "until", "max", "timeout", "callback"];

impl PullQuery {
    /// Reads a query string without its question mark.
    ///
    /// A plus is a space, as browsers and form encoders send it. Parameters that are not known belong to the
    /// feed's base URL.
    pub fn parse(query: &str, limits: &Limits) -> Result<Self, QueryError> {
        let mut values: [Option<Cow<'_, str>>; 6] = Default::default();
        let mut base: Vec<&str> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decoded(name);
            let known = NAMES.iter().position(|known| name.as_deref() == Some(*known));
            if known.is_none_or(|index| NAMES[index] == "order") {
                base.push(pair);
            }
            if let Some(index) = known {
                let slot = &mut values[index];
                if slot.is_some() {
                    return Err(QueryError::Twice { parameter: NAMES[index] });
                }
                *slot = Some(decode(NAMES[index], value)?);
            }
        }
        if query.len() > MAX_QUERY {
            return Err(QueryError::QueryTooLong);
        }
        let [order, since, until, max, timeout, callback] = values;
        let order = match order {
            Some(text) => Order::parse(&text).ok_or_else(|| QueryError::Order(shorten(&text)))?,
            None => Order::MODIFIED,
        };
        let asked_max = max.map(|text| parse_max(&text)).transpose()?;
        Ok(Self {
            order,
            since: parse_spec("since", since, order)?,
            until: parse_spec("until", until, order)?,
            max: asked_max.unwrap_or(limits.default_items).min(limits.max_items),
            asked_max,
            timeout: parse_timeout(timeout)?.min(limits.max_timeout),
            callback: callback.map(|name| Callback::parse(&name)).transpose()?,
            base_query: base.join("&"),
        })
    }

    /// The format that the feed's base URL fixes, if it does: so that a topic is one representation (WebSub 4.1).
    pub fn format(&self) -> Option<PageFormat> {
        let mut pairs = self.base_query.split('&').filter_map(|pair| pair.split_once('='));
        let value = decoded(pairs.find(|(name, _)| decoded(name).as_deref() == Some(FORMAT))?.1)?;
        [PageFormat::Json, PageFormat::Atom].into_iter().find(|format| format.name() == value)
    }

    /// Whether what it asks for can still grow: what is appended comes within the range.
    pub fn can_grow(&self) -> bool {
        !self.order.descending && self.until.is_none()
    }
}

fn decode<'a>(parameter: &'static str, value: &'a str) -> Result<Cow<'a, str>, QueryError> {
    if value.len() > MAX_VALUE {
        return Err(QueryError::ValueTooLong { parameter });
    }
    decoded(value).ok_or(QueryError::Encoding { parameter })
}

/// A name or a value; `None` where it is not UTF-8.
fn decoded(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains(['%', '+']) {
        return Some(Cow::Borrowed(text));
    }
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8().ok().map(|text| Cow::Owned(text.into_owned()))
}

fn parse_spec(
    parameter: &'static str,
    value: Option<Cow<'_, str>>,
    order: Order,
) -> Result<Option<Spec>, QueryError> {
    let Some(value) = value else { return Ok(None) };
    match Spec::parse(&value) {
        Ok(Spec::Id(_)) if order.by == By::Modified => Err(QueryError::IdMoves { parameter }),
        Ok(spec) => Ok(Some(spec)),
        Err(source) => Err(QueryError::Spec { parameter, source }),
    }
}

fn parse_max(text: &str) -> Result<usize, QueryError> {
    match parse_digits(text) {
        Some(max) if max > 0 => Ok(usize::try_from(max).unwrap_or(usize::MAX)),
        _ => Err(QueryError::Number { parameter: "max", needed: "a number from 1", value: shorten(text) }),
    }
}

fn parse_timeout(text: Option<Cow<'_, str>>) -> Result<Duration, QueryError> {
    let Some(text) = text else { return Ok(Duration::from_secs(DEFAULT_TIMEOUT)) };
    let seconds = parse_digits(&text).ok_or_else(|| QueryError::Number {
        parameter: "timeout",
        needed: "a number of seconds from 0",
        value: shorten(&text),
    })?;
    Ok(Duration::from_secs(seconds))
}

/// Decimal digits and nothing else; more than a number can hold counts as the largest.
fn parse_digits(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<PullQuery, QueryError> {
        PullQuery::parse(query, &Limits::default())
    }

    /// HTTP Pull: the parameters, the default timeout of 55; Pull Interface: a default maximum.
    #[test]
    fn parameters_and_their_defaults() {
        let query = parse("").unwrap();
        assert_eq!((query.order, query.max, query.timeout.as_secs()), (Order::MODIFIED, 50, 55));
        assert_eq!((query.since, query.until, query.callback), (None, None, None));
        let query =
            parse("order=-created&since=id%3Aa+b%2Bc&until=time:5&max=7&timeout=0&callback=a.b").unwrap();
        assert_eq!(query.order.to_string(), "-created");
        assert_eq!(query.since, Some(Spec::Id("a b+c".into())));
        assert_eq!((query.max, query.timeout.as_secs()), (7, 0));
        assert_eq!(query.callback.unwrap().as_str(), "a.b");
        let query = parse("m%61x=7&s%69nce=cursor:x&%6F%72der=created&lan%67=de").unwrap();
        assert_eq!(
            (query.max, query.since, query.order.by),
            (7, Some(Spec::Cursor("x".into())), By::Created)
        );
        assert_eq!(query.base_query, "%6F%72der=created&lan%67=de");
        let query = parse("max=99999999999999999999999&timeout=4000000000000000000000").unwrap();
        assert_eq!((query.max, query.timeout.as_secs()), (1000, 300));
    }

    /// HTTP Pull: the base URL is the remainder, other query parameters included.
    #[test]
    fn what_is_not_known_belongs_to_the_base_url() {
        let query =
            parse("lang=d%65&since=cursor:x&order=created&max=3&&q&callback=f&timeout=1&a=1&a=2").unwrap();
        assert_eq!(query.base_query, "lang=d%65&order=created&q&a=1&a=2");
    }

    #[test]
    fn every_bad_parameter_is_named() {
        let long = format!("since=cursor:{}", "x".repeat(1 << 20));
        let many = "a=b&".repeat(MAX_QUERY);
        let name = format!("callback={}", "a".repeat(10_000));
        let cases = [
            ("since=8f4a1546", "since"),
            ("since=", "since"),
            ("since", "since"),
            ("since=version:3", "since"),
            ("since=cursor:%ff", "since"),
            ("since=cursor:a&since=cursor:b", "since"),
            ("since=id:a", "since"),
            ("s%69nce=foo", "since"),
            ("m%61x=0", "max"),
            ("max=1&m%61x=1", "max"),
            ("order=-modified&until=id:a", "until"),
            ("until=time:soon", "until"),
            ("order=random", "order"),
            ("order=", "order"),
            ("order=created&order=created", "order"),
            ("max=0", "max"),
            ("max=-1", "max"),
            ("max=+5", "max"),
            ("max=1.5", "max"),
            ("max=", "max"),
            ("max=%D9%A1", "max"),
            ("timeout=-1", "timeout"),
            ("timeout=soon", "timeout"),
            ("timeout=1e3", "timeout"),
            ("timeout=", "timeout"),
            ("callback=", "callback"),
            ("callback=alert(1)//", "callback"),
            ("callback=%5Cu0061lert", "callback"),
            (&name, "callback"),
            (&long, "since"),
            (&many, "query"),
        ];
        for (query, parameter) in cases {
            let error = parse(query).unwrap_err();
            assert_eq!(error.parameter(), parameter, "{}", shorten(query));
            assert!(error.to_string().len() < 400, "{error}");
        }
    }

    /// Long polls are held only where the range can still grow.
    #[test]
    fn only_an_open_ascending_range_can_grow() {
        assert!(parse("order=created&since=cursor:x").unwrap().can_grow());
        assert!(!parse("until=cursor:x").unwrap().can_grow());
        assert!(!parse("order=-modified").unwrap().can_grow());
    }

    proptest::proptest! {
        #[test]
        fn any_query_is_read_or_refused(query in "(since=|until=|max=|order=)?[ -~]{0,60}") {
            if let Err(error) = parse(&query) {
                proptest::prop_assert!(NAMES.contains(&error.parameter()));
            }
        }
    }
}
