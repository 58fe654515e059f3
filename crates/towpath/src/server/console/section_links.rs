//! Links from the sections that a conformance report names into the texts of the protocols.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use towpath_client::Protocol;

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

/// Returns a heading's anchor, as mdBook makes it.
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
        ] {
            let link = link_to(protocol, section).unwrap();
            assert!(link.ends_with(end) && url::Url::parse(&link).is_ok(), "{link}");
        }
        assert_eq!(link_to(Protocol::DiffDelta, "§2.1"), None);
    }
}
