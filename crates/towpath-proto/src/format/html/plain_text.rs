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

/// Returns `true` for ASCII text whose white space is single spaces. Tests every byte instead of stopping early, so that
/// it vectorizes.
pub(crate) fn is_collapsed(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_other = |b: u8| !(b' '..=b'~').contains(&b);
    let others = bytes.iter().fold(false, |any, b| any | is_other(*b));
    let pairs = bytes.iter().zip(bytes.iter().skip(1));
    !(others | pairs.fold(false, |any, (a, b)| any | ((*a == b' ') & (*b == b' '))))
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

    #[test]
    fn collapsed_text_is_ascii_with_single_spaces() {
        for text in ["", " a b ", "~!", "one two"] {
            assert!(is_collapsed(text), "{text:?}");
        }
        for text in ["a  b", "a\tb", "a\n", "\u{7f}", "ä", "a\u{a0}b"] {
            assert!(!is_collapsed(text), "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn escaping_comes_back(text in "[&<>a-z;]{0,20}|(&|&amp;|&lt;|lt;|gt;|amp;){0,6}") {
            proptest::prop_assert_eq!(unescape(&escape(&text)), text);
        }
    }
}
