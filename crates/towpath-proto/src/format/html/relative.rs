//! Relative addresses in HTML: found and resolved, with every other byte as it is.

use std::borrow::Cow;

use crate::format::iri::has_scheme;

/// Elements whose contents are text up to their own end tag, whatever stands in it.
const RAW: [&str; 8] = ["script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes"];

/// Returns true for attributes whose value is one address (HTML standard, section "Attributes").
pub(crate) fn is_address_attribute(name: &str) -> bool {
    const NAMES: [&str; 9] =
        ["href", "src", "poster", "cite", "data", "action", "formaction", "background", "longdesc"];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Returns true if an address is relative to a document other than the content itself. A mere fragment
/// leads to a place within the content.
pub(crate) fn is_relative(address: &str) -> bool {
    let address = address.trim();
    !address.is_empty() && !address.starts_with('#') && !has_scheme(address)
}

/// Returns true if `html` has an address that depends on the document's own.
pub(crate) fn has_relative(html: &str) -> bool {
    let mut found = false;
    let note = |address: &str| {
        found = true;
        Ok::<_, std::convert::Infallible>(address.to_owned())
    };
    let _ = resolved(html, note);
    found
}

/// Resolves the relative addresses in `html`. Only their bytes change.
pub(crate) fn resolved<E>(
    html: &str,
    mut resolve: impl FnMut(&str) -> Result<String, E>,
) -> Result<Cow<'_, str>, E> {
    let mut out = String::new();
    let mut copied = 0;
    let mut scanner = Scanner { html, at: 0, tag: None };
    while let Some(value) = scanner.next_value() {
        let Some(new) = resolved_value(&value, &mut resolve)? else { continue };
        out.push_str(&html[copied..value.start]);
        out.push_str(&new);
        copied = value.start + value.raw.len();
    }
    if copied == 0 {
        return Ok(Cow::Borrowed(html));
    }
    out.push_str(&html[copied..]);
    Ok(Cow::Owned(out))
}

/// Returns the value with its addresses resolved and escaped, or `None` if it stays.
fn resolved_value<E>(
    value: &AttributeValue<'_>,
    resolve: &mut impl FnMut(&str) -> Result<String, E>,
) -> Result<Option<String>, E> {
    // Addresses in HTML have this reference more often than any other, and it must not become part of one.
    let text = value.raw.replace("&amp;", "&");
    let new = if value.is_set { resolved_set(&text, resolve)? } else { resolved_one(&text, resolve)? };
    let Some(new) = new else { return Ok(None) };
    let new = new.replace('&', "&amp;");
    Ok(Some(match value.quote {
        Some(b'"') => new.replace('"', "&quot;"),
        Some(_) => new.replace('\'', "&#39;"),
        // Without quotes, a space or a bracket would end the value.
        None => new.replace('"', "%22").replace(' ', "%20").replace('>', "%3E").replace('\'', "%27"),
    }))
}

/// Resolves the relative addresses in the value of an attribute. `None` if it stays.
pub(crate) fn resolved_attribute<E>(
    name: &str,
    value: &str,
    resolve: &mut impl FnMut(&str) -> Result<String, E>,
) -> Result<Option<String>, E> {
    match name {
        "srcset" => resolved_set(value, resolve),
        name if is_address_attribute(name) => resolved_one(value, resolve),
        _ => Ok(None),
    }
}

fn resolved_one<E>(
    text: &str,
    resolve: &mut impl FnMut(&str) -> Result<String, E>,
) -> Result<Option<String>, E> {
    if is_relative(text) { resolve(text.trim()).map(Some) } else { Ok(None) }
}

/// Resolves the candidates of a `srcset`: an address and perhaps a descriptor each, with commas between.
fn resolved_set<E>(
    text: &str,
    resolve: &mut impl FnMut(&str) -> Result<String, E>,
) -> Result<Option<String>, E> {
    let mut changed = false;
    let mut candidates = Vec::new();
    // A comma within an address is not followed by white space, unlike most between candidates.
    for candidate in text.split(", ").flat_map(|part| part.split(",\n")) {
        let candidate = candidate.trim();
        let (address, rest) = candidate.split_once(char::is_whitespace).unwrap_or((candidate, ""));
        let new = resolved_one(address, resolve)?;
        changed |= new.is_some();
        let address = new.unwrap_or_else(|| address.to_owned());
        candidates.push(if rest.is_empty() { address } else { format!("{address} {}", rest.trim()) });
    }
    Ok(changed.then(|| candidates.join(", ")))
}

/// Value of an attribute that holds addresses.
struct AttributeValue<'a> {
    start: usize,
    raw: &'a str,
    quote: Option<u8>,
    /// True for `srcset`.
    is_set: bool,
}

/// Finds the attributes with addresses in start tags. Anything that is no tag is text.
struct Scanner<'a> {
    html: &'a str,
    at: usize,
    /// Name of the start tag that is being read.
    tag: Option<&'a str>,
}

