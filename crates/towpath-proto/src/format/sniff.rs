//! Detection of the character set and format of a document.

use std::borrow::Cow;

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};

use super::html;
use super::media_type;
use super::xml::is_xml_char;

/// Kind of a document, by its first characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentKind {
    /// Element, possibly after a declaration and comments.
    Xml,
    /// JSON object or array.
    Json,
    /// HTML page.
    Html,
    /// White space only.
    Empty,
    /// Anything else.
    Other,
}

/// Detects the kind by content alone.
pub fn kind(text: &str) -> DocumentKind {
    let text = text.trim_start_matches('\u{FEFF}').trim_start();
    // Content types in the wild are unreliable, so the content decides.
    match text.as_bytes().first() {
        None => DocumentKind::Empty,
        Some(b'{' | b'[') => DocumentKind::Json,
        Some(b'<') if is_html(text) => DocumentKind::Html,
        Some(b'<') => DocumentKind::Xml,
        Some(_) => DocumentKind::Other,
    }
}

/// Returns `true` if the document element or document type is HTML's.
fn is_html(text: &str) -> bool {
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let after = match rest.as_bytes() {
            [b'<', b'?', ..] => rest.find("?>").map(|n| n + 2),
            [b'<', b'!', b'-', b'-', ..] => rest.find("-->").map(|n| n + 3),
            // Declarations and comments before the root say nothing about the format.
            _ => None,
        };
        match after {
            Some(after) => rest = &rest[after..],
            None => break,
        }
    }
    // A short prefix is enough for every tag below.
    let start = rest.as_bytes().get(..20.min(rest.len())).unwrap_or_default().to_ascii_lowercase();
    let starts = |tag: &str| {
        start.starts_with(tag.as_bytes()) && !start.get(tag.len()).is_some_and(u8::is_ascii_alphanumeric)
    };
    let doctype = starts("<!doctype") && start[9..].trim_ascii_start().starts_with(b"html");
    doctype || ["<html", "<head", "<body", "<script", "<meta"].into_iter().any(starts)
}

/// Decodes a document to text, and returns the problems that were replaced.
///
/// The character set comes from, in this order (RFC 7303, section 3): the byte order mark, the `charset` of
/// the `Content-Type`, the XML declaration or a page's `meta` element, or is UTF-8. JSON is UTF-8 whatever a `charset`
/// says (RFC 8259, section 11). Many servers add `charset=iso-8859-1` to every document, so UTF-8 that says nothing else of
/// itself stays UTF-8.
pub fn decode<'a>(bytes: &'a [u8], content_type: Option<&str>) -> (Cow<'a, str>, Vec<String>) {
    let mut problems = Vec::new();
    let encoding = match Encoding::for_bom(bytes) {
        Some((encoding, _)) => encoding,
        None => match charset(content_type) {
            Some(label) => of_header(label, bytes, &mut problems),
            None => declared(bytes, &mut problems),
        },
    };
    // Lossy: a feed with a few broken bytes is still useful, and the loss is reported.
    let (text, had_errors) = encoding.decode_with_bom_removal(bytes);
    if had_errors {
        let reason = format!("some bytes are not {}; they became U+FFFD", encoding.name());
        problems.push(reason);
    }
    (text, problems)
}

/// Returns the encoding of a document whose `Content-Type` has a character set.
fn of_header(label: &str, bytes: &[u8], problems: &mut Vec<String>) -> &'static Encoding {
    let Some(encoding) = Encoding::for_label(label.as_bytes()) else {
        // An unknown label is common; the document's own declaration is the better guess.
        problems.push(format!("the character set {label:?} of the Content-Type is unknown"));
        return declared(bytes, problems);
    };
    // Text of another character set that is also valid UTF-8 beyond ASCII does not occur by chance.
    let looks_like_utf_8 =
        encoding.is_single_byte() && !bytes.is_ascii() && std::str::from_utf8(bytes).is_ok();
    if looks_like_utf_8 && declared(bytes, &mut Vec::new()) == UTF_8 {
        problems.push(format!("the Content-Type says {label:?}, and the document is UTF-8"));
        return UTF_8;
    }
    encoding
}

