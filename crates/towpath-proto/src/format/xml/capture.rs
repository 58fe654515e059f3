//! Capture of elements as standalone text.

use std::fmt::Write as _;

use super::namespaces::Ns;
use super::reader::{XmlReader, same};
use super::token::{RawAttribute, Tag, XmlToken};
use super::write::{push_attribute, push_text};
use crate::format::error::FormatError;
use crate::format::html::{is_address_attribute, is_relative};
use crate::format::iri;

/// Element being captured. Unchanged parts are copied from the source in long slices.
struct Capture<'i> {
    source: &'i str,
    /// Output for the source up to [`Self::from`].
    out: String,
    /// Start of the next slice to copy, which ends at [`Self::at`], the end of the last token.
    from: usize,
    at: usize,
    /// Names of the open elements.
    names: Vec<&'i str>,
    /// Prefixes (empty for the default namespace) declared within, each with the depth of its element.
    declared: Vec<(usize, &'i str)>,
    /// Prefixes (empty for the default namespace) used within and declared outside.
    outer: Vec<&'i str>,
}

impl<'i> XmlReader<'i> {
    /// Captures the element that was just started as text, with the namespace declarations it needs anywhere
    /// else. References are resolved, comments dropped, and Atom's URLs made absolute.
    pub(crate) fn capture(&mut self, root: Tag<'i>) -> Result<String, FormatError> {
        let outside = self.depth() - 1;
        let mut capture = Capture {
            source: self.text,
            out: String::new(),
            from: root.offset,
            at: root.offset,
            names: Vec::new(),
            declared: Vec::new(),
            outer: Vec::new(),
        };
        capture.start(self, root)?;
        while self.depth() > outside {
            // Plain text is copied in bulk later: most of a captured element needs no events.
            capture.at += self.plain_text().len();
            match self.next()? {
                XmlToken::Start(tag) => capture.start(self, tag)?,
                XmlToken::Text(text) => capture.text(&text, self.offset()),
                XmlToken::End => capture.end(self.offset()),
                XmlToken::Eof => break,
            }
        }
        capture.finish(self, root)
    }
}

impl<'i> Capture<'i> {
    /// Copies the unchanged source up to the end of the last token.
    fn flush(&mut self) {
        self.out.push_str(&self.source[self.from..self.at]);
        self.from = self.at;
    }

    /// Records that the output covers the token that ends here.
    fn replaced(&mut self, end: usize) {
        (self.from, self.at) = (end, end);
    }

    fn start(&mut self, xml: &mut XmlReader<'i>, tag: Tag<'i>) -> Result<(), FormatError> {
        let level = if self.names.is_empty() { TagLevel::Root } else { TagLevel::Inner };
        self.names.push(tag.name);
        let depth = self.names.len();
        let attributes = xml.take_attributes();
        let declared = attributes.iter().filter_map(|(name, _)| declares(name));
        self.declared.extend(declared.map(|prefix| (depth, prefix)));
        self.used(tag.prefix());
        let end = xml.offset();
        // XML normalizes carriage returns, so a tag with one cannot be copied.
        let mut stays = !xml.has_carriage_returns || !self.source[tag.offset..end].contains('\r');
        for &(name, raw) in &attributes {
            if let Some((prefix, _)) = name.split_once(':') {
                self.used(prefix);
            }
            let changes = name == "xml:base" || is_resolved(xml, tag, level, name, raw);
            // A `<` is malformed here, and is escaped.
            stays &= !changes && memchr::memchr2(b'&', b'<', raw.as_bytes()).is_none();
        }
        if self.at != tag.offset {
            // A comment was between them.
            self.flush();
            self.from = tag.offset;
        }
        if stays {
            self.at = end;
        } else {
            self.at = tag.offset;
            self.flush();
            self.write_tag(xml, tag, &attributes, level)?;
            self.replaced(end);
        }
        xml.give_back(attributes);
        Ok(())
    }

