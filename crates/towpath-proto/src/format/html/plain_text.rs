//! Plain text as HTML that shows it, and back again.

use std::borrow::Cow;

/// Escapes text as HTML.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    // Most text has nothing to escape, and is borrowed.
    if memchr::memchr3(b'&', b'<', b'>', text.as_bytes()).is_none() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"))
}

/// Reverses `escape`.
pub(crate) fn unescape(text: &str) -> String {
    // The ampersand comes last: `&amp;lt;` must become `&lt;`.
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
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
            assert_eq!(escape(text), html);
            assert_eq!(unescape(html), text);
        }
    }

    proptest::proptest! {
        #[test]
        fn escaping_comes_back(text in "[&<>a-z;]{0,20}|(&|&amp;|&lt;|lt;|gt;|amp;){0,6}") {
            proptest::prop_assert_eq!(unescape(&escape(&text)), text);
        }
    }
}
