//! XML writer: escaping, and a thin layer for well-formed elements.

use std::borrow::Cow;

/// Escapes character data: `&`, `<`, `>` and carriage returns; characters that XML forbids become U+FFFD.
pub fn escape_text(text: &str) -> Cow<'_, str> {
    escaped(text, push_text)
}

/// Escapes an attribute's value for double quotes: as [`escape_text`], and also quotes, tabs and line ends.
pub fn escape_attribute(text: &str) -> Cow<'_, str> {
    escaped(text, push_attribute)
}

fn escaped(text: &str, push: fn(&mut String, &str)) -> Cow<'_, str> {
    let mut out = String::with_capacity(text.len());
    push(&mut out, text);
    if out == text { Cow::Borrowed(text) } else { Cow::Owned(out) }
}

/// Appends character data, escaped as by [`escape_text`].
pub(crate) fn push_text(out: &mut String, text: &str) {
    push_escaped(out, text, EscapePlace::CharacterData);
}

/// Appends an attribute's value, escaped as by [`escape_attribute`].
pub(crate) fn push_attribute(out: &mut String, text: &str) {
    push_escaped(out, text, EscapePlace::AttributeValue);
}

/// Returns `true` for bytes that may need replacement: controls, special characters, and the first byte of
/// U+FFFE and U+FFFF.
const fn is_special(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'&') | (byte == b'<') | (byte == b'>') | (byte == b'"') | (byte == 0xEF)
}

/// Place of an escaped text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EscapePlace {
    CharacterData,
    AttributeValue,
}

fn push_escaped(out: &mut String, text: &str, place: EscapePlace) {
    /// Bytes that are tested together: compilers vectorize the loop.
    const STRIDE: usize = 32;
    let bytes = text.as_bytes();
    let mut written = 0;
    for (number, chunk) in bytes.chunks(STRIDE).enumerate() {
        // Most chunks need no escaping, and this test is vectorized.
        if !chunk.iter().fold(false, |found, byte| found | is_special(*byte)) {
            continue;
        }
        for (index, byte) in chunk.iter().enumerate() {
            let at = number * STRIDE + index;
            let Some((replacement, length)) = replacement(*byte, &bytes[at..], place) else {
                continue;
            };
            out.push_str(&text[written..at]);
            out.push_str(replacement);
            written = at + length;
        }
    }
    out.push_str(&text[written..]);
}

/// Returns the replacement for the character that begins with `byte`, and its length in bytes.
fn replacement(byte: u8, rest: &[u8], place: EscapePlace) -> Option<(&'static str, usize)> {
    let in_attribute = place == EscapePlace::AttributeValue;
    match byte {
        b'&' => Some(("&amp;", 1)),
        b'<' => Some(("&lt;", 1)),
        // Needed only in `]]>`, but escaping it everywhere is simpler and always valid.
        b'>' => Some(("&gt;", 1)),
        // A literal carriage return would be normalized to a line feed by any reader.
        b'\r' => Some(("&#13;", 1)),
        b'"' if in_attribute => Some(("&quot;", 1)),
        // Attribute normalization turns literal tabs and line ends into spaces (XML 1.0, section 3.3.3).
        b'\t' if in_attribute => Some(("&#9;", 1)),
        b'\n' if in_attribute => Some(("&#10;", 1)),
        b'\t' | b'\n' => None,
        0xEF => matches!(rest, [_, 0xBF, 0xBE | 0xBF, ..]).then_some(("\u{FFFD}", 3)),
        control if control < 0x20 => Some(("\u{FFFD}", 1)),
        _ => None,
    }
}

/// Writer of elements. Escapes its input, and closes elements by name.
#[derive(Debug, Default)]
pub struct XmlWriter {
    out: String,
    open: Vec<&'static str>,
    in_tag: bool,
}

impl XmlWriter {
    /// Creates a document with an XML declaration.
    pub fn document() -> Self {
        Self { out: "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n".into(), ..Self::default() }
    }

    /// Starts an element; attributes may follow.
    pub fn start(&mut self, name: &'static str) -> &mut Self {
        self.end_tag();
        self.out.push('<');
        self.out.push_str(name);
        self.open.push(name);
        self.in_tag = true;
        self
    }

    /// Adds an attribute to the current tag.
    pub fn attribute(&mut self, name: &str, value: &str) -> &mut Self {
        debug_assert!(self.in_tag, "attribute {name} after the content began");
        self.out.push(' ');
        self.out.push_str(name);
        self.out.push_str("=\"");
        push_attribute(&mut self.out, value);
        self.out.push('"');
        self
    }

    /// Adds an attribute if there is a value.
    pub fn optional_attribute(&mut self, name: &str, value: Option<&str>) -> &mut Self {
        if let Some(value) = value {
            self.attribute(name, value);
        }
        self
    }

    /// Appends character data.
    pub fn text(&mut self, text: &str) -> &mut Self {
        if !text.is_empty() {
            self.end_tag();
            push_text(&mut self.out, text);
        }
        self
    }

    /// Appends well-formed XML that declares its own namespaces.
    pub fn raw(&mut self, xml: &str) -> &mut Self {
        self.end_tag();
        self.out.push_str(xml);
        self
    }

    /// Ends the current element.
    pub fn end(&mut self) -> &mut Self {
        let Some(name) = self.open.pop() else { return self };
        if std::mem::take(&mut self.in_tag) {
            self.out.push_str("/>");
        } else {
            self.out.push_str("</");
            self.out.push_str(name);
            self.out.push('>');
        }
        self
    }

    /// Appends a line end between elements, for readability.
    pub fn line(&mut self) -> &mut Self {
        self.end_tag();
        self.out.push('\n');
        self
    }

    /// Appends an element with text. `xml:space` preserves white space around the text.
    pub fn element(&mut self, name: &'static str, text: &str) -> &mut Self {
        self.start(name).text_attributes(text).text(text).end()
    }

    /// Adds the attribute that makes readers preserve `text`.
    pub(crate) fn text_attributes(&mut self, text: &str) -> &mut Self {
        // Feed readers commonly trim texts; with this attribute ours does not.
        if text.trim().len() != text.len() {
            self.attribute("xml:space", "preserve");
        }
        self
    }

    /// Ends all open elements and returns the document.
    pub fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.end();
        }
        self.out
    }

    fn end_tag(&mut self) {
        if std::mem::take(&mut self.in_tag) {
            self.out.push('>');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::characters::is_xml_text;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_xml_gives_a_meaning_is_escaped() {
        assert_eq!(escape_text("a<b>&\r\n\"é"), "a&lt;b&gt;&amp;&#13;\n\"é");
        assert_eq!(escape_attribute("a<b>&\r\n\t\"é"), "a&lt;b&gt;&amp;&#13;&#10;&#9;&quot;é");
        assert_eq!(escape_text("\u{1}\u{FFFE}\u{FFFD}\u{FF01}"), "\u{FFFD}\u{FFFD}\u{FFFD}\u{FF01}");
        assert!(matches!(escape_text("plain"), Cow::Borrowed("plain")));
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_xml(text in any::<String>()) {
            for escaped in [escape_text(&text), escape_attribute(&text)] {
                prop_assert!(is_xml_text(&escaped));
                let back = quick_xml::escape::unescape(&escaped).unwrap();
                if is_xml_text(&text) {
                    prop_assert_eq!(back, text.as_str());
                }
            }
        }
    }
}
