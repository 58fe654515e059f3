//! What stands in a piece of HTML besides the text that a reader sees.

use html5gum::emitters::callback::CallbackEvent;

use super::{Dropped, Stop, TextSink, is_block, read};

/// A link that a reader can follow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// The target as written, references decoded.
    pub href: String,
    /// The text that is shown for it, white space collapsed.
    pub text: String,
}

/// What stands in a piece of HTML.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// The visible text; block elements stand for a line break.
    pub text: String,
    /// The text of elements that their own attributes hide (`hidden`, `display:none`, `font-size:0`, …) and
    /// of `template` elements, one line each.
    pub hidden: String,
    /// The comments, one line each.
    pub comments: String,
    /// The `a` elements that have a target, in order.
    pub links: Vec<Link>,
    /// The addresses in other attributes (`src`, `action`, `data`, `href` of other elements, …), in order.
    pub urls: Vec<String>,
    /// How many `script` elements have code or a source. One that is never closed and has no source is text
    /// that mentions the tag.
    pub scripts: usize,
    /// How many attributes run code on an event (`onclick`, `onerror`, …).
    pub handlers: usize,
    /// How many elements embed another document (`iframe`, `object`, `embed`).
    pub frames: usize,
    /// How many fields ask for a password.
    pub password_fields: usize,
    /// Whether a `meta` element sends the reader to another page.
    pub refresh: bool,
}

/// Reads what stands in `html`, in linear time.
pub fn survey(html: &str) -> Survey {
    let mut surveyor = Surveyor::default();
    read(html, |event| {
        surveyor.handle(&event);
        Stop::No
    });
    surveyor.finish()
}

/// The start tag that is being read.
#[derive(Default)]
struct Tag {
    name: Vec<u8>,
    attribute: Vec<u8>,
    href: Option<String>,
    has_source: bool,
    hidden: bool,
}

/// An open element whose content is hidden: over when as many of its name are closed as were opened.
struct HiddenElement {
    name: Vec<u8>,
    depth: usize,
}

struct Surveyor {
    found: Survey,
    text: TextSink,
    dropped: Dropped,
    tag: Tag,
    hidden: Option<HiddenElement>,
    link: Option<(String, TextSink)>,
    /// Inside a `script` element that has code.
    script_code: bool,
}

impl Default for Surveyor {
    fn default() -> Self {
        Self {
            found: Survey::default(),
            text: TextSink::new(usize::MAX),
            dropped: Dropped::default(),
            tag: Tag::default(),
            hidden: None,
            link: None,
            script_code: false,
        }
    }
}

impl Surveyor {
    fn handle(&mut self, event: &CallbackEvent<'_>) {
        match event {
            CallbackEvent::OpenStartTag { name } => {
                self.tag = Tag { name: name.to_vec(), ..Tag::default() };
            }
            CallbackEvent::AttributeName { name } => {
                self.tag.attribute.clear();
                self.tag.attribute.extend_from_slice(name);
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
            _ if name.len() > 4 && name.starts_with(b"on") && name.is_ascii() => self.found.handlers += 1,
            _ => {}
        }
    }

    /// The start tag is complete.
    fn open(&mut self) {
        let mut tag = std::mem::take(&mut self.tag);
        self.dropped.open(&tag.name);
        self.separate(&tag.name);
        match tag.name.as_slice() {
            b"a" => {
                self.end_link();
                self.link = tag.href.take().map(|href| (href, TextSink::new(usize::MAX)));
            }
            b"script" => self.found.scripts += usize::from(tag.has_source),
            b"iframe" | b"object" | b"embed" => self.found.frames += 1,
            _ => {}
        }
        self.enter_hidden(tag);
    }

    fn enter_hidden(&mut self, tag: Tag) {
        if let Some(element) = self.hidden.as_mut().filter(|element| element.name == tag.name) {
            if !closes_its_sibling(&tag.name) {
                element.depth += 1;
                return;
            }
            self.hidden = None;
        }
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
            self.found.links.push(Link { href, text: text.finish() });
        }
    }

    fn finish(mut self) -> Survey {
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

/// Collapses white space within lines and drops empty ones.
fn collapse(text: &str) -> String {
    let mut sink = TextSink::new(usize::MAX);
    for line in text.lines() {
        sink.push(line);
        sink.separate('\n');
    }
    sink.finish()
}

/// Elements that end where the next one of their name begins.
fn closes_its_sibling(name: &[u8]) -> bool {
    matches!(name, b"p" | b"li" | b"dt" | b"dd" | b"td" | b"th" | b"tr" | b"option")
}

/// Elements that have no content (HTML standard, section 13.1.2).
fn is_void(name: &[u8]) -> bool {
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

/// Whether a `style` attribute takes its element out of sight.
fn hides(style: &str) -> bool {
    let style: String =
        style.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_ascii_lowercase()).collect();
    style.split(';').any(|declaration| {
        let Some((property, value)) = declaration.split_once(':') else { return false };
        let value = value.strip_suffix("!important").unwrap_or(value);
        match property {
            "display" => value == "none",
            "visibility" => matches!(value, "hidden" | "collapse"),
            "font-size" | "opacity" | "max-height" | "max-width" => number(value) == Some(0.0),
            "left" | "top" | "right" | "text-indent" => number(value).is_some_and(|n| n <= -999.0),
            "mso-hide" => value == "all",
            _ => false,
        }
    })
}

/// The number at the beginning of a CSS value, whatever its unit.
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
        let found = survey(
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
        let hidden = |html: &str| survey(html).hidden;
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
        assert_eq!(survey("<template>t</template>v").hidden, "t");
    }

    #[test]
    fn scripts_handlers_and_frames_are_counted() {
        let found = survey(
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
        assert_eq!(survey("inject a <script> tag into the page").scripts, 0);
        assert_eq!(survey("inject &lt;script&gt;alert(1)&lt;/script&gt;").scripts, 0);
    }

    #[test]
    fn comments_are_collected() {
        assert_eq!(survey("a<!-- one\n two --><!--> b<!--three").comments, "one\ntwo\nthree");
    }

    proptest! {
        #[test]
        fn any_text_is_read(html in "\\PC{0,300}") {
            survey(&html);
        }

        #[test]
        fn any_markup_is_read(pieces in proptest::collection::vec(
            proptest::sample::select(vec![
                "<a href=x>", "</a>", "<p hidden>", "</p>", "<script>", "</script>", "text ", "<!--", "-->",
                "<template>", "</template>", "<div style='display:none'>", "</div>", "<img onerror=x", ">", "&lt",
            ]), 0..40))
        {
            let html = pieces.concat();
            let found = survey(&html);
            let length = found.text.len() + found.hidden.len() + found.comments.len();
            prop_assert!(length <= html.len(), "what is read twice? {found:?}");
        }
    }
}
