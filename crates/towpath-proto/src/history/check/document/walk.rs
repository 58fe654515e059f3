//! Walk through a document along its grammar, in one pass.

use super::findings::DocumentFindings;
use super::grammar::{Body, Element};
use super::values::{is_language, is_reference};
use super::xml::{StrictXml, XmlEvent, XmlFault, XmlStart};
use super::xml_name::is_space;
use crate::report::Rule;

const XML: &str = "http://www.w3.org/XML/1998/namespace";

/// Rules of a format that no single element has.
pub(super) struct CommonRules {
    /// Elements of the format's namespaces stand where the format has them.
    pub(super) known_element: Rule,
    pub(super) known_attribute: Rule,
    /// Elements with child elements have no text of their own.
    pub(super) no_text: Rule,
    /// Elements with text have no child elements.
    pub(super) text_only: Rule,
    pub(super) language: Rule,
    pub(super) base: Rule,
}

/// An open element.
pub(super) struct Frame {
    /// `None` for an element that the grammar does not have.
    pub(super) element: Option<&'static Element>,
    /// Occurrences of the grammar's children, by position.
    counts: Vec<u32>,
    pub(super) text: String,
    /// Number of child elements.
    pub(super) children: u32,
    /// True if the first child element is XHTML's `div`.
    pub(super) begins_with_div: bool,
    /// Value of the attribute `type`.
    pub(super) kind: Option<String>,
    pub(super) offset: usize,
}

/// A format: its grammar's root, and rules across elements.
pub(super) trait Dialect {
    fn rules(&self) -> &'static CommonRules;

    /// Returns the grammar's element for a root.
    fn root(&mut self, start: &XmlStart<'_>, walk: &mut WalkState<'_>) -> Option<&'static Element>;

    /// Returns true for a namespace in which only the grammar's elements exist.
    fn owns(&self, ns: &str) -> bool;

    /// Tests the start of a child of `parent`, also if the grammar does not have it.
    fn start(
        &mut self,
        parent: &'static Element,
        element: Option<&'static Element>,
        start: &XmlStart<'_>,
        walk: &mut WalkState<'_>,
    );

    /// Tests an element of the grammar at its end.
    fn end(&mut self, element: &'static Element, frame: &Frame, walk: &mut WalkState<'_>);
}

/// Reader, place and findings of a walk.
pub(super) struct WalkState<'i> {
    xml: StrictXml<'i>,
    pub(super) findings: DocumentFindings,
    /// Number of the current or last entry, from 1.
    pub(super) entry: u64,
    is_in_entry: bool,
    offset: usize,
}

impl WalkState<'_> {
    /// Judges a rule at the current place.
    pub(super) fn judge(&mut self, rule: Rule, holds: bool, problem: impl FnOnce() -> String) {
        let (xml, offset) = (&self.xml, self.offset);
        let entry = self.is_in_entry.then_some(self.entry);
        self.findings.judge(rule, holds, || {
            // For problems only: counted for every element, it would take quadratic time.
            let line = xml.line(offset);
            match entry {
                Some(entry) => format!("entry {entry}, line {line}: {}", problem()),
                None => format!("line {line}: {}", problem()),
            }
        });
    }
}

/// Walks through a document. A violation of well-formedness ends the walk.
pub(super) fn walk(
    text: &str,
    dialect: &mut impl Dialect,
) -> (DocumentFindings, Result<(), (usize, XmlFault)>) {
    let xml = StrictXml::new(text);
    let mut state =
        WalkState { xml, findings: DocumentFindings::default(), entry: 0, is_in_entry: false, offset: 0 };
    let result = run(&mut state, dialect);
    let result = result.map_err(|fault| (state.xml.line(fault.offset), fault));
    (state.findings, result)
}

fn run(state: &mut WalkState<'_>, dialect: &mut impl Dialect) -> Result<(), XmlFault> {
    let mut stack: Vec<Frame> = Vec::new();
    loop {
        match state.xml.next()? {
            XmlEvent::Start(start) => {
                let frame = open(state, dialect, &mut stack, &start);
                stack.push(frame);
            }
            XmlEvent::Text(text) => {
                // Text of foreign elements is not collected: no rule is about it, and it may be most of the
                // document.
                if let Some(frame) = stack.last_mut().filter(|frame| frame.element.is_some()) {
                    frame.text.push_str(&text);
                }
            }
            XmlEvent::End => {
                if let Some(frame) = stack.pop() {
                    close(state, dialect, &frame);
                }
            }
            XmlEvent::Eof => return Ok(()),
        }
    }
}

