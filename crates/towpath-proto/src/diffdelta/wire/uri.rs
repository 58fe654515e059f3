//! URIs by RFC 3986, as the schema's `format: uri` requires them.

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_encode, utf8_percent_encode};
use url::Url;

/// All characters but RFC 3986's unreserved ones.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Characters that the `url` crate accepts and RFC 3986 does not.
const FORBIDDEN: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Percent-encodes an id as a single path segment.
pub(in crate::diffdelta) fn segment(id: &str) -> String {
    // A slash is escaped too: an id must not add segments to the path.
    utf8_percent_encode(id, SEGMENT).to_string()
}

/// Returns `text` as an absolute URI, escaped if necessary; `None` if escaping does not make it one.
pub(in crate::diffdelta) fn absolute(text: &str) -> Option<String> {
    if is_absolute(text) {
        return Some(text.to_owned());
    }
    // The URL parser repairs what browsers repair (spaces, IDNA, backslashes); what it leaves is escaped.
    let parsed = Url::parse(text).ok()?;
    // `%` is not in the set: an escape in the URL must not be escaped again.
    let escaped = percent_encode(parsed.as_str().as_bytes(), FORBIDDEN).to_string();
    is_absolute(&escaped).then_some(escaped)
}

/// Returns true if `text` is an absolute URI by RFC 3986, section 3.
///
/// The authority is stricter: letters, digits and `-._~%`, or an IPv6 address in brackets, and a port.
/// User information is refused.
pub(in crate::diffdelta) fn is_absolute(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let named = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    if !named || rest.is_empty() {
        return false;
    }
    let path = match rest.strip_prefix("//") {
        Some(rest) => {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            // `urn:` and `file:///` have no host, which RFC 3986 allows; for http it is an error.
            let needs_host = matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https");
            if !is_authority(&rest[..end]) || (needs_host && end == 0) {
                return false;
            }
            &rest[end..]
        }
        None => rest,
    };
    // A second `#` cannot be part of a fragment.
    path.matches('#').count() <= 1 && path.bytes().all(is_uri_byte) && escapes_are_whole(rest)
}

fn is_uri_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?#%".contains(&byte)
}

fn is_authority(authority: &str) -> bool {
    let (host, port) = match authority.find(']') {
        // Brackets hold an IPv6 address, whose colons do not begin a port.
        Some(end) if url::Host::parse(&authority[..=end]).is_ok() => ("", &authority[end + 1..]),
        _ => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port_fits = port.is_empty() || port.strip_prefix(':').is_some_and(|p| p.parse::<u16>().is_ok());
    let host_fits = host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~%".contains(&b));
    port_fits && host_fits
}

/// Returns true if two hex digits follow every `%`.
fn escapes_are_whole(text: &str) -> bool {
    let mut parts = text.as_bytes().split(|&b| b == b'%');
    parts.next();
    parts.all(|p| p.len() >= 2 && p[..2].iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_stay_as_they_are() {
        for uri in [
            "https://example.com/a?b=c#d",
            "http://[::1]:8080/",
            "urn:isbn:0451450523",
            "mailto:a@example.com",
            "tag:example.com,2024:x",
            "https://example.com/%20",
        ] {
            assert_eq!(absolute(uri).as_deref(), Some(uri));
        }
    }

    #[test]
    fn others_are_escaped_or_refused() {
        for (text, uri) in [
            ("https://example.com/a b|c", Some("https://example.com/a%20b%7Cc")),
            ("https://exämple.com/ü", Some("https://xn--exmple-cua.com/%C3%BC")),
            ("https://example.com/a\nb", Some("https://example.com/ab")),
            ("/relative", None),
            ("", None),
            ("not a uri", None),
            ("http://", None),
            ("https://example.com/%zz", None),
            ("http://user:pass@example.com/", None),
        ] {
            assert_eq!(absolute(text).as_deref(), uri, "{text}");
        }
        assert_eq!(segment("a/b\n😀~"), "a%2Fb%0A%F0%9F%98%80~");
    }
}
