//! Contents of an HTML text: visible text, hidden text, links, scripts and other active parts.

use std::ops::ControlFlow;

use html5gum::emitters::callback::CallbackEvent;

use super::tokens::{SkippedElements, TextSink, is_block, read};

/// Link that a reader can follow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HtmlLink {
    /// Target as written, with references decoded.
    pub href: String,
    /// Visible text of the link, with collapsed white space.
    pub text: String,
}

/// Contents of an HTML text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HtmlContent {
    /// Visible text; block elements become line breaks.
    pub text: String,
    /// Text of elements that their own attributes hide (`hidden`, `display:none`, `font-size:0`, …) and of
    /// `template` elements, a line each.
    pub hidden: String,
    /// Comments, a line each.
    pub comments: String,
    /// `a` elements with a target, in order.
    pub links: Vec<HtmlLink>,
    /// URLs in other attributes (`src`, `action`, `data`, `href` of other elements, …), in order.
    pub urls: Vec<String>,
    /// Number of `script` elements with code or a source. An unclosed script without a source is text that
    /// mentions the tag.
    pub scripts: usize,
    /// Number of attributes that run code on an event (`onclick`, `onerror`, …).
    pub handlers: usize,
    /// Number of elements that embed another document (`iframe`, `object`, `embed`).
    pub frames: usize,
    /// Number of password fields.
    pub password_fields: usize,
    /// `true` if a `meta` element redirects to another page.
    pub refresh: bool,
}

/// Parses `html` in linear time.
pub fn content(html: &str) -> HtmlContent {
    let mut reader = ContentReader::default();
    read(html, |event| {
        reader.handle(&event);
        ControlFlow::Continue(())
    });
    reader.finish()
}

/// Start tag being read.
#[derive(Default)]
struct OpenTag {
    name: Vec<u8>,
    attribute: Vec<u8>,
    href: Option<String>,
    has_source: bool,
    hidden: bool,
}

/// Open element with hidden contents. It ends when as many elements of its name are closed as were opened.
struct HiddenElement {
    name: Vec<u8>,
    depth: usize,
}

struct ContentReader {
    found: HtmlContent,
    text: TextSink,
    dropped: SkippedElements,
    tag: OpenTag,
    hidden: Option<HiddenElement>,
    link: Option<(String, TextSink)>,
    /// Inside a `script` element with code.
    script_code: bool,
}

impl Default for ContentReader {
    fn default() -> Self {
        Self {
            found: HtmlContent::default(),
            text: TextSink::new(usize::MAX),
            dropped: SkippedElements::default(),
            tag: OpenTag::default(),
            hidden: None,
            link: None,
            script_code: false,
        }
    }
}

impl ContentReader {
    fn handle(&mut self, event: &CallbackEvent<'_>) {
        match event {
            CallbackEvent::OpenStartTag { name } => {
                self.tag = OpenTag { name: name.to_vec(), ..OpenTag::default() };
            }
            CallbackEvent::AttributeName { name } => {
                self.tag.attribute.clear();
                self.tag.attribute.extend_from_slice(name);
                // The attribute counts without a value, so its name is enough.
                self.tag.hidden |= name == b"hidden";
            }
            CallbackEvent::AttributeValue { value } => self.attribute(&String::from_utf8_lossy(value)),
            CallbackEvent::CloseStartTag { .. } => self.open(),
            CallbackEvent::EndTag { name } => self.close(name),
            CallbackEvent::String { value } => self.string(&String::from_utf8_lossy(value)),
            CallbackEvent::Comment { value } => {
                append_line(&mut self.found.comments, &String::from_utf8_lossy(value));
            }
            CallbackEvent::Doctype { .. } | CallbackEvent::Error(_) => {}
        }
    }

    fn attribute(&mut self, value: &str) {
        let (tag, name) = (self.tag.name.as_slice(), self.tag.attribute.as_slice());
        match name {
            b"href" if tag == b"a" => self.tag.href = Some(value.to_owned()),
            b"href" | b"src" | b"action" | b"formaction" | b"data" | b"xlink:href" | b"poster"
            | b"background" => {
                // A script with a source is active whatever text it contains.
                self.tag.has_source |= name == b"src";
                self.found.urls.push(value.to_owned());
            }
            b"style" => self.tag.hidden |= hides(value),
            b"type" if tag == b"input" && value.eq_ignore_ascii_case("password") => {
                self.found.password_fields += 1;
            }
            b"http-equiv" if tag == b"meta" && value.eq_ignore_ascii_case("refresh") => {
                self.found.refresh = true;
            }
            // Every attribute of this form is treated as a handler: the list of events grows with each
            // browser.
            _ if name.len() > 4 && name.starts_with(b"on") && name.is_ascii() => self.found.handlers += 1,
            _ => {}
        }
    }