    /// Writes a start tag with changes.
    fn write_tag(
        &mut self,
        xml: &mut XmlReader<'i>,
        tag: Tag<'i>,
        attributes: &[RawAttribute<'i>],
        level: TagLevel,
    ) -> Result<(), FormatError> {
        self.out.push('<');
        self.out.push_str(tag.name);
        for &(name, raw) in attributes.iter().filter(|(name, _)| *name != "xml:base") {
            self.out.push(' ');
            self.out.push_str(name);
            self.out.push_str("=\"");
            let value = xml.attribute_value(raw)?;
            if is_resolved(xml, tag, level, name, raw) {
                push_attribute(&mut self.out, &iri::encoded(&xml.resolve(&value)?));
            } else {
                push_attribute(&mut self.out, &value);
            }
            self.out.push('"');
        }
        self.out.push_str(if xml.is_empty_element() { "/>" } else { ">" });
        Ok(())
    }

    /// Writes text with changes: with references, a CDATA section, or a `>` that may be part of `]]>`.
    fn text(&mut self, text: &str, end: usize) {
        self.flush();
        push_text(&mut self.out, text);
        self.replaced(end);
    }

    /// Records the use of a prefix.
    fn used(&mut self, prefix: &'i str) {
        let inner = matches!(prefix, "xml" | "xmlns") || self.declared.iter().any(|(_, p)| same(p, prefix));
        // Only prefixes declared outside must be declared on the captured root.
        if !inner && !self.outer.iter().any(|p| same(p, prefix)) {
            self.outer.push(prefix);
        }
    }

    /// Handles an end tag that ends here, or the end of an empty element, which is part of its tag.
    fn end(&mut self, end: usize) {
        let depth = self.names.len();
        while self.declared.last().is_some_and(|(declared_at, _)| *declared_at == depth) {
            // Declarations end with their element; a later use of the prefix refers to the outer one.
            self.declared.pop();
        }
        let Some(name) = self.names.pop() else { return };
        // White space in an end tag is dropped, so that equal elements have equal captures.
        let is_tight = end - self.at == name.len() + "</>".len();
        if is_tight || end == self.at {
            self.at = end;
            return;
        }
        self.flush();
        for part in ["</", name, ">"] {
            self.out.push_str(part);
        }
        self.replaced(end);
    }

    /// Declares on the root the prefixes that were declared outside.
    fn finish(mut self, xml: &mut XmlReader<'i>, root: Tag<'i>) -> Result<String, FormatError> {
        self.flush();
        // Sorted, so that the capture does not depend on the order of use.
        self.outer.sort_unstable();
        let mut declarations = String::new();
        for prefix in &self.outer {
            // Declarations are compared and written as in the source, except for the quotes.
            let bound = match *prefix {
                "" => xml.bound_to(None),
                prefix => xml.bound_to(Some(prefix)),
            };
            let bound = bound.replace('"', "&quot;");
            // Every captured element repeats the namespace: a long name in a small document could fill the
            // memory.
            xml.spend(bound.len(), "the name of a namespace is too long to be repeated so often")?;
            let _ = match *prefix {
                "" => write!(declarations, " xmlns=\"{bound}\""),
                prefix => write!(declarations, " xmlns:{prefix}=\"{bound}\""),
            };
        }
        if !declarations.is_empty() {
            self.out.insert_str(1 + root.name.len(), &declarations);
        }
        Ok(self.out)
    }
}

/// Returns the prefix that an attribute declares; empty for the default namespace.
fn declares(name: &str) -> Option<&str> {
    match name.strip_prefix("xmlns")? {
        "" => Some(""),
        rest => rest.strip_prefix(':'),
    }
}

/// Level of a tag in a captured element.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TagLevel {
    Root,
    Inner,
}

