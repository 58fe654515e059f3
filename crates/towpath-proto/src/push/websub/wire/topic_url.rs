//! Comparison of topics' URLs.

use std::borrow::Cow;

/// Decodes the percent-encoded characters of a URL that need no encoding (RFC 3986, section 2.3), so that spellings of one
/// URL are equal. WebSub 5.1.1: "Hubs MUST always decode non-reserved characters for these URL parameters".
pub fn decode_unreserved(url: &str) -> Cow<'_, str> {
    let Some((first, rest)) = url.split_once('%') else { return Cow::Borrowed(url) };
    let mut decoded = first.to_owned();
    for part in rest.split('%') {
        let byte = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte.filter(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(byte)) {
            Some(byte) => {
                decoded.push(char::from(byte));
                decoded.push_str(&part[2..]);
            }
            // Reserved, not ASCII, or no encoding at all.
            None => {
                decoded.push('%');
                decoded.push_str(part);
            }
        }
    }
    Cow::Owned(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unreserved_characters_are_decoded() {
        for (url, decoded) in [
            ("http://x/notes", "http://x/notes"),
            ("http://x/n%6Ftes?%6Frder=cre%61ted", "http://x/notes?order=created"),
            ("%61%2d%2E%5f%7E", "a-._~"),
            ("%2F%3f%26%25%20%00%C3%A9", "%2F%3f%26%25%20%00%C3%A9"),
            // Decoded once.
            ("%2561%61", "%2561a"),
            ("%%61%", "%a%"),
            ("%6%+1%-1%6é%é", "%6%+1%-1%6é%é"),
        ] {
            assert_eq!(decode_unreserved(url), decoded);
        }
    }
}
