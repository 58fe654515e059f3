//! Links in HTTP headers (RFC 8288): tolerant parsing, strict writing.
//!
//! Parsing is tolerant because publishers are inexact: angle brackets may be missing, relations quoted or
//! not, several relations in a link, several links in a line, targets relative.

use http::{HeaderMap, header};
use url::Url;

/// Link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Target; absolute if the base was known.
    pub target: String,
    /// Context of the link, if it is not the document itself (RFC 8288, section 3.2).
    pub anchor: Option<String>,
    /// Relations, as written.
    pub rels: Vec<String>,
    /// Other parameters in order: names in lower case, values unquoted.
    pub params: Vec<(String, String)>,
}

impl Link {
    /// Returns `true` if the link has this relation, compared without case (section 2.1.1).
    pub fn has_rel(&self, rel: &str) -> bool {
        self.rels.iter().any(|r| r.eq_ignore_ascii_case(rel))
    }
}

/// Returns the links of all `Link` headers, in order. Relative targets are resolved against `base`, the URL
/// of the response. Values that are not UTF-8 are ignored.
pub fn from_headers(headers: &HeaderMap, base: Option<&Url>) -> Vec<Link> {
    let values = headers.get_all(header::LINK).into_iter();
    // A header value may have bytes beyond ASCII; only UTF-8 is meaningful here.
    values.filter_map(|v| std::str::from_utf8(v.as_bytes()).ok()).flat_map(|v| parse(v, base)).collect()
}

/// Returns the target of the first link with this relation whose context is the document itself.
pub fn target<'a>(links: &'a [Link], rel: &str) -> Option<&'a str> {
    // A link with an anchor is about another document (RFC 8288, section 3.2).
    links.iter().find(|l| l.anchor.is_none() && l.has_rel(rel)).map(|l| l.target.as_str())
}

/// Formats a header value: `<url>; rel="rel"`. Quoted, because relations that are URLs must be, and many
/// readers know the one form only.
pub fn write(url: &str, rel: &str) -> String {
    format!("<{url}>; rel=\"{rel}\"")
}

/// Parses a header value (RFC 8288, section 3 and appendix B.2). Links without a target are skipped.
pub fn parse(value: &str, base: Option<&Url>) -> Vec<Link> {
    let mut links = Vec::new();
    let mut rest = value;
    loop {
        rest = rest.trim_start_matches(|c: char| c == ',' || c.is_ascii_whitespace());
        if rest.is_empty() {
            return links;
        }
        let (target, after) = take_target(rest);
        let (params, after) = take_params(after);
        rest = after;
        if let Some(target) = target {
            links.push(link(target, params, base));
        }
    }
}

/// Splits off the target before the parameters. `None` if there is no target.
fn take_target(text: &str) -> (Option<&str>, &str) {
    if let Some(inner) = text.strip_prefix('<') {
        // An unclosed bracket takes the rest: a cut header still gives its target.
        let (target, after) = inner.split_once('>').unwrap_or((inner, ""));
        return (Some(target.trim()), after);
    }
    // Without brackets a comma may belong to the URL; before white space or the end it is a separator.
    let bytes = text.as_bytes();
    let ends = |at: usize| match bytes[at] {
        b';' => true,
        b',' => bytes.get(at + 1).is_none_or(u8::is_ascii_whitespace),
        _ => false,
    };
    let end = (0..bytes.len()).find(|&at| ends(at)).unwrap_or(bytes.len());
    let target = text[..end].trim();
    ((!target.is_empty()).then_some(target), &text[end..])
}

/// Splits off the parameters up to the next link.
fn take_params(mut text: &str) -> (Vec<(String, String)>, &str) {
    let mut params = Vec::new();
    loop {
        text = text.trim_start();
        let Some(after) = text.strip_prefix(';') else {
            // Anything but a comma here is noise after the target and ends with this link.
            let end = text.find([',', ';']).unwrap_or(text.len());
            if text[end..].starts_with(';') {
                text = &text[end..];
                continue;
            }
            return (params, &text[end..]);
        };
        let after = after.trim_start();
        let end = after.find(['=', ';', ',']).unwrap_or(after.len());
        let name = after[..end].trim().to_ascii_lowercase();
        let mut value = String::new();
        text = &after[end..];
        if let Some(after) = text.strip_prefix('=') {
            (value, text) = take_value(after.trim_start());
        }
        // Empty parameters, as in `;;`, are common and harmless.
        if !name.is_empty() {
            params.push((name, value));
        }
    }
}

/// Splits off a token or a quoted string.
fn take_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([';', ',']).unwrap_or(text.len());
        return (text[..end].trim().to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            // A quoted pair (RFC 9110, section 5.6.4).
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            c => value.push(c),
        }
    }
    // An unclosed quotation mark takes the rest.
    (value, "")
}