/// Returns `true` if an attribute holds an address that is to be resolved: any of a captured Atom element, and
/// relative ones of XHTML and of modules for media, whose addresses are also encoded. Everything else is foreign data.
fn is_resolved(xml: &XmlReader<'_>, tag: Tag<'_>, level: TagLevel, name: &str, raw: &str) -> bool {
    /// Modules whose elements lead to images, sound and films by `url` and `href`.
    const MEDIA: [&str; 2] = ["http://search.yahoo.com/mrss/", "http://www.itunes.com/dtds/podcast-1.0.dtd"];
    if level == TagLevel::Root && tag.ns == Ns::Atom {
        return matches!(name, "href" | "src");
    }
    // A tag that is written anew has other quotes and spaces, so a good absolute address must leave it alone.
    let is_relative = is_relative(raw) && xml.base().is_some();
    match tag.ns {
        Ns::Xhtml => is_relative && is_address_attribute(name),
        Ns::Other => {
            matches!(name, "url" | "href")
                && (is_relative || iri::encoded(raw) != raw)
                && MEDIA.contains(&xml.bound_to(Some(tag.prefix())).as_str())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn captured(document: &str) -> Result<String, FormatError> {
        let mut xml = XmlReader::new(document, Some("https://a.example/b/"));
        loop {
            if let XmlToken::Start(tag) = xml.next()?
                && xml.depth() == 2
            {
                return xml.capture(tag);
            }
        }
    }

    #[test]
    fn what_can_stay_stays_and_the_rest_is_replaced() {
        for (inner, expected) in [
            (
                "<a><b c='d\"' e = \"f\" ><g/><h ></h ></b></a>",
                "<a><b c='d\"' e = \"f\" ><g/><h ></h></b></a>",
            ),
            ("<a>x<!-- no -->y<b/><!-- no --><c/><?no?></a>", "<a>xy<b/><c/></a>"),
            ("<a><![CDATA[1 < 2 & ]]>3</a>", "<a>1 &lt; 2 &amp; 3</a>"),
            ("<a>&eacute;&#x41;&amp;&lt;</a>", "<a>éA&amp;&lt;</a>"),
            ("<a b=\"&eacute;&quot;\" c=\"1<2\"/>", "<a b=\"é&quot;\" c=\"1&lt;2\"/>"),
            ("<a>1 > 2</a>", "<a>1 &gt; 2</a>"),
            ("<a xml:base='/c/'><b xml:base='d/' e='f'>g</b></a>", "<a><b e=\"f\">g</b></a>"),
            ("<a>1\r\n<b\r\nc='d'/>\r</a>", "<a>1\n<b c=\"d\"/>\n</a>"),
            ("<!-- no --><a/>", "<a/>"),
            ("<a><!-- no --></a>", "<a></a>"),
        ] {
            let document = format!("<root xmlns:p='P' xmlns:q='Q'>{inner}</root>");
            // Without an outer default namespace, the capture declares that.
            let expected = expected.replacen("<a", "<a xmlns=\"\"", 1);
            assert_eq!(captured(&document).unwrap(), expected, "{inner}");
        }
        for (inner, expected) in [
            ("<p:a><q:b/></p:a>", "<p:a xmlns:p=\"P\" xmlns:q=\"Q\"><q:b/></p:a>"),
            ("<p:a xmlns:p='R'>x</p:a>", "<p:a xmlns:p='R'>x</p:a>"),
        ] {
            let document = format!("<root xmlns:p='P' xmlns:q='Q'>{inner}</root>");
            assert_eq!(captured(&document).unwrap(), expected);
        }
        let link = "<f xmlns='http://www.w3.org/2005/Atom'><link  rel='x' href='c'/></f>";
        let expected =
            "<link xmlns=\"http://www.w3.org/2005/Atom\" rel=\"x\" href=\"https://a.example/b/c\"/>";
        assert_eq!(captured(link).unwrap(), expected);
    }

    /// Generates a tree of elements, with every kind of content between them.
    fn any_element() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "x",
            " ",
            "\n",
            "é",
            "&amp;",
            "&#10;",
            "<!-- c -->",
            "<![CDATA[<&]]>",
            "<?p i?>",
            "<e/>",
            "<e />",
            "&gt;",
        ]);
        let leaf = prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat());
        let attributes = prop::sample::select(vec![
            "",
            " b='1'",
            " b = \"1&lt;\"",
            " xml:base='z/'",
            " xmlns='N'",
            " xmlns:p='R' p:b='2'",
            "\n",
        ]);
        let node = (leaf, attributes).prop_map(|(inner, attributes)| format!("<a{attributes}>{inner}</a>"));
        node.prop_recursive(4, 20, 3, |inner| {
            let name = prop::sample::select(vec!["a", "p:b", "q:c"]);
            (name, prop::collection::vec(inner, 0..3), "[a-z]{0,3}")
                .prop_map(|(name, inner, text)| format!("<{name}>{text}{}</{name} >", inner.join(&text)))
        })
    }

    proptest! {
        /// A capture has the same meaning anywhere, and captures to itself.
        #[test]
        fn capturing_again_changes_nothing(element in any_element()) {
            let first = captured(&format!("<r xmlns='D' xmlns:p='P' xmlns:q='Q'>{element}</r>")).unwrap();
            let again = captured(&format!("<o:r xmlns:o='O'>{first}</o:r>")).unwrap();
            prop_assert_eq!(&again, &first);
            prop_assert!(!first.contains("<!--") && !first.contains("CDATA") && !first.contains("xml:base"));
        }
    }
}
