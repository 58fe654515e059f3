//! The query of a pull request ("HTTP Pull").

use std::borrow::Cow;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::cursor::is_cursor;
use super::jsonp::JsonpCallback;
pub use super::query_error::QueryError;
use crate::smart::wire::accept::PageFormat;
use crate::smart::wire::spec::{FeedOrder, OrderBy, PositionSpec, shorten};

// Pages and links repeat the parameters of the base URL, so their length is bounded.
/// Maximum length of a query, in bytes.
pub const MAX_QUERY: usize = 32 << 10;
/// Maximum length of one parameter's value as sent, in bytes: an item's id, fully percent-encoded, and its type.
pub const MAX_VALUE: usize = 3 * crate::item::MAX_ID_BYTES + 16;

/// Limits of a publisher on requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullLimits {
    /// Items of a page if `max` is absent.
    pub default_items: usize,
    /// Maximum number of items of a page; a larger `max` counts as this.
    pub max_items: usize,
    /// Approximate bytes of items at which a page is full, regardless of `max`. A page always has one item.
    pub page_bytes: usize,
    /// Maximum wait; a larger `timeout` counts as this.
    pub max_timeout: Duration,
}

impl Default for PullLimits {
    fn default() -> Self {
        Self {
            default_items: 50,
            max_items: 1000,
            page_bytes: 4 << 20,
            max_timeout: Duration::from_secs(300),
        }
    }
}

/// Default of `timeout`, in seconds ("HTTP Pull").
const DEFAULT_TIMEOUT: u64 = 55;

/// Query of a pull request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PullQuery {
    /// The order; [`FeedOrder::MODIFIED`] if the parameter is absent.
    pub order: FeedOrder,
    /// Only items after this in the order.
    pub since: Option<PositionSpec>,
    /// Only items before this in the order.
    pub until: Option<PositionSpec>,
    /// Maximum number of items.
    pub max: usize,
    /// Value of the parameter `max`, if present.
    pub requested_max: Option<usize>,
    /// Begin with so many of the latest items, instead of at `since`.
    pub last: Option<usize>,
    /// Maximum time to hold the request while there are no items.
    pub timeout: Duration,
    /// True if the parameter `timeout` is present.
    pub has_timeout: bool,
    /// Function to wrap the response in (JSON-P).
    pub callback: Option<JsonpCallback>,
    /// Parameters of the feed's base URL, as sent, joined with `&`.
    pub base_query: String,
}

/// Parameter of a base URL that selects the format of its pages.
pub const FORMAT: &str = "format";

/// Parameter of a base URL that selects lines for its items: `as=line`.
pub const AS: &str = "as";

/// Returns true if a parameter of a base URL, as sent, is one of a topic's: the order or the format.
///
/// A topic is what is pushed. With others, the same items would make countless topics.
pub fn is_topic_parameter(pair: &str) -> bool {
    let name = decoded(pair.split_once('=').map_or(pair, |(name, _)| name));
    name.is_some_and(|name| name == "order" || name == FORMAT)
}

/// Parameters of the protocol, and `last`. All but the first are not part of the base URL.
const NAMES: [&str; 7] = ["order", "since", "until", "max", "timeout", "callback", "last"];

