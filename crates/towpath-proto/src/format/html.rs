//! HTML as feeds carry it: a plain text excerpt of it, and what stands in it besides text.
//!
//! Both read the tokens of the HTML standard (section 13.2.5) without building a tree, in time and memory
//! linear in the input whatever it nests or leaves open.

mod alternates;
mod head_links;
mod survey;

use html5gum::emitters::callback::{CallbackEmitter, CallbackEvent};
use html5gum::{Span, Tokenizer};

pub use alternates::{Alternate, alternates};
pub use head_links::head_links;
pub use survey::{Link, Survey, survey};

/// The text of `html` on one line, at most `max_chars` code points of it.
///
/// Tags are dropped, and with them the content of elements that a browser does not show as text (`script`,
/// `style`, `template`, …); block elements and `br` stand for a space, references like `&amp;` are decoded,
/// white space is collapsed. A longer text is cut at the end of a word, where one ends in its second half.
pub fn to_text(html: &str, max_chars: usize) -> String {
    let mut text = TextSink::new(max_chars);
    if memchr::memchr2(b'<', b'&', html.as_bytes()).is_none() {
        text.push(html);
        return text.finish();
    }
    let mut dropped = Dropped::default();
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
        if text.full { Stop::Yes } else { Stop::No }
    });
    text.finish()
}

/// Whether reading goes on.
enum Stop {
    Yes,
    No,
}

/// Feeds the tokens of `html` to `visit` until it says stop.
fn read(html: &str, mut visit: impl FnMut(CallbackEvent<'_>) -> Stop) {
    let mut emitter = CallbackEmitter::new(|event: CallbackEvent<'_>, _: Span<()>| match visit(event) {
        Stop::Yes => Some(()),
        Stop::No => None,
    });
    emitter.naively_switch_states(true);
    // The first token is the sign to stop; without one the input has been read to its end.
    let _ = Tokenizer::new_with_emitter(html, emitter).next();
}

/// Knows whether the reader is inside an element whose content is not shown.
#[derive(Default)]
struct Dropped {
    /// Inside an element that the tokenizer reads as raw text, up to its end tag.
    raw: bool,
    /// How many `template` elements are open.
    templates: usize,
}

impl Dropped {
    fn open(&mut self, name: &[u8]) {
        match name {
            b"template" => self.templates += 1,
            b"script" | b"style" | b"title" | b"noscript" | b"iframe" | b"noembed" | b"noframes" => {
                self.raw = true;
            }
            _ => {}
        }
    }

    fn close(&mut self, name: &[u8]) {
        // Raw text ends at the first end tag that the tokenizer tells of: its own.
        self.raw = false;
        if name == b"template" {
            self.templates = self.templates.saturating_sub(1);
        }
    }

    fn is_on(&self) -> bool {
        self.raw || self.templates > 0
    }
}

/// Whether text before and after the tag is not one word.
fn is_block(name: &[u8]) -> bool {
    matches!(
        name,
        b"address"
            | b"article"
            | b"aside"
            | b"blockquote"
            | b"body"
            | b"br"
            | b"button"
            | b"caption"
            | b"center"
            | b"dd"
            | b"details"
            | b"dialog"
            | b"dir"
            | b"div"
            | b"dl"
            | b"dt"
            | b"fieldset"
            | b"figcaption"
            | b"figure"
            | b"footer"
            | b"form"
            | b"h1"
            | b"h2"
            | b"h3"
            | b"h4"
            | b"h5"
            | b"h6"
            | b"header"
            | b"hr"
            | b"img"
            | b"li"
            | b"main"
            | b"nav"
            | b"ol"
            | b"option"
            | b"p"
            | b"pre"
            | b"section"
            | b"summary"
            | b"table"
            | b"tbody"
            | b"td"
            | b"textarea"
            | b"th"
            | b"tr"
            | b"ul"
    )
}

/// Collects text with its white space collapsed, up to a number of code points.
struct TextSink {
    out: String,
    chars: usize,
    max_chars: usize,
    /// White space that is written when more text follows.
    pending: Option<char>,
    /// There is more text than fits.
    full: bool,
    /// The text was cut inside a word.
    cut_word: bool,
}

impl TextSink {
    fn new(max_chars: usize) -> Self {
        Self { out: String::new(), chars: 0, max_chars, pending: None, full: false, cut_word: false }
    }

    fn push(&mut self, text: &str) {
        for (index, word) in text.split(char::is_whitespace).enumerate() {
            if index > 0 {
                self.separate(' ');
            }
            let most = self.chars.saturating_add(word.len() + 1);
            if most <= self.max_chars {
                self.push_word(word);
            } else if !self.full {
                word.chars().for_each(|c| self.push_char(c));
            }
        }
    }

    /// A word that fits whole.
    fn push_word(&mut self, word: &str) {
        if word.is_empty() {
            return;
        }
        let space = self.pending.take();
        self.chars += word.chars().count() + usize::from(space.is_some());
        self.out.extend(space);
        self.out.push_str(word);
    }

    fn push_char(&mut self, c: char) {
        if self.full {
            return;
        }
        let space = self.pending.take();
        if self.chars + usize::from(space.is_some()) >= self.max_chars {
            self.full = true;
            self.cut_word = space.is_none();
            return;
        }
        self.chars += 1 + usize::from(space.is_some());
        self.out.extend(space);
        self.out.push(c);
    }

    /// Notes white space; a line break wins over a space.
    fn separate(&mut self, space: char) {
        if !self.out.is_empty() && self.pending != Some('\n') {
            self.pending = Some(space);
        }
    }

    fn finish(mut self) -> String {
        if self.cut_word {
            let word_end = self.out.rfind(char::is_whitespace).unwrap_or(0);
            if self.out[..word_end].chars().count() * 2 >= self.max_chars && word_end > 0 {
                self.out.truncate(word_end);
            }
        }
        self.out
    }
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
