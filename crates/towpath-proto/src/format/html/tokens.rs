//! HTML tokens, and a collector for text.

use std::ops::ControlFlow;

use html5gum::emitters::callback::{CallbackEmitter, CallbackEvent};
use html5gum::{Span, Tokenizer};

/// Feeds the tokens of `html` to `visit` until it stops.
pub(crate) fn read(html: &str, mut visit: impl FnMut(CallbackEvent<'_>) -> ControlFlow<()>) {
    read_with(html, &mut visit);
}

/// Has no type parameter: the tokenizer's code would be generated for each visitor.
fn read_with(html: &str, visit: &mut dyn FnMut(CallbackEvent<'_>) -> ControlFlow<()>) {
    let mut emitter =
        CallbackEmitter::new(|event: CallbackEvent<'_>, _: Span<()>| visit(event).break_value());
    // Scripts, styles and titles are read as raw text without a tree builder.
    emitter.naively_switch_states(true);
    // The first emitted token is the stop signal; without one the input was read to its end.
    let _ = Tokenizer::new_with_emitter(html, emitter).next();
}

/// Tracks elements with contents that are not shown.
#[derive(Default)]
pub(super) struct SkippedElements {
    /// Inside an element that the tokenizer reads as raw text, up to its end tag.
    pub(super) raw: bool,
    /// Number of open `template` elements.
    pub(super) templates: usize,
}

impl SkippedElements {
    pub(super) fn open(&mut self, name: &[u8]) {
        match name {
            b"template" => self.templates += 1,
            b"script" | b"style" | b"title" | b"noscript" | b"iframe" | b"noembed" | b"noframes" => {
                self.raw = true;
            }
            _ => {}
        }
    }

    pub(super) fn close(&mut self, name: &[u8]) {
        // The tokenizer reports no end tag within raw text but its own.
        self.raw = false;
        // An end tag without a start must not make the count negative.
        if name == b"template" {
            self.templates = self.templates.saturating_sub(1);
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.raw || self.templates > 0
    }
}

/// Returns `true` if the tag separates words.
pub(crate) fn is_block(name: &[u8]) -> bool {
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

/// Collects text with collapsed white space, up to a number of code points.
pub(crate) struct TextSink {
    out: String,
    chars: usize,
    max_chars: usize,
    /// White space to write before further text.
    pending: Option<char>,
    /// `true` if there is more text than fits.
    pub(super) full: bool,
    /// `true` if the text was cut inside a word.
    cut_word: bool,
}

impl TextSink {
    pub(crate) fn new(max_chars: usize) -> Self {
        Self { out: String::new(), chars: 0, max_chars, pending: None, full: false, cut_word: false }
    }

    pub(crate) fn push(&mut self, text: &str) {
        for (index, word) in text.split(char::is_whitespace).enumerate() {
            if index > 0 {
                self.separate(' ');
            }
            // An estimate from bytes: never less than the number of code points.
            let most = self.chars.saturating_add(word.len() + 1);
            if most <= self.max_chars {
                self.push_word(word);
            } else if !self.full {
                word.chars().for_each(|c| self.push_char(c));
            }
        }
    }

    /// Appends a word that fits.
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
            // A word that ended exactly at the limit is not cut.
            self.cut_word = space.is_none();
            return;
        }
        self.chars += 1 + usize::from(space.is_some());
        self.out.extend(space);
        self.out.push(c);
    }

    /// Records white space; a line break takes precedence over a space.
    pub(crate) fn separate(&mut self, space: char) {
        if !self.out.is_empty() && self.pending != Some('\n') {
            self.pending = Some(space);
        }
    }

    pub(crate) fn finish(mut self) -> String {
        if self.cut_word {
            let word_end = self.out.rfind(char::is_whitespace).unwrap_or(0);
            // A cut at a word's end must not lose half of the excerpt, for example in text without spaces.
            if self.out[..word_end].chars().count() * 2 >= self.max_chars && word_end > 0 {
                self.out.truncate(word_end);
            }
        }
        self.out
    }
}