impl PullQuery {
    /// Parses a query string without its question mark.
    ///
    /// A plus is a space, as browsers and form encoders send it. Unknown parameters belong to the feed's base URL.
    pub fn parse(query: &str, limits: &PullLimits) -> Result<Self, QueryError> {
        let mut values: [Option<Cow<'_, str>>; 7] = Default::default();
        let mut base: Vec<&str> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // Names are decoded too: `m%61x` is `max`, and must not pass as a foreign parameter.
            let name = decoded(name);
            let known = NAMES.iter().position(|known| name.as_deref() == Some(*known));
            // The order belongs to the base URL: another order is another feed to its subscribers.
            if known.is_none_or(|index| NAMES[index] == "order") {
                base.push(pair);
            }
            if name.as_deref() == Some(AS) && decoded(value).as_deref() != Some("line") {
                return Err(QueryError::As(shorten(value)));
            }
            if let Some(index) = known {
                let slot = &mut values[index];
                // Taking one of two values silently would answer another request than the client meant.
                if slot.is_some() {
                    return Err(QueryError::Twice { parameter: NAMES[index] });
                }
                *slot = Some(decode(NAMES[index], value)?);
            }
        }
        // Checked last, so that an error names the parameter that is too long rather than the whole query.
        if query.len() > MAX_QUERY {
            return Err(QueryError::QueryTooLong);
        }
        let [order, since, until, max, timeout, callback, last] = values;
        let order = match order {
            Some(text) => FeedOrder::parse(&text).ok_or_else(|| QueryError::Order(shorten(&text)))?,
            None => FeedOrder::MODIFIED,
        };
        let requested_max = max.map(|text| parse_max("max", &text)).transpose()?;
        let last = last.map(|text| parse_max("last", &text)).transpose()?;
        if let Some(last) = last.filter(|_| since.is_some() || until.is_some() || order.descending) {
            return Err(QueryError::LastAndRange(last));
        }
        let last = last.map(|last| last.min(limits.max_items));
        Ok(Self {
            order,
            since: parse_spec("since", since, order)?,
            until: parse_spec("until", until, order)?,
            max: requested_max.unwrap_or(limits.default_items).min(limits.max_items),
            requested_max,
            last,
            has_timeout: timeout.is_some(),
            timeout: parse_timeout(timeout)?.min(limits.max_timeout),
            callback: callback.map(|name| JsonpCallback::parse(&name)).transpose()?,
            base_query: base.join("&"),
        })
    }

    /// Returns the query for up to `max` items in an order, from its beginning, that is answered at once.
    pub fn at_once(order: FeedOrder, max: usize) -> Self {
        Self {
            order,
            since: None,
            until: None,
            max,
            requested_max: None,
            last: None,
            timeout: Duration::ZERO,
            has_timeout: true,
            callback: None,
            base_query: String::new(),
        }
    }

    /// Returns the query of the topic that has the page's items (WebSub 4: "the canonical URL for the topic").
    pub fn topic_query(&self) -> String {
        let pairs = self.base_query.split('&').filter(|pair| is_topic_parameter(pair));
        pairs.collect::<Vec<_>>().join("&")
    }

    /// Returns the format that the base URL selects, if any, so that a topic has one representation (WebSub 4.1).
    pub fn format(&self) -> Option<PageFormat> {
        let pairs = || self.base_query.split('&').filter_map(|pair| pair.split_once('='));
        if pairs().any(|(name, _)| decoded(name).as_deref() == Some(AS)) {
            return Some(PageFormat::Lines);
        }
        let mut pairs = pairs();
        let value = decoded(pairs.find(|(name, _)| decoded(name).as_deref() == Some(FORMAT))?.1)?;
        [PageFormat::Json, PageFormat::Atom].into_iter().find(|format| format.name() == value)
    }

    /// Returns true if the request goes on from a position, or names a timeout.
    ///
    /// Any other asks what the feed is. Software that looks for a feed's links gives up long before the default timeout.
    pub fn asks_to_wait(&self) -> bool {
        self.since.is_some() || self.last.is_some() || self.has_timeout
    }

