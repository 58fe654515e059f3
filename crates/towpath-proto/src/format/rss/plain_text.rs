//! Plain text as HTML that shows it, and back again.

use std::borrow::Cow;

/// Characters that HTML escapes, the ampersand first: it is part of the others' escapes.
const ESCAPES: [(&str, &str); 3] = [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")];

/// Returns HTML that shows a text.
pub(super) fn to_html(text: &str) -> Cow<'_, str> {
    replace(text, ESCAPES.into_iter())
}

/// Returns the text that such HTML shows.
pub(super) fn from_html(html: &str) -> Cow<'_, str> {
    replace(html, ESCAPES.into_iter().rev().map(|(character, escape)| (escape, character)))
}

fn replace<'t>(text: &'t str, pairs: impl Iterator<Item = (&'static str, &'static str)>) -> Cow<'t, str> {
    pairs.fold(Cow::Borrowed(text), |text, (from, to)| {
        if text.contains(from) { Cow::Owned(text.replace(from, to)) } else { text }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_comes_back_from_its_html() {
        for (text, html) in [
            ("a < b && \"c\" > d", "a &lt; b &amp;&amp; \"c\" &gt; d"),
            ("&lt; &amp;lt; &amp", "&amp;lt; &amp;amp;lt; &amp;amp"),
            ("plain", "plain"),
        ] {
            assert_eq!(to_html(text), html);
            assert_eq!(from_html(html), text);
        }
    }
}
