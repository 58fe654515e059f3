//! Entity tags (RFC 9110, section 8.8.3): lists of them in conditions, compared weakly or strongly.

use http::HeaderValue;

/// Returns true if `list` (an `If-None-Match` value: tags, weak or strong, or `*`) names `etag`, by weak comparison
/// (RFC 9110, section 13.1.2).
pub(super) fn etag_matches(list: &HeaderValue, etag: &HeaderValue) -> bool {
    // The usual case, without copying either tag.
    if list == etag {
        return true;
    }
    let etag = opaque(etag.as_bytes());
    listed_tags(list).any(|tag| tag == b"*" || opaque(tag) == etag)
}

/// Returns true if `list` (an `If-Match` value) names `etag`, by strong comparison (RFC 9110, section 13.1.1).
pub(crate) fn etag_matches_strongly(list: &HeaderValue, etag: &HeaderValue) -> bool {
    let etag = etag.as_bytes();
    listed_tags(list).any(|tag| tag == b"*" || (tag == etag && !etag.starts_with(b"W/")))
}

/// Returns a tag without its mark of weakness.
fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Returns the tags of a list as they are written. It ends at what is no tag.
fn listed_tags(list: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let mut rest = list.as_bytes();
    // Tags may hold commas, so the list is walked quote by quote.
    std::iter::from_fn(move || {
        rest = rest.trim_ascii_start();
        // Empty elements of a list count as nothing (RFC 9110, section 5.6.1.2).
        while let Some(next) = rest.strip_prefix(b",") {
            rest = next.trim_ascii_start();
        }
        if rest == b"*" {
            return Some(std::mem::take(&mut rest));
        }
        let weak = if rest.starts_with(b"W/") { 2 } else { 0 };
        let quoted = rest[weak..].strip_prefix(b"\"")?;
        let end = quoted.iter().position(|b| *b == b'"')?;
        let (tag, after) = rest.split_at(weak + end + 2);
        rest = after;
        Some(tag)
    })
}