    /// Handles a complete start tag.
    fn open(&mut self) {
        let mut tag = std::mem::take(&mut self.tag);
        self.dropped.open(&tag.name);
        self.separate(&tag.name);
        match tag.name.as_slice() {
            b"a" => {
                // Links do not nest in HTML: a start tag closes the open link.
                self.end_link();
                self.link = tag.href.take().map(|href| (href, TextSink::new(usize::MAX)));
            }
            b"script" => self.found.scripts += usize::from(tag.has_source),
            b"iframe" | b"object" | b"embed" => self.found.frames += 1,
            _ => {}
        }
        self.enter_hidden(tag);
    }

    fn enter_hidden(&mut self, tag: OpenTag) {
        if let Some(element) = self.hidden.as_mut().filter(|element| element.name == tag.name) {
            // HTML allows these elements to stay unclosed; counting depth would hide the rest of the text.
            if !closes_its_sibling(&tag.name) {
                element.depth += 1;
                return;
            }
            self.hidden = None;
        }
        // A void element has no contents and no end tag, so it would never be left.
        if self.hidden.is_none() && tag.hidden && !is_void(&tag.name) {
            self.found.hidden.push('\n');
            self.hidden = Some(HiddenElement { name: tag.name, depth: 1 });
        }
    }

    fn close(&mut self, name: &[u8]) {
        self.dropped.close(name);
        self.separate(name);
        match name {
            b"a" => self.end_link(),
            // Counted at the end tag: an unclosed script is text that mentions the tag.
            b"script" if std::mem::take(&mut self.script_code) => self.found.scripts += 1,
            _ => {}
        }
        if let Some(element) = self.hidden.as_mut().filter(|element| element.name == name) {
            element.depth -= 1;
            if element.depth == 0 {
                self.hidden = None;
            }
        }
    }

    fn string(&mut self, text: &str) {
        if self.dropped.raw {
            self.script_code = !text.trim().is_empty();
        } else if self.hidden.is_some() || self.dropped.templates > 0 {
            // Templates are inert: their text is not rendered.
            self.found.hidden.push_str(text);
        } else {
            self.text.push(text);
            if let Some((_, shown)) = &mut self.link {
                shown.push(text);
            }
        }
    }

    fn separate(&mut self, name: &[u8]) {
        if is_block(name) {
            self.text.separate('\n');
            if let Some((_, shown)) = &mut self.link {
                shown.separate(' ');
            }
        }
    }

    fn end_link(&mut self) {
        if let Some((href, text)) = self.link.take() {
            self.found.links.push(HtmlLink { href, text: text.finish() });
        }
    }

    fn finish(mut self) -> HtmlContent {
        self.end_link();
        self.found.text = self.text.finish();
        self.found.hidden = collapse(&self.found.hidden);
        self.found.comments = collapse(&self.found.comments);
        self.found
    }
}

fn append_line(lines: &mut String, line: &str) {
    lines.push_str(line);
    lines.push('\n');
}

/// Collapses white space within lines and drops empty lines.
fn collapse(text: &str) -> String {
    let mut sink = TextSink::new(usize::MAX);
    for line in text.lines() {
        sink.push(line);
        sink.separate('\n');
    }
    sink.finish()
}

/// Returns `true` for elements that the next one of their name closes.
fn closes_its_sibling(name: &[u8]) -> bool {
    matches!(name, b"p" | b"li" | b"dt" | b"dd" | b"td" | b"th" | b"tr" | b"option")
}

/// Returns `true` for elements without contents (HTML standard, section 13.1.2).
pub(crate) fn is_void(name: &[u8]) -> bool {
    matches!(
        name,
        b"area"
            | b"base"
            | b"br"
            | b"col"
            | b"embed"
            | b"hr"
            | b"img"
            | b"input"
            | b"link"
            | b"meta"
            | b"source"
            | b"track"
            | b"wbr"
    )
}

