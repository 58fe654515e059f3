//! Links from the sections that a conformance report names into the texts of the protocols.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use towpath_client::Protocol;

/// Text of DiffDelta, which this program's rules are from.
const DIFFDELTA: &str =
    "https://github.com/diffdelta/diffdelta-site/blob/main/docs/spec/diffdelta-feed-spec.md";

/// Headings of DiffDelta's text whose sections have rules.
const DIFFDELTA_HEADINGS: [&str; 19] = [
    "1. Resources",
    "1.1 Head pointer",
    "1.2 Latest feed",
    "1.3 Archive snapshot",
    "2.1 Cursor",
    "2.2 prev_cursor",
    "2.3 changed",
    "2.4 generated_at",
    "2.5 ttl_sec",
    "2.6 hash / prev_hash",
    "3.1 Method: canonical_v1",
    "4. Ordering Requirements",
    "5. Error and Disabled Sources",
    "6.1 ETag",
    "6.2 If-None-Match (304 handling)",
    "6.3 CDN Edge Caching",
    "6.4 Cache-Control directives",
    "6.5 Content-Type",
    "8. Discovery",
];

/// Returns the address of a section; `None` for a text that is not on the web.
pub(super) fn link_to(protocol: Protocol, section: &str) -> Option<String> {
    // Some rules come from the texts that a protocol builds on.
    if let Some((rfc, part)) = section.strip_prefix("RFC ").and_then(|rest| rest.split_once(" §")) {
        return Some(format!("https://www.rfc-editor.org/rfc/rfc{}#section-{}", number(rfc), number(part)));
    }
    if section.starts_with("WebSub") {
        return Some("https://www.w3.org/TR/websub/".to_owned());
    }
    if section.starts_with("XML Base") {
        return Some("https://www.w3.org/TR/xmlbase/".to_owned());
    }
    match protocol {
        Protocol::DiffDelta => {
            let wanted = number(section.trim_start_matches('§'));
            let heading = DIFFDELTA_HEADINGS.iter().find(|heading| number(heading) == wanted);
            // A section without a heading of its own is in the text all the same.
            Some(
                heading.map_or_else(
                    || DIFFDELTA.to_owned(),
                    |heading| format!("{DIFFDELTA}#{}", anchor(heading)),
                ),
            )
        }
        // Its headings have no anchors, so the browser looks for their words.
        Protocol::Smart => {
            let words = utf8_percent_encode(section, NON_ALPHANUMERIC);
            Some(format!("https://fanout.io/docs/smartfeeds.html#:~:text={words}"))
        }
        Protocol::Replication => {
            Some(format!("https://datareplication.io/spec/print.html#{}", anchor(section)))
        }
        Protocol::History => Some(format!(
            "https://datatracker.ietf.org/doc/html/draft-nottingham-atompub-feed-history-00#section-{}",
            number(section.trim_start_matches('§'))
        )),
        Protocol::Rss => Some("https://www.rssboard.org/rss-specification".to_owned()),
        _ => None,
    }
}

/// Returns the number at the beginning of a section's name.
fn number(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text[..end].trim_end_matches('.')
}

/// Returns a heading's anchor, as mdBook and GitHub make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_have_addresses() {
        for (protocol, section, end) in [
            (Protocol::History, "§4", "feed-history-00#section-4"),
            (Protocol::History, "RFC 4287 §4.1.2", "/rfc4287#section-4.1.2"),
            (Protocol::Replication, "Page format", "print.html#page-format"),
            (Protocol::Smart, "HTTP Pull", "smartfeeds.html#:~:text=HTTP%20Pull"),
            (Protocol::Smart, "WebSub 5.1.2", "/TR/websub/"),
            (Protocol::DiffDelta, "§2.1", "feed-spec.md#21-cursor"),
            (Protocol::DiffDelta, "§1", "feed-spec.md#1-resources"),
            (Protocol::DiffDelta, "§6.2", "feed-spec.md#62-if-none-match-304-handling"),
            (Protocol::DiffDelta, "§2.6", "feed-spec.md#26-hash--prev_hash"),
            (Protocol::DiffDelta, "§9", "feed-spec.md"),
        ] {
            let link = link_to(protocol, section).unwrap();
            assert!(link.ends_with(end) && url::Url::parse(&link).is_ok(), "{link}");
        }
        assert_eq!(link_to(Protocol::Sup, "§3.1"), None);
    }
}
