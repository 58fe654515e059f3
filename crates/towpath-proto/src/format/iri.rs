//! Absolute URLs and IRIs, recognized by their characters.

use std::borrow::Cow;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use super::xml::is_xml_char;

/// Returns `true` if an address begins with a scheme (RFC 3986, section 3.1) and is thus absolute.
pub(crate) fn has_scheme(address: &str) -> bool {
    let Some((scheme, _)) = address.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

/// Returns the URL of a page that relative addresses can be resolved against: one of HTTP.
pub(crate) fn web_page(address: &str) -> Option<Url> {
    Url::parse(address.trim()).ok().filter(|url| matches!(url.scheme(), "http" | "https"))
}

/// Returns `true` if the characters of a text make it an absolute IRI (RFC 3987, section 2.2).
pub(crate) fn is_iri(text: &str) -> bool {
    has_scheme(text) && !text.ends_with(':') && text.chars().all(is_iri_char)
}

fn is_iri_char(c: char) -> bool {
    !c.is_control()
        && !c.is_whitespace()
        && !matches!(c, '<' | '>' | '"' | '{' | '}' | '|' | '\\' | '^' | '`')
        && is_xml_char(c)
        && !('\u{FDD0}'..='\u{FDEF}').contains(&c)
}

/// Returns an address without what no IRI has: trimmed, and with spaces, control characters, `<>"{}|\^`, backticks and
/// each `%` that begins no escape percent-encoded.
///
/// Publishers write such addresses, and browsers follow them. RFC 4287, section 4.2.7.1, and JSON Feed allow none.
pub(crate) fn encoded(address: &str) -> Cow<'_, str> {
    let address = address.trim();
    let stays = |(at, c): (usize, char)| if c == '%' { is_escape(&address[at..]) } else { is_iri_char(c) };
    if address.char_indices().all(stays) {
        return Cow::Borrowed(address);
    }
    let mut out = String::with_capacity(address.len() + 16);
    for (at, c) in address.char_indices() {
        let next = &address[at..at + c.len_utf8()];
        if stays((at, c)) {
            out.push(c);
        } else {
            out.extend(utf8_percent_encode(next, NON_ALPHANUMERIC));
        }
    }
    Cow::Owned(out)
}

/// As [`encoded`], of an address that is stored.
pub(crate) fn encode(address: String) -> String {
    let changed = match encoded(&address) {
        Cow::Borrowed(same) if same.len() == address.len() => None,
        changed => Some(changed.into_owned()),
    };
    changed.unwrap_or(address)
}

/// Returns `true` if a text begins with an escape, such as `%20`.
fn is_escape(text: &str) -> bool {
    matches!(text.as_bytes(), [b'%', a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_encoded_once() {
        for (address, expected) in [
            ("http://a.example/c d.html", "http://a.example/c%20d.html"),
            (" http://a.example/ü?q=%20&r=100%#f\n", "http://a.example/ü?q=%20&r=100%25#f"),
            ("/<a>\"{b}|\\^`\u{1}\u{A0}.", "/%3Ca%3E%22%7Bb%7D%7C%5C%5E%60%01%C2%A0."),
            ("%", "%25"),
            ("", ""),
        ] {
            assert_eq!(encoded(address), expected);
            assert_eq!(encoded(expected), expected);
            assert_eq!(encode(address.to_owned()), expected);
        }
    }

    #[test]
    fn iris() {
        for good in ["http://a.example/ü?q#f", "tag:a.example,2025:1", "urn:uuid:0-1", "a+b.c-1:x"] {
            assert!(is_iri(good), "{good}");
        }
        for bad in
            ["", "plain", "12:30", "a b:c", "http://a b", "x:", ":x", "http://a\n", "a:{b}", "a:\u{FFFE}"]
        {
            assert!(!is_iri(bad), "{bad}");
        }
    }
}