fn open(
    state: &mut WalkState<'_>,
    dialect: &mut impl Dialect,
    stack: &mut [Frame],
    start: &XmlStart<'_>,
) -> Frame {
    state.offset = start.offset;
    let element = match stack.last_mut() {
        None => dialect.root(start, state),
        Some(parent) => child(state, dialect, parent, start),
    };
    if let Some(element) = element {
        test_attributes(state, dialect.rules(), element, start);
    }
    Frame {
        element,
        counts: vec![0; element.map_or(0, |element| element.children.len())],
        text: String::new(),
        children: 0,
        begins_with_div: false,
        kind: start.attribute("type").map(str::to_owned),
        offset: start.offset,
    }
}

/// Counts a child element, and returns its grammar.
fn child(
    state: &mut WalkState<'_>,
    dialect: &mut impl Dialect,
    parent: &mut Frame,
    start: &XmlStart<'_>,
) -> Option<&'static Element> {
    parent.children += 1;
    if parent.children == 1 {
        parent.begins_with_div = start.local == "div" && start.ns == crate::format::xml::XHTML;
    }
    // Inside of foreign elements nothing is known.
    let outer = parent.element?;
    let known = outer.children.iter().position(|c| c.element.name == start.local && c.element.ns == start.ns);
    let element = known.map(|index| outer.children[index].element);
    if let Some(count) = known.and_then(|index| parent.counts.get_mut(index)) {
        *count += 1;
    }
    if element.is_some_and(is_entry) {
        (state.entry, state.is_in_entry) = (state.entry + 1, true);
    }
    let rules = dialect.rules();
    match outer.body {
        Body::Elements if dialect.owns(&start.ns) => {
            let name = start.local;
            state.judge(rules.known_element, element.is_some(), || {
                format!("<{name}> does not belong in <{}>", outer.name)
            });
        }
        Body::Text | Body::Value(..) | Body::Trimmed(..) => {
            let name = start.local;
            state.judge(rules.text_only, false, || format!("<{name}> stands in <{}>", outer.name));
        }
        _ => {}
    }
    if matches!(outer.body, Body::Elements) {
        dialect.start(outer, element, start, state);
    }
    element
}

fn test_attributes(state: &mut WalkState<'_>, rules: &CommonRules, element: &Element, start: &XmlStart<'_>) {
    for attribute in element.attributes {
        let value = start.attribute(attribute.name);
        if let Some(rule) = attribute.required {
            state.judge(rule, value.is_some(), || format!("<{}> without {}", element.name, attribute.name));
        }
        if let (Some(value), Some((test, rule))) = (value, attribute.value) {
            state.judge(rule, test(value), || format!("{}={value:?} of <{}>", attribute.name, element.name));
        }
    }
    for attribute in &start.attributes {
        let (name, value) = (attribute.local, attribute.value.as_ref());
        match (attribute.ns.as_ref(), name) {
            ("", _) => {
                let is_known = element.attributes.iter().any(|known| known.name == name);
                state.judge(rules.known_attribute, is_known, || format!("{name} of <{}>", element.name));
            }
            (XML, "lang") => {
                // An empty value says that the language is unknown (XML 1.0, section 2.12).
                let fits = value.is_empty() || is_language(value);
                state.judge(rules.language, fits, || format!("xml:lang={value:?} of <{}>", element.name));
            }
            (XML, "base") => {
                state.judge(rules.base, is_reference(value), || format!("xml:base={value:?}"));
            }
            _ => {}
        }
    }
}

fn close(state: &mut WalkState<'_>, dialect: &mut impl Dialect, frame: &Frame) {
    let Some(element) = frame.element else { return };
    state.offset = frame.offset;
    for (child, count) in element.children.iter().zip(&frame.counts) {
        // An element that may be missing, and is, says nothing.
        if let Some(rule) = child.rule.filter(|_| child.min > 0 || *count > 0) {
            let holds = (child.min..=child.max).contains(count);
            state.judge(rule, holds, || match count {
                0 => format!("<{}> without <{}>", element.name, child.element.name),
                count => format!("<{}> with {count} times <{}>", element.name, child.element.name),
            });
        }
    }
    let text = frame.text.as_str();
    match element.body {
        Body::Elements => {
            let holds = text.chars().all(is_space);
            state.judge(dialect.rules().no_text, holds, || format!("text in <{}>", element.name));
        }
        Body::Value(test, rule) => state.judge(rule, test(text), || quoted(element, text)),
        Body::Trimmed(test, rule) => state.judge(rule, test(text.trim()), || quoted(element, text)),
        Body::Empty(rule) => {
            let holds = text.chars().all(is_space) && frame.children == 0;
            state.judge(rule, holds, || format!("<{}> has content", element.name));
        }
        Body::Text | Body::Construct | Body::Content | Body::Any => {}
    }
    dialect.end(element, frame, state);
    if is_entry(element) {
        state.is_in_entry = false;
    }
}

fn is_entry(element: &'static Element) -> bool {
    matches!(element.name, "entry" | "item")
}

fn quoted(element: &Element, text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    format!("<{}> is {short:?}", element.name)
}
