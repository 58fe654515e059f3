//! Absolute URLs and IRIs, recognized by their characters.

use url::Url;

use super::xml::is_xml_char;

/// Returns `true` if an address begins with a scheme (RFC 3986, section 3.1) and is thus absolute.
pub(crate) fn has_scheme(address: &str) -> bool {
    let Some((scheme, _)) = address.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

/// Returns the URL of a page that relative addresses can be resolved against: one of HTTP.
pub(crate) fn web_page(address: &str) -> Option<Url> {
    Url::parse(address.trim()).ok().filter(|url| matches!(url.scheme(), "http" | "https"))
}

/// Returns `true` if the characters of a text make it an absolute IRI (RFC 3987, section 2.2).
pub(crate) fn is_iri(text: &str) -> bool {
    let allowed = |c: char| {
        !c.is_control()
            && !c.is_whitespace()
            && !matches!(c, '<' | '>' | '"' | '{' | '}' | '|' | '\\' | '^' | '`')
            && is_xml_char(c)
            && !('\u{FDD0}'..='\u{FDEF}').contains(&c)
    };
    has_scheme(text) && !text.ends_with(':') && text.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iris() {
        for good in ["http://a.example/ü?q#f", "tag:a.example,2025:1", "urn:uuid:0-1", "a+b.c-1:x"] {
            assert!(is_iri(good), "{good}");
        }
        for bad in
            ["", "plain", "12:30", "a b:c", "http://a b", "x:", ":x", "http://a\n", "a:{b}", "a:\u{FFFE}"]
        {
            assert!(!is_iri(bad), "{bad}");
        }
    }
}