impl<'a> Scanner<'a> {
    fn next_value(&mut self) -> Option<AttributeValue<'a>> {
        loop {
            let found = match self.tag {
                Some(_) => self.next_attribute(),
                None => {
                    self.next_tag()?;
                    None
                }
            };
            if found.is_some() {
                return found;
            }
        }
    }

    /// Goes to the next start tag. `None` at the end.
    fn next_tag(&mut self) -> Option<()> {
        loop {
            let open = self.at + memchr::memchr(b'<', &self.bytes()[self.at..])?;
            let rest = &self.html[open + 1..];
            if rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
                let end = rest.find(|c: char| c.is_ascii_whitespace() || matches!(c, '/' | '>'));
                let end = end.unwrap_or(rest.len());
                self.tag = Some(&rest[..end]);
                self.at = open + 1 + end;
                return Some(());
            }
            let (end, skipped) = match rest.strip_prefix("!--") {
                Some(comment) => (comment.find("-->")?, 3 + 3),
                None if rest.starts_with(['/', '!', '?']) => (rest.find('>')?, 1),
                None => (0, 0),
            };
            self.at = open + 1 + end + skipped;
        }
    }

    /// Goes behind the next attribute of the tag; returns its value if that is an address.
    fn next_attribute(&mut self) -> Option<AttributeValue<'a>> {
        self.skip(|b| b.is_ascii_whitespace() || b == b'/');
        if self.at >= self.html.len() || self.bytes()[self.at] == b'>' {
            self.end_tag();
            return None;
        }
        let name_start = self.at;
        // A name may begin with `=` (HTML standard, "before attribute name state").
        self.at += 1;
        self.skip(|b| !b.is_ascii_whitespace() && !matches!(b, b'/' | b'>' | b'='));
        let name = self.html.get(name_start..self.at)?;
        self.skip(|b| b.is_ascii_whitespace());
        if self.bytes().get(self.at) != Some(&b'=') {
            return None;
        }
        self.at += 1;
        self.skip(|b| b.is_ascii_whitespace());
        let quote = self.bytes().get(self.at).copied().filter(|b| matches!(b, b'"' | b'\''));
        let start = self.at + usize::from(quote.is_some());
        self.at = start;
        match quote {
            Some(quote) => self.skip(|b| b != quote),
            None => self.skip(|b| !b.is_ascii_whitespace() && b != b'>'),
        }
        let raw = &self.html[start..self.at];
        // An unclosed quotation mark takes the rest, which is no value then.
        let is_closed = quote.is_none() || self.at < self.html.len();
        self.at += usize::from(quote.is_some() && is_closed);
        let is_set = name.eq_ignore_ascii_case("srcset");
        let holds = is_closed && (is_set || is_address_attribute(name));
        holds.then_some(AttributeValue { start, raw, quote, is_set })
    }

    /// Leaves the tag, and the raw text behind it.
    fn end_tag(&mut self) {
        self.at = (self.at + 1).min(self.html.len());
        let Some(raw) = self.tag.take().and_then(|tag| RAW.iter().find(|raw| tag.eq_ignore_ascii_case(raw)))
        else {
            return;
        };
        let begin = |at: &usize| {
            let name = self.bytes().get(at + 2..at + 2 + raw.len());
            self.bytes().get(at + 1) == Some(&b'/')
                && name.is_some_and(|name| name.eq_ignore_ascii_case(raw.as_bytes()))
        };
        let ends = memchr::memchr_iter(b'<', &self.bytes()[self.at..]).map(|at| self.at + at);
        self.at = ends.clone().find(|at| begin(at)).unwrap_or(self.html.len());
    }

    fn skip(&mut self, skipped: impl Fn(u8) -> bool) {
        let rest = &self.html.as_bytes()[self.at..];
        self.at += rest.iter().position(|b| !skipped(*b)).unwrap_or(rest.len());
    }

    fn bytes(&self) -> &'a [u8] {
        self.html.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use url::Url;

    use super::*;

    fn joined(html: &str) -> String {
        let base = Url::parse("https://a.example/dir/doc").unwrap();
        let join = |address: &str| base.join(address).map_or_else(|_| address.to_owned(), String::from);
        let resolve = |address: &str| Ok::<_, std::convert::Infallible>(join(address));
        resolved(html, resolve).unwrap().into_owned()
    }

    #[test]
    fn addresses_are_resolved_and_nothing_else() {
        for (html, expected) in [
            ("<a href=\"b\">", "<a href=\"https://a.example/dir/b\">"),
            ("<A  HREF = '/b?x=1&amp;y' class=c >", "<A  HREF = 'https://a.example/b?x=1&amp;y' class=c >"),
            ("<img src=i.png/>", "<img src=https://a.example/dir/i.png/>"),
            ("<img src=//cdn.example/i>", "<img src=https://cdn.example/i>"),
            (
                "<img alt='a>b' srcset='i.png 1x, /j.png 2x'>",
                "<img alt='a>b' srcset='https://a.example/dir/i.png 1x, https://a.example/j.png 2x'>",
            ),
            (
                "<video poster=p><q cite=q>",
                "<video poster=https://a.example/dir/p><q cite=https://a.example/dir/q>",
            ),
        ] {
            assert_eq!(joined(html), expected);
            assert!(has_relative(html));
        }
        for stays in [
            "plain href=b text",
            "1 < 2 href=b",
            "<a href='https://b.example/'>",
            "<a href=#note>",
            "<a href=''>",
            "<a href=mailto:a@b.example><a href='data:,x'>",
            "<!-- <a href=b> --><script>'<a href=b>'</script><b title='href=b'>",
            "</a href=b><!a href=b><?a href=b>",
            "<a href='b",
            "<a hrefs=b data-src=c>",
            "<",
            "<a",
        ] {
            assert_eq!(joined(stays), stays);
            assert!(!has_relative(stays), "{stays}");
        }
        assert_eq!(
            joined("<script>x</SCRIPT><a href=b>"),
            "<script>x</SCRIPT><a href=https://a.example/dir/b>"
        );
    }

    proptest! {
        #[test]
        fn once_resolved_nothing_is_relative(html in "(<a href=|<img src='|'|\"|>|b|/| |<!--|-->|<script>|&amp;|é|srcset=|, ){0,20}") {
            let once = joined(&html);
            prop_assert_eq!(joined(&once), once);
        }
    }
}