/// Returns `true` if a `style` attribute hides its element.
fn hides(style: &str) -> bool {
    let style: String =
        // CSS ignores case and white space, and hidden text often varies both.
        style.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_ascii_lowercase()).collect();
    style.split(';').any(|declaration| {
        let Some((property, value)) = declaration.split_once(':') else { return false };
        // `!important` changes precedence, not the value.
        let value = value.strip_suffix("!important").unwrap_or(value);
        match property {
            "display" => value == "none",
            "visibility" => matches!(value, "hidden" | "collapse"),
            "font-size" | "opacity" | "max-height" | "max-width" => number(value) == Some(0.0),
            // Text far outside the window; smaller offsets occur in ordinary layouts.
            "left" | "top" | "right" | "text-indent" => number(value).is_some_and(|n| n <= -999.0),
            "mso-hide" => value == "all",
            _ => false,
        }
    })
}

/// Parses the number at the beginning of a CSS value, ignoring the unit.
fn number(value: &str) -> Option<f64> {
    let end = value.find(|c: char| !matches!(c, '0'..='9' | '.' | '-' | '+')).unwrap_or(value.len());
    value[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn links_come_with_the_text_that_is_shown() {
        let found = content(
            r#"<a href="https://a.example/?x=1&amp;y">My <b>bank</b><br>here</a> <a name=x>no</a>
               <a href=//b>one<a href=//c>two"#,
        );
        let links: Vec<(&str, &str)> =
            found.links.iter().map(|l| (l.href.as_str(), l.text.as_str())).collect();
        assert_eq!(links, [("https://a.example/?x=1&y", "My bank here"), ("//b", "one"), ("//c", "two")]);
        assert_eq!(found.text, "My bank\nhere no onetwo");
    }

    #[test]
    fn hidden_elements_are_told_apart() {
        let hidden = |html: &str| content(html).hidden;
        for style in [
            "display:none",
            "DISPLAY : None !important",
            "color:red;visibility:hidden",
            "font-size:0",
            "font-size:0px",
            "opacity:0.0",
            "position:absolute;left:-9999px",
            "text-indent:-1000em",
        ] {
            assert_eq!(hidden(&format!("a<span style='{style}'>b <i>c</i></span>d")), "b c", "{style}");
        }
        for style in ["display:block", "font-size:0.9em", "opacity:.5", "left:-10px", "font-size:10px"] {
            assert_eq!(hidden(&format!("<span style='{style}'>b</span>")), "", "{style}");
        }
        assert_eq!(hidden("<div hidden>a<div>b</div>c</div>d<div hidden>e"), "abc\ne");
        assert_eq!(hidden("<p hidden>a<p>b<img hidden>c"), "a");
        assert_eq!(content("<template>t</template>v").hidden, "t");
    }

    #[test]
    fn scripts_handlers_and_frames_are_counted() {
        let found = content(
            "<script>x()</script><script src=//e/x.js></script><script> </script>\
             <img src=x OnError=y()><iframe src=//f></iframe><object data=//o><input type=Password>\
             <meta http-equiv=Refresh content='0;url=//g'><svg onload=z()>",
        );
        assert_eq!((found.scripts, found.handlers, found.frames, found.password_fields), (2, 2, 2, 1));
        assert!(found.refresh);
        assert_eq!(found.urls, ["//e/x.js", "x", "//f", "//o"]);
    }

    #[test]
    fn text_that_mentions_a_script_tag_has_none() {
        assert_eq!(content("inject a <script> tag into the page").scripts, 0);
        assert_eq!(content("inject &lt;script&gt;alert(1)&lt;/script&gt;").scripts, 0);
    }

    #[test]
    fn comments_are_collected() {
        assert_eq!(content("a<!-- one\n two --><!--> b<!--three").comments, "one\ntwo\nthree");
    }

    proptest! {
        #[test]
        fn any_text_is_read(html in "\\PC{0,300}") {
            content(&html);
        }

        #[test]
        fn any_markup_is_read(pieces in proptest::collection::vec(
            proptest::sample::select(vec![
                "<a href=x>", "</a>", "<p hidden>", "</p>", "<script>", "</script>", "text ", "<!--", "-->",
                "<template>", "</template>", "<div style='display:none'>", "</div>", "<img onerror=x", ">", "&lt",
            ]), 0..40))
        {
            let html = pieces.concat();
            let found = content(&html);
            let length = found.text.len() + found.hidden.len() + found.comments.len();
            prop_assert!(length <= html.len(), "what is read twice? {found:?}");
        }
    }
}
