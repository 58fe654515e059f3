//! URLs of feeds and pages ("HTTP Pull").

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::spec::PositionSpec;

/// Characters to percent-encode: all but the unreserved ones of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns a feed's base URL: `base` with the feed's own parameters.
pub fn base_url(base: &str, base_query: &str) -> String {
    if base_query.is_empty() { base.to_owned() } else { format!("{base}?{base_query}") }
}

/// Appends one parameter to a URL.
pub fn with_parameter(url: &str, name: &str, value: &str) -> String {
    let joint = match url.split_once('?') {
        None => "?",
        Some((_, "")) => "",
        Some(_) => "&",
    };
    format!("{url}{joint}{name}={}", utf8_percent_encode(value, ENCODED))
}

/// Appends the `since` parameter to a URL.
pub fn with_since(url: &str, since: &PositionSpec) -> String {
    with_parameter(url, "since", &since.to_string())
}

/// Returns the URL of a feed in the opposite order.
pub(in crate::smart) fn reversed(url: &str) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    // Undecoded: `by_modified` has written this parameter.
    let reverse = |pair: &str| match pair.strip_prefix("order=") {
        Some(order) => {
            format!("order={}", order.strip_prefix('-').map_or(format!("-{order}"), str::to_owned))
        }
        None => pair.to_owned(),
    };
    let pairs: Vec<String> = query.split('&').map(reverse).collect();
    format!("{base}?{}", pairs.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HTTP Pull: the example request and the example `next`.
    #[test]
    fn urls_match_the_examples_of_the_text() {
        let base = "http://example.com/articles/1/comments/?order=created";
        let next = with_since(base, &PositionSpec::Cursor("8f4a1546".into()));
        let next = with_parameter(&next, "max", "50");
        assert_eq!(
            next,
            "http://example.com/articles/1/comments/?order=created&since=cursor%3A8f4a1546&max=50"
        );
        assert_eq!(with_parameter("http://a/b", "max", "1"), "http://a/b?max=1");
        assert_eq!(with_parameter("http://a/b?", "c", "é&=~"), "http://a/b?c=%C3%A9%26%3D~");
    }
}