/// Decodes as [`decode`], but takes a document for Windows-1252 if it claims to be UTF-8, is not, and has no
/// character that only UTF-8 could have written.
pub(crate) fn decode_or_western<'a>(
    bytes: &'a [u8],
    content_type: Option<&str>,
) -> (Cow<'a, str>, Vec<String>) {
    let (text, mut problems) = decode(bytes, content_type);
    let is_lossy = problems.last().is_some_and(|problem| problem.starts_with("some bytes are not UTF-8"));
    // A cut character among sound ones would turn all of them into others.
    if !is_lossy || bytes.utf8_chunks().any(|chunk| !chunk.valid().is_ascii()) {
        return (text, problems);
    }
    problems.pop();
    let offset = bytes.iter().position(|byte| !byte.is_ascii()).unwrap_or_default();
    let (line, column) = super::position::line_and_column(bytes, offset);
    problems
        .push(format!("line {line}, column {column}: bytes that are not UTF-8 were read as Windows-1252"));
    (WINDOWS_1252.decode_without_bom_handling(bytes).0, problems)
}

/// Returns the `charset` of a `Content-Type`, unless it is of JSON.
fn charset(content_type: Option<&str>) -> Option<&str> {
    let content_type = content_type?;
    let essence = media_type::essence(content_type).to_ascii_lowercase();
    if essence == "application/json" || essence.ends_with("+json") {
        return None;
    }
    content_type.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim().trim_matches(['"', '\'']);
        (name.trim().eq_ignore_ascii_case("charset") && !value.is_empty()).then_some(value)
    })
}

/// Length of the beginning of a page in which its character set is declared (HTML standard, section 13.2.3.2).
const PRESCAN: usize = 1024;

/// Returns the character set that a page declares in a `meta` element; UTF-8 for other documents.
fn declared_by_page(bytes: &[u8], problems: &mut Vec<String>) -> &'static Encoding {
    // Every byte is a character, and those of ASCII are themselves.
    let start = WINDOWS_1252.decode_without_bom_handling(&bytes[..bytes.len().min(PRESCAN)]).0;
    if !is_html(&start) {
        return UTF_8;
    }
    html::meta_charset(&start).map_or(UTF_8, |label| labelled(&label, "the page's meta element", problems))
}

/// Returns the encoding of a label that a document gives itself in `place`.
fn labelled(label: &str, place: &str, problems: &mut Vec<String>) -> &'static Encoding {
    match Encoding::for_label(label.as_bytes()) {
        // The place was readable as ASCII, so the document cannot be in these.
        Some(encoding) if encoding == UTF_16LE || encoding == UTF_16BE => UTF_8,
        Some(encoding) => encoding,
        None => {
            let label: String = label.chars().take(40).collect();
            problems.push(format!("the character set {label:?} of {place} is unknown"));
            UTF_8
        }
    }
}

/// Determines the character set by the beginning of the document.
fn declared(bytes: &[u8], problems: &mut Vec<String>) -> &'static Encoding {
    match bytes {
        // UTF-16 without a byte order mark shows in the position of the zero byte.
        [0, b'<' | b'{' | b'[', ..] => return UTF_16BE,
        [b'<' | b'{' | b'[', 0, ..] => return UTF_16LE,
        _ => {}
    }
    let start = bytes.trim_ascii_start();
    let Some(declaration) = start.strip_prefix(b"<?xml") else { return declared_by_page(start, problems) };
    let end = memchr::memchr(b'>', declaration).unwrap_or(declaration.len());
    // A declaration is short; without a bound, a document without a bracket would be copied.
    let declaration = String::from_utf8_lossy(&declaration[..end.min(400)]);
    let Some(label) = declaration.split_once("encoding").and_then(|(_, rest)| {
        let rest = rest.trim_start().strip_prefix('=')?.trim_start();
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        rest[1..].split(quote).next()
    }) else {
        return UTF_8;
    };
    labelled(label, "the XML declaration", problems)
}

