//! Plain text of HTML.

use std::ops::ControlFlow;

use html5gum::emitters::callback::CallbackEvent;

use super::plain_text::is_collapsed;
use super::tokens::{SkippedElements, TextSink, is_block, read};

/// Returns `true` if a text of unknown type contains tags or references.
pub(crate) fn looks_like_html(text: &str) -> bool {
    let after = |mark| memchr::memchr_iter(mark, text.as_bytes()).filter_map(|n| text.as_bytes().get(n + 1));
    after(b'<').any(|b| b.is_ascii_alphabetic() || *b == b'/')
        || after(b'&').any(|b| b.is_ascii_alphabetic() || *b == b'#')
}

/// Returns the text of `html` on a single line, cut to at most `max_chars` code points.
///
/// Drops tags, and the contents of elements that a browser does not show as text (`script`, `style`,
/// `template`, …). Block elements and `br` become a space, references like `&amp;` are decoded, white space
/// is collapsed. A longer text is cut at the end of a word, if a word ends in its second half.
pub fn to_text(html: &str, max_chars: usize) -> String {
    let mut text = TextSink::new(max_chars);
    // Most titles are plain text and need no tokenizer.
    if memchr::memchr2(b'<', b'&', html.as_bytes()).is_none() {
        // Most of those have their text as it is.
        let trimmed = html.trim_ascii();
        if trimmed.len() <= max_chars && is_collapsed(trimmed) {
            return trimmed.to_owned();
        }
        text.push(html);
        return text.finish();
    }
    let mut dropped = SkippedElements::default();
    read(html, |event| {
        match event {
            CallbackEvent::OpenStartTag { name } => {
                dropped.open(name);
                if is_block(name) {
                    text.separate(' ');
                }
            }
            CallbackEvent::EndTag { name } => {
                dropped.close(name);
                if is_block(name) {
                    text.separate(' ');
                }
            }
            CallbackEvent::String { value } if !dropped.is_on() => {
                text.push(&String::from_utf8_lossy(value));
            }
            _ => {}
        }
        if text.full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    text.finish()
}

/// Returns the content of a page's first title, with its references decoded; empty without one.
pub(crate) fn title(html: &str) -> String {
    let (mut is_title, mut title) = (false, String::new());
    read(html, |event| {
        match event {
            CallbackEvent::OpenStartTag { name } => is_title = name == b"title",
            CallbackEvent::EndTag { name: b"title" } => return ControlFlow::Break(()),
            CallbackEvent::String { value } if is_title => title.push_str(&String::from_utf8_lossy(value)),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    title
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(html: &str) -> String {
        to_text(html, usize::MAX)
    }

    #[test]
    fn tags_are_dropped_and_words_kept_apart() {
        assert_eq!(text("<p>One</p><p>two<br>three</p> <b>f</b>our"), "One two three four");
        assert_eq!(text("<ul><li>a<li>b</ul><table><tr><td>c<td>d</table>"), "a b c d");
        assert_eq!(text("plain   text\n\twith\u{a0}space "), "plain text with space");
        assert_eq!(text("1 < 2 and 3 > 2"), "1 < 2 and 3 > 2");
    }

    #[test]
    fn references_are_decoded_once() {
        assert_eq!(text("Caf&eacute; &amp;lt; &#x1F600; &nope; &amp"), "Café &lt; 😀 &nope; &");
    }

    #[test]
    fn content_that_no_browser_shows_is_dropped() {
        let html = "a<script>if (1<2) alert('<p>')</script><style>b{}</style>\
                    <template>x<template>y</template>z</template><!-- c --><noscript><i>n</i></noscript>d";
        assert_eq!(text(html), "ad");
        assert_eq!(text("a<script>never closed <p>b"), "a");
    }

    #[test]
    fn the_first_title_is_found() {
        assert_eq!(
            title("<!doctype html><HEAD><TITLE lang=en>One &amp; two</TITLE><title>x</title>"),
            "One & two"
        );
        assert_eq!(title("<script>'<title>no</title>'</script><p>text"), "");
    }

    #[test]
    fn a_long_text_is_cut_at_the_end_of_a_word() {
        assert_eq!(to_text("one two three four", 13), "one two three");
        assert_eq!(to_text("one two three four", 12), "one two");
        assert_eq!(to_text("<p>one two three</p>", 8), "one two");
        assert_eq!(to_text("abcdefghij", 4), "abcd", "no word ends in reach");
        assert_eq!(to_text("a bcdefghijkl", 10), "a bcdefghi", "the first half holds the only word end");
        assert_eq!(to_text("äöü 😀", 5), "äöü 😀");
        assert_eq!(to_text("anything", 0), "");
    }

    proptest! {
        #[test]
        fn an_excerpt_is_collapsed_and_within_its_limit(html in "[ a-z<>&;/\"'!\\-=äß\n]{0,200}", max in 0..60usize) {
            let cut = to_text(&html, max);
            prop_assert!(cut.chars().count() <= max);
            prop_assert_eq!(cut.split_whitespace().collect::<Vec<_>>().join(" "), cut.as_str());
            prop_assert!(text(&html).starts_with(cut.as_str()));
        }

        #[test]
        fn escaped_text_comes_back(words in proptest::collection::vec("[a-zA-Z0-9<>&\"'äß😀]{1,8}", 0..10)) {
            let plain = words.join(" ");
            let html = plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            prop_assert_eq!(text(&html), plain);
        }
    }
}