    /// Returns true if the range is open: later appends fall within it.
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

/// Decodes a name or a value; `None` if it is not UTF-8.
fn decoded(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains(['%', '+']) {
        return Some(Cow::Borrowed(text));
    }
    // Before percent-decoding, so that an encoded plus (`%2B`) stays a plus.
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8().ok().map(|text| Cow::Owned(text.into_owned()))
}

fn parse_spec(
    parameter: &'static str,
    value: Option<Cow<'_, str>>,
    order: FeedOrder,
) -> Result<Option<PositionSpec>, QueryError> {
    let Some(value) = value else { return Ok(None) };
    match PositionSpec::parse(&value) {
        Ok(PositionSpec::Id(_)) if order.by == OrderBy::Modified => Err(QueryError::IdMoves { parameter }),
        Ok(spec) => Ok(Some(spec)),
        // The position of a line, as it stands there.
        Err(_) if is_cursor(&value) => Ok(Some(PositionSpec::Cursor(value.into_owned()))),
        Err(source) => Err(QueryError::Spec { parameter, source }),
    }
}

fn parse_max(parameter: &'static str, text: &str) -> Result<usize, QueryError> {
    match parse_digits(text) {
        // HTTP has no page without items: `max=0` counts only in RSM (XEP-0059).
        Some(max) if max > 0 => Ok(usize::try_from(max).unwrap_or(usize::MAX)),
        _ => Err(QueryError::Number { parameter, needed: "a number from 1", value: shorten(text) }),
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

/// Parses decimal digits only. A number that is too large counts as the maximum.
fn parse_digits(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<PullQuery, QueryError> {
        PullQuery::parse(query, &PullLimits::default())
    }

    /// HTTP Pull: the parameters, the default timeout of 55; Pull Interface: a default maximum.
    #[test]
    fn parameters_and_their_defaults() {
        let query = parse("").unwrap();
        assert_eq!((query.order, query.max, query.timeout.as_secs()), (FeedOrder::MODIFIED, 50, 55));
        assert_eq!((query.since, query.until, query.callback), (None, None, None));
        let query =
            parse("order=-created&since=id%3Aa+b%2Bc&until=time:5&max=7&timeout=0&callback=a.b").unwrap();
        assert_eq!(query.order.to_string(), "-created");
        assert_eq!(query.since, Some(PositionSpec::Id("a b+c".into())));
        assert_eq!((query.max, query.timeout.as_secs()), (7, 0));
        assert_eq!(query.callback.unwrap().as_str(), "a.b");
        let query = parse("m%61x=7&s%69nce=cursor:x&%6F%72der=created&lan%67=de").unwrap();
        assert_eq!(
            (query.max, query.since, query.order.by),
            (7, Some(PositionSpec::Cursor("x".into())), OrderBy::Created)
        );
        assert_eq!(query.base_query, "%6F%72der=created&lan%67=de");
        let query = parse("max=99999999999999999999999&timeout=4000000000000000000000").unwrap();
        assert_eq!((query.max, query.timeout.as_secs()), (1000, 300));
    }

    /// A line's position is one of `since`; what has another form still needs its kind.
    #[test]
    fn positions_of_lines_are_taken_as_they_are() {
        let query = parse("since=m12-0123456789&as=line&max=3").unwrap();
        assert_eq!(query.since, Some(PositionSpec::Cursor("m12-0123456789".into())));
        assert_eq!((query.format(), query.base_query.as_str()), (Some(PageFormat::Lines), "as=line"));
        assert_eq!(parse("last=2000").unwrap().last, Some(1000));
    }

    /// HTTP Pull: the base URL is the remainder, other query parameters included.
    #[test]
    fn unknown_parameters_belong_to_the_base_url() {
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
            ("last=0", "last"),
            ("last=5&since=cursor:a", "last"),
            ("last=5&order=-modified", "last"),
            ("as=lines", "as"),
            ("max=0", "max"),
            ("max=-1", "max"),
            ("max=+5", "max"),
            ("max=1.5", "max"),
            ("max=", "max"),
            // An Arabic digit is a digit to Unicode, but not to the protocol.
            ("max=%D9%A1", "max"),
            ("timeout=-1", "timeout"),
            ("timeout=soon", "timeout"),
            ("timeout=1e3", "timeout"),
            ("timeout=", "timeout"),
            ("callback=", "callback"),
            ("callback=alert(1)//", "callback"),
            // Legal in JavaScript, but an escape would hide a reserved name.
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
        fn any_query_is_parsed_or_rejected(query in "(since=|until=|max=|order=)?[ -~]{0,60}") {
            if let Err(error) = parse(&query) {
                proptest::prop_assert!(NAMES.contains(&error.parameter()) || error.parameter() == AS);
            }
        }
    }
}
