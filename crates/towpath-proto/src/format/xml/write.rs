//! Writing XML: escaping, and a thin writer of well-formed elements.

use std::borrow::Cow;

use super::is_xml_char;

/// Character data: `&`, `<`, `>` and carriage returns escaped, what XML does not allow as U+FFFD.
pub fn escape_text(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| matches!(c, '&' | '<' | '>' | '\r') || !is_xml_char(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    push_text(&mut out, text);
    Cow::Owned(out)
}

/// Appends character data, escaped as by [`escape_text`].
pub(crate) fn push_text(out: &mut String, text: &str) {
    push_escaped(out, text, |c| match c {
        '&' => Some("&amp;"),
        '<' => Some("&lt;"),
        '>' => Some("&gt;"),
        '\r' => Some("&#13;"),
        _ => None,
    });
}

/// An attribute's value, for double quotes: as [`escape_text`], and quotes, tabs and line ends escaped.
pub fn escape_attribute(text: &str) -> Cow<'_, str> {
    let special = |c| matches!(c, '&' | '<' | '>' | '"' | '\t' | '\n' | '\r');
    if !text.chars().any(|c| special(c) || !is_xml_char(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    push_escaped(&mut out, text, |c| match c {
        '&' => Some("&amp;"),
        '<' => Some("&lt;"),
        '>' => Some("&gt;"),
        '"' => Some("&quot;"),
        '\t' => Some("&#9;"),
        '\n' => Some("&#10;"),
        '\r' => Some("&#13;"),
        _ => None,
    });
    Cow::Owned(out)
}

fn push_escaped(out: &mut String, text: &str, escape: impl Fn(char) -> Option<&'static str>) {
    let mut written = 0;
    for (at, c) in text.char_indices() {
        let replacement = match escape(c) {
            Some(replacement) => replacement,
            None if is_xml_char(c) => continue,
            None => "\u{FFFD}",
        };
        out.push_str(&text[written..at]);
        out.push_str(replacement);
        written = at + c.len_utf8();
    }
    out.push_str(&text[written..]);
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
        self.out.push_str(&escape_attribute(value));
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
