//! Titles of unknown type: RSS does not say whether its title is a text or HTML.

use memchr::memchr2_iter;

use super::entity::entity;
use super::text::to_text;

/// Elements that titles have, in lower case.
const ELEMENTS: [&str; 30] = [
    "a", "abbr", "b", "bdi", "big", "br", "cite", "code", "del", "div", "em", "font", "i", "img", "ins",
    "kbd", "mark", "p", "q", "s", "small", "span", "strike", "strong", "sub", "sup", "tt", "u", "var", "wbr",
];
/// Longest name of a character reference.
const LONGEST_REFERENCE: usize = 33;

/// Returns a title as plain text: of HTML what it shows, and any other text unchanged.
pub(crate) fn plain_title(title: String) -> String {
    if is_html(&title) { to_text(&title, title.len()) } else { title }
}

/// Returns true if a text is HTML beyond doubt: it has a known character reference or a whole element, and no tag that HTML
/// does not know, as in `Vec<T>`.
fn is_html(text: &str) -> bool {
    let mut found = false;
    for at in memchr2_iter(b'<', b'&', text.as_bytes()) {
        let rest = &text[at + 1..];
        if text.as_bytes()[at] == b'&' {
            found |= is_reference(rest);
        } else if let Some(tag) = tag(rest) {
            if !ELEMENTS.contains(&tag.name.as_str()) {
                return false;
            }
            // An opening tag alone may be what the title is about.
            found |= tag.is_closing || matches!(tag.name.as_str(), "br" | "img" | "wbr");
        }
    }
    found
}

/// Returns true if a text begins with a character reference, without its ampersand.
fn is_reference(text: &str) -> bool {
    let beginning = text.bytes().take(LONGEST_REFERENCE);
    let Some(end) = beginning.clone().position(|b| b == b';') else { return false };
    let name = &text[..end];
    match name.strip_prefix('#') {
        Some(number) => {
            let hex = number.strip_prefix(['x', 'X']);
            let digits = hex.unwrap_or(number);
            let is_digit = |b: u8| if hex.is_some() { b.is_ascii_hexdigit() } else { b.is_ascii_digit() };
            !digits.is_empty() && digits.bytes().all(is_digit)
        }
        None => name.bytes().all(|b| b.is_ascii_alphanumeric()) && entity(name).is_some(),
    }
}

/// A tag in a text.
struct FoundTag {
    /// Name in lower case.
    name: String,
    is_closing: bool,
}

/// Returns the tag that a text begins with, without its `<`.
fn tag(text: &str) -> Option<FoundTag> {
    let (is_closing, text) = text.strip_prefix('/').map_or((false, text), |rest| (true, rest));
    let end = text.bytes().position(|b| !b.is_ascii_alphanumeric()).unwrap_or(text.len());
    let is_named = text.starts_with(|c: char| c.is_ascii_alphabetic());
    is_named.then(|| FoundTag { name: text[..end].to_ascii_lowercase(), is_closing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_is_shown_as_its_text() {
        for (title, shown) in [
            ("Tom &amp; Jerry", "Tom & Jerry"),
            ("It&#8217;s late&hellip;", "It’s late…"),
            ("A <i>slow</i> boat", "A slow boat"),
            ("One<br/>two", "One two"),
            ("a &lt; b", "a < b"),
            ("<B>Ten</B> boats &#x26; more", "Ten boats & more"),
        ] {
            assert_eq!(plain_title(title.into()), shown);
        }
    }

    #[test]
    fn other_texts_are_unchanged() {
        for title in [
            "AT&T",
            "R&D; and more",
            "Vec<T> explained &amp; more",
            "std::vector<int> x</int>",
            "1 < 2 && 3 > 2",
            "How to use <code>",
            "The <b> tag",
            "&#; &#x; &;",
            "< b>",
            "a\u{a0}&\u{e4};  two  spaces",
        ] {
            assert_eq!(plain_title(title.into()), title);
        }
    }
}