fn link(target: &str, params: Vec<(String, String)>, base: Option<&Url>) -> Link {
    let mut link = Link { target: resolve(target, base), anchor: None, rels: Vec::new(), params: Vec::new() };
    let mut has_rel = false;
    for (name, value) in params {
        match name.as_str() {
            // RFC 8288, section 3.3: occurrences of rel after the first are ignored.
            "rel" if has_rel => {}
            "rel" => {
                has_rel = true;
                link.rels = value.split_ascii_whitespace().map(str::to_owned).collect();
            }
            "anchor" if link.anchor.is_none() => link.anchor = Some(resolve(&value, base)),
            _ => link.params.push((name, value)),
        }
    }
    link
}

fn resolve(target: &str, base: Option<&Url>) -> String {
    let resolved = match base {
        Some(base) => base.join(target),
        None => Url::parse(target),
    };
    // A target that is not a URL is returned as written: the caller may know better.
    resolved.map_or_else(|_| target.to_owned(), String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Url {
        Url::parse("https://example.com/feed/2?x=1").unwrap()
    }

    fn shown(value: &str) -> Vec<(String, Vec<String>)> {
        parse(value, Some(&base())).into_iter().map(|l| (l.target, l.rels)).collect()
    }

    fn one(target: &str, rels: &[&str]) -> Vec<(String, Vec<String>)> {
        vec![(target.into(), rels.iter().map(|r| (*r).to_owned()).collect())]
    }

    #[test]
    fn every_form_of_one_link_is_read() {
        for value in [
            "<https://example.com/feed/1>; rel=prev",
            "<https://example.com/feed/1>;rel=\"prev\"",
            "https://example.com/feed/1;rel=prev",
            "https://example.com/feed/1 ; REL = \"prev\"",
            "</feed/1>; rel=prev",
            "<1>; title=\"a, b; rel=next\"; rel=prev; rel=next",
            ", <1>; rel=prev,",
        ] {
            assert_eq!(shown(value), one("https://example.com/feed/1", &["prev"]), "{value}");
        }
    }

    #[test]
    fn several_relations_and_several_links() {
        assert_eq!(shown("<3>; rel=\"next last\""), one("https://example.com/feed/3", &["next", "last"]));
        let both =
            [one("https://example.com/feed/1", &["prev"]), one("https://example.com/a,b;c", &["next"])]
                .concat();
        assert_eq!(shown("<1>; rel=prev, <https://example.com/a,b;c>; rel=next"), both);
        let bare =
            [one("https://example.com/a,b", &["self"]), one("https://example.com/c", &["next"])].concat();
        assert_eq!(shown("https://example.com/a,b;rel=self, https://example.com/c;rel=next"), bare);
    }

    #[test]
    fn case_f_an_empty_target_is_no_link() {
        assert_eq!(shown("; rel=self"), []);
        assert_eq!(shown(""), []);
        assert_eq!(shown(" ,, "), []);
    }

    #[test]
    fn rfc_8288_3_an_empty_reference_in_brackets_is_the_document_itself() {
        assert_eq!(shown("<>; rel=self"), one("https://example.com/feed/2?x=1", &["self"]));
    }

    #[test]
    fn rfc_8288_3_2_links_from_elsewhere_are_not_the_documents() {
        let links = parse("<1>; rel=next; anchor=\"#part\", <3>; rel=NEXT", Some(&base()));
        assert_eq!(links[0].anchor.as_deref(), Some("https://example.com/feed/2?x=1#part"));
        assert_eq!(target(&links, "next"), Some("https://example.com/feed/3"));
    }

    #[test]
    fn parameters_are_kept() {
        let links = parse("<1>; rel=next; Type=text/plain; title=\"a \\\"b\\\"\"; flag", None);
        let param = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(links[0].target, "1");
        assert_eq!(
            links[0].params,
            [param("type", "text/plain"), param("title", "a \"b\""), param("flag", "")]
        );
    }

    #[test]
    fn headers_are_read_together() {
        let mut headers = HeaderMap::new();
        headers.append(header::LINK, "<1>; rel=prev".parse().unwrap());
        headers.append(header::LINK, write("https://example.com/feed/2", "self").parse().unwrap());
        let links = from_headers(&headers, Some(&base()));
        assert_eq!(target(&links, "self"), Some("https://example.com/feed/2"));
        assert_eq!(target(&links, "prev"), Some("https://example.com/feed/1"));
        assert_eq!(target(&links, "next"), None);
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_is_read(path in "[a-z0-9,;=?&-]{0,20}", rel in "[a-z]{1,8}") {
            let url = format!("https://example.com/{path}");
            let links = parse(&write(&url, &rel), None);
            proptest::prop_assert_eq!(links.len(), 1);
            proptest::prop_assert_eq!(target(&links, &rel), Some(url.as_str()));
        }

        #[test]
        fn never_panics(value in "[<>;,=\"\\\\ a-zé/:]{0,60}") {
            let _ = parse(&value, Some(&base()));
        }
    }
}
