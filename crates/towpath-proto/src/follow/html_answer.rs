//! Error for an HTML page that stands where a protocol's document was expected.

use crate::format::media_type::essence;
use crate::format::sniff::DocumentKind;
use crate::format::{html, sniff};

/// Length of the part of a body that is looked at, in bytes.
const START: usize = 16 * 1024;

/// Longest quote of the page's text, and of its media type, in characters.
const QUOTE: usize = 80;

/// Advice for a page's address, at the end of an error.
pub(crate) const ADVICE: &str = "give the address of the feed itself, or choose another protocol";

/// Returns the reason to give for a body that is an HTML page: its media type, its first words, and advice.
///
/// `None` for anything else, whose own parser has the better reason.
pub(crate) fn html_answer(content_type: Option<&str>, body: &[u8]) -> Option<String> {
    let (text, _) = sniff::decode(&body[..body.len().min(START)], content_type);
    let is_page = match sniff::kind(&text) {
        DocumentKind::Html => true,
        DocumentKind::Json | DocumentKind::Empty => false,
        // Pages may begin with any tag, or with text. Feeds are often sent as HTML, though.
        DocumentKind::Xml | DocumentKind::Other => content_type.is_some_and(is_html) && !is_feed(&text),
    };
    if !is_page {
        return None;
    }
    let media_type = content_type.unwrap_or("no content type").chars().take(QUOTE).collect::<String>();
    // Pages that scripts draw have no text but their title.
    let quote = html::to_text(&format!("{} {text}", html::title(&text)), QUOTE);
    let begins = if quote.is_empty() { String::new() } else { format!(", which begins {quote:?}") };
    Some(format!("the address answers an HTML page ({media_type}){begins}; {ADVICE}"))
}

/// Returns `true` if a media type, with or without parameters, is HTML's.
pub(crate) fn is_html(content_type: &str) -> bool {
    let name = essence(content_type);
    ["text/html", "application/xhtml+xml"].iter().any(|html| name.eq_ignore_ascii_case(html))
}

fn is_feed(text: &str) -> bool {
    let start = text.trim_start_matches('\u{FEFF}').trim_start();
    ["<?xml", "<feed", "<rss", "<rdf"].iter().any(|root| start.starts_with(root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_named_with_their_first_words() {
        let page =
            "<!DOCTYPE html><html><head><title>Sign in</title></head><body><h1>Welcome to the hotel</h1>";
        let reason = html_answer(Some("text/html; charset=utf-8"), page.as_bytes()).unwrap();
        assert!(
            reason.starts_with("the address answers an HTML page (text/html; charset=utf-8)"),
            "{reason}"
        );
        assert!(reason.contains("Sign in Welcome to the hotel") && reason.ends_with(ADVICE), "{reason}");
        let reason = html_answer(Some("text/html"), b"<title>Sign in</title>").unwrap();
        assert!(reason.contains("(text/html), which begins \"Sign in\"; "), "{reason}");
        assert!(html_answer(Some("text/html"), b"no such route").unwrap().contains("\"no such route\""));
        assert!(html_answer(None, b"<html>").unwrap().contains("(no content type); "));
    }

    #[test]
    fn quotes_are_bounded() {
        let page = format!("<html><body>{}", "w".repeat(100_000));
        assert!(html_answer(Some(&"t".repeat(10_000)), page.as_bytes()).unwrap().len() < 400);
        // Cut within a character.
        let page = format!("<html><body>x{}", "é".repeat(START));
        assert!(html_answer(None, page.as_bytes()).is_some());
    }

    #[test]
    fn other_bodies_are_left_to_their_parsers() {
        for body in ["", "{", "<feed", "<?xml version='1.0'?><rss>"] {
            assert_eq!(html_answer(Some("text/html"), body.as_bytes()), None, "{body}");
        }
        assert_eq!(html_answer(Some("application/json"), b"no such route"), None);
    }
}
