//! Writing XML: escaping, and a thin writer of well-formed elements.

use std::borrow::Cow;

/// Character data: `&`, `<`, `>` and carriage returns escaped, what XML does not allow as U+FFFD.
pub fn escape_text(text: &str) -> Cow<'_, str> {
    escaped(text, push_text)
}

/// An attribute's value, for double quotes: as [`escape_text`], and quotes, tabs and line ends escaped.
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
    push_escaped(out, text, false);
}

/// Appends an attribute's value, escaped as by [`escape_attribute`].
pub(crate) fn push_attribute(out: &mut String, text: &str) {
    push_escaped(out, text, true);
}

/// Whether a byte may have to be replaced: controls, the special characters, and the first byte of U+FFFE
/// and U+FFFF.
const fn is_special(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'&') | (byte == b'<') | (byte == b'>') | (byte == b'"') | (byte == 0xEF)
}

fn push_escaped(out: &mut String, text: &str, in_attribute: bool) {
    /// How many bytes are looked at together, which compilers do without a branch.
    const STRIDE: usize = 32;
    let bytes = text.as_bytes();
    let mut written = 0;
    for (number, chunk) in bytes.chunks(STRIDE).enumerate() {
        if !chunk.iter().fold(false, |found, byte| found | is_special(*byte)) {
            continue;
        }
        for (index, byte) in chunk.iter().enumerate() {
            let at = number * STRIDE + index;
            let Some((replacement, length)) = replacement(*byte, &bytes[at..], in_attribute) else {
                continue;
            };
            out.push_str(&text[written..at]);
            out.push_str(replacement);
            written = at + length;
        }
    }
    out.push_str(&text[written..]);
}

/// What stands for the character that begins with `byte`, and how many bytes it has.
fn replacement(byte: u8, rest: &[u8], in_attribute: bool) -> Option<(&'static str, usize)> {
    match byte {
        b'&' => Some(("&amp;", 1)),
        b'<' => Some(("&lt;", 1)),
        b'>' => Some(("&gt;", 1)),
        b'\r' => Some(("&#13;", 1)),
        b'"' if in_attribute => Some(("&quot;", 1)),
        b'\t' if in_attribute => Some(("&#9;", 1)),
        b'\n' if in_attribute => Some(("&#10;", 1)),
        b'\t' | b'\n' => None,
        0xEF => matches!(rest, [_, 0xBF, 0xBE | 0xBF, ..]).then_some(("\u{FFFD}", 3)),
        control if control < 0x20 => Some(("\u{FFFD}", 1)),
        _ => None,
    }
}

/// Writes elements one after another: what it is given is escaped, what was started is ended by name.
#[derive(Debug, Default)]
pub struct XmlWriter {
    out: String,
    open: Vec<&'static str>,
    in_tag: bool,
}

impl XmlWriter {
    /// A document: begins with the XML declaration.
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

    /// An attribute of the element just started.
    pub fn attribute(&mut self, name: &str, value: &str) -> &mut Self {
        debug_assert!(self.in_tag, "attribute {name} after the content began");
        self.out.push(' ');
        self.out.push_str(name);
        self.out.push_str("=\"");
        push_attribute(&mut self.out, value);
        self.out.push('"');
        self
    }

    /// As [`Self::attribute`], where there is a value.
    pub fn optional_attribute(&mut self, name: &str, value: Option<&str>) -> &mut Self {
        if let Some(value) = value {
            self.attribute(name, value);
        }
        self
    }

    /// Character data.
    pub fn text(&mut self, text: &str) -> &mut Self {
        if !text.is_empty() {
            self.end_tag();
            push_text(&mut self.out, text);
        }
        self
    }

    /// A well-formed piece of XML that declares its own namespaces.
    pub fn raw(&mut self, xml: &str) -> &mut Self {
        self.end_tag();
        self.out.push_str(xml);
        self
    }

    /// Ends the element started last.
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

    /// A line end between elements, for people who read the document.
    pub fn line(&mut self) -> &mut Self {
        self.end_tag();
        self.out.push('\n');
        self
    }

    /// An element with text in it. White space around the text is kept by `xml:space`.
    pub fn element(&mut self, name: &'static str, text: &str) -> &mut Self {
        self.start(name).text_attributes(text).text(text).end()
    }

    /// The attribute that the element just started needs so that readers keep `text` as it is.
    pub(crate) fn text_attributes(&mut self, text: &str) -> &mut Self {
        if text.trim().len() != text.len() {
            self.attribute("xml:space", "preserve");
        }
        self
    }

    /// Ends what is still open and hands over the document.
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
    use super::*;
    use crate::format::xml::is_xml_text;
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
