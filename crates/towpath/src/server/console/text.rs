//! Texts of items and numbers, in the length that a page has room for.

use std::borrow::Cow;

use maud::{Markup, html};
use towpath_proto::Item;

use crate::plural::noun_for;

/// Returns the beginning of a text, of at most so many bytes.
pub(super) fn prefix(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Cuts a text after so many characters, and collapses its white space.
pub(super) fn clip(text: &str, characters: usize) -> Cow<'_, str> {
    // A text of megabytes must not be walked for its first line.
    let window = prefix(text, characters.saturating_mul(8));
    let is_plain = window.len() == text.len()
        && window.chars().count() <= characters
        && !window.contains(['\n', '\r', '\t'])
        && window.trim().len() == window.len();
    if is_plain {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(characters);
    let mut count = 0;
    for word in window.split_whitespace() {
        if count > 0 {
            out.push(' ');
            count += 1;
        }
        for c in word.chars() {
            if count >= characters {
                out.push('…');
                return Cow::Owned(out);
            }
            out.push(c);
            count += 1;
        }
    }
    if window.len() < text.len() {
        out.push('…');
    }
    Cow::Owned(out)
}

/// Returns the text that stands for an item in lists: its title, else its id.
pub(super) fn name_of(item: &Item) -> Cow<'_, str> {
    let title = item.title.as_deref().map(str::trim).filter(|title| !title.is_empty());
    clip(title.unwrap_or(&item.id), 200)
}

/// Marks a stranger's text up: isolated, so that its direction marks change nothing around it.
pub(super) fn foreign(text: &str) -> Markup {
    html! { bdi { (text) } }
}

/// Returns the visible words of a summary, which may be HTML.
pub(super) fn plain(text: &str, characters: usize) -> String {
    let window = prefix(text, characters.saturating_mul(16));
    if !window.contains('<') && !window.contains('&') {
        return clip(text, characters).into_owned();
    }
    clip(&towpath_proto::format::html::to_text(window, characters), characters).into_owned()
}

/// Returns a number with thin separators between thousands.
pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Returns a count with its noun.
pub(super) fn count(value: u64, noun: &str) -> String {
    format!("{} {}", number(value), noun_for(value, noun))
}

/// Returns a size in bytes for people.
pub(super) fn bytes(value: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| value >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", value as f64 / unit as f64),
        None => count(value, "byte"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_without_a_walk() {
        assert_eq!(clip("short", 10), "short");
        assert_eq!(clip("  two \n words ", 20), "two words");
        assert_eq!(clip("ääääää", 3), "äää…");
        let long = "x".repeat(10 << 20);
        assert_eq!(clip(&long, 5), "xxxxx…");
        assert_eq!(clip(&" ".repeat(1 << 20), 5), "…");
    }

    #[test]
    fn numbers() {
        assert_eq!(
            (number(0), number(999), number(1_234_567)),
            ("0".into(), "999".into(), "1,234,567".into())
        );
        assert_eq!((count(1, "item"), count(2, "item")), ("1 item".into(), "2 items".into()));
        assert_eq!(
            (bytes(17), bytes(1536), bytes(10 << 20)),
            ("17 bytes".into(), "1.5 KiB".into(), "10.0 MiB".into())
        );
    }

    #[test]
    fn markup_of_strangers_becomes_text() {
        assert_eq!(plain("<p>Ten <b>boats</b></p><script>x()</script>", 50), "Ten boats");
        assert_eq!(plain("plain & simple", 50), "plain & simple");
        assert_eq!(foreign("<\u{202e}x>").into_string(), "<bdi>&lt;\u{202e}x&gt;</bdi>");
    }
}