/// Replaces characters that XML 1.0 does not allow (section 2.2) by U+FFFD.
pub(crate) fn replace_non_xml<'a>(text: Cow<'a, str>, problems: &mut Vec<String>) -> Cow<'a, str> {
    let bytes = text.as_bytes();
    // Branch-free, so that the compiler vectorizes it; almost no document needs the second pass.
    let is_control = |b: u8| (b < 0x20) & (b != b'\t') & (b != b'\n') & (b != b'\r');
    let has_controls = bytes.chunks(4096).any(|c| c.iter().fold(false, |found, b| found | is_control(*b)));
    let has_noncharacters =
        [b"\xEF\xBF\xBE", b"\xEF\xBF\xBF"].iter().any(|n| memchr::memmem::find(bytes, *n).is_some());
    if !has_controls && !has_noncharacters {
        return text;
    }
    let Some(first) = text.find(|c| !is_xml_char(c)) else { return text };
    let (line, column) = super::position::line_and_column(bytes, first);
    problems.push(format!("line {line}, column {column}: characters that XML does not allow became U+FFFD"));
    Cow::Owned(text.chars().map(|c| if is_xml_char(c) { c } else { char::REPLACEMENT_CHARACTER }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        assert_eq!(kind(" \n"), DocumentKind::Empty);
        assert_eq!(kind("\u{FEFF}<?xml version='1.0'?><!-- <html> --><rss/>"), DocumentKind::Xml);
        assert_eq!(kind("<!DOCTYPE HTML><p>"), DocumentKind::Html);
        assert_eq!(kind("<!doctype  html><p>"), DocumentKind::Html);
        assert_eq!(kind("<?xml version='1.0'?>\n<html xmlns='x'>"), DocumentKind::Html);
        assert_eq!(kind("<htmlish/>"), DocumentKind::Xml);
        assert_eq!(kind("<!DOCTYPE rss><rss/>"), DocumentKind::Xml);
        assert_eq!(kind(" [1]"), DocumentKind::Json);
        assert_eq!(kind("Not found"), DocumentKind::Other);
        assert_eq!(kind("<"), DocumentKind::Xml);
        assert_eq!(kind("<é"), DocumentKind::Xml);
    }

    /// RFC 7303, section 3: the byte order mark, then the header, then the declaration.
    #[test]
    fn character_sets_in_their_order() {
        let declared = b"<?xml version=\"1.0\" encoding='windows-1251'?><a>\xcf</a>";
        assert!(decode(declared, None).0.ends_with("<a>П</a>"));
        assert!(decode(declared, Some("text/xml; charset=\"ISO-8859-1\"")).0.ends_with("<a>Ï</a>"));
        let marked = b"\xEF\xBB\xBF<?xml version='1.0' encoding='windows-1251'?><a>\xd0\x9f</a>";
        let (text, problems) = decode(marked, Some("application/xml; charset=koi8-r"));
        assert!(text.starts_with("<?xml") && text.ends_with("<a>П</a>"), "{text}");
        assert!(problems.is_empty());
    }

    /// Servers add a character set of their own to documents that they do not know.
    #[test]
    fn a_false_character_set_of_the_header_does_not_count() {
        let plain = "<?xml version='1.0'?><a>é</a>";
        let (text, problems) = decode(plain.as_bytes(), Some("application/rss+xml; charset=us-ascii"));
        assert_eq!((text.as_ref(), problems.len()), (plain, 1));
        // RFC 8259, section 11.
        let (text, problems) =
            decode("[\"é\"]".as_bytes(), Some("application/feed+json; charset=iso-8859-1"));
        assert_eq!((text.as_ref(), problems.len()), ("[\"é\"]", 0));
        // One that its document confirms, or that has other bytes, does.
        for bytes in [&b"<?xml version='1.0' encoding='ISO-8859-1'?><a>\xc3\xa9</a>"[..], b"<a>\xe9</a>"] {
            let (text, problems) = decode(bytes, Some("text/xml; charset=ISO-8859-1"));
            assert!(text.ends_with("é</a>") == (bytes.len() < 20) && problems.is_empty(), "{text}");
        }
    }

    #[test]
    fn utf_16_with_and_without_a_mark() {
        let text = "<?xml version='1.0' encoding='utf-16'?><a>Ж😀</a>";
        let big: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
        let little: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(decode(&big, None).0, text);
        assert_eq!(decode(&little, None).0, text);
        assert_eq!(decode(&[&[0xFF, 0xFE], &little[..]].concat(), Some("text/xml")).0, text);
        assert_eq!(decode(text.as_bytes(), None).0, text, "a declaration that cannot be true");
    }

    #[test]
    fn what_cannot_be_decoded_is_replaced_and_told() {
        let (text, problems) = decode(b"<a>\xff</a>", None);
        assert_eq!((text.as_ref(), problems.len()), ("<a>\u{FFFD}</a>", 1));
        let (text, problems) = decode(b"<a/>", Some("text/xml; charset=no-such"));
        assert_eq!((text.as_ref(), problems.len()), ("<a/>", 1));
        let mut problems = Vec::new();
        let text = replace_non_xml(Cow::Borrowed("a\n\u{1}b\u{FFFF}"), &mut problems);
        assert_eq!((text.as_ref(), problems.len()), ("a\n\u{FFFD}b\u{FFFD}", 1));
        assert!(problems[0].contains("line 2, column 1"));
    }
}
