//! Builds the tree of a page from its tokens.
//!
//! It follows the HTML standard where pages depend on it: void elements, end tags that may be missing, `tbody` and
//! `body` without tags. Nodes are never moved or made twice as by the standard's adoption agency, whose trees grow with
//! the square of a hostile page. So time and memory are linear.

use std::ops::ControlFlow;

use html5gum::emitters::callback::CallbackEvent;

use super::tree::{Node, NodeData, Tree};
use crate::format::budget::Budget;
use crate::format::error::FormatError;
use crate::format::html::{is_void, read};

/// Parses a page.
pub(super) fn build(html: &str, budget: &mut Budget) -> Result<Tree, FormatError> {
    let mut builder = Builder { tree: Tree::default(), open: Vec::new(), tag: None, budget };
    builder.add("html", Vec::new())?;
    // The tokenizer's callback returns no error, so one is carried out of it here.
    let mut failed = None;
    read(html, |event| match builder.handle(&event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    builder.close_to(0);
    Ok(builder.tree)
}

/// Start tag being read: name and attributes.
type OpenTag = (String, Vec<(String, String)>);

struct Builder<'a> {
    tree: Tree,
    /// Open elements, the root first.
    open: Vec<usize>,
    tag: Option<OpenTag>,
    budget: &'a mut Budget,
}

impl Builder<'_> {
    fn handle(&mut self, event: &CallbackEvent<'_>) -> Result<(), FormatError> {
        match event {
            CallbackEvent::OpenStartTag { name } => self.tag = Some((lossy(name), Vec::new())),
            CallbackEvent::AttributeName { name } => self.attribute(lossy(name))?,
            CallbackEvent::AttributeValue { value } => {
                let value = lossy(value);
                self.budget.text(value.len())?;
                if let Some((_, attributes)) = &mut self.tag
                    && let Some((_, last)) = attributes.last_mut()
                {
                    *last = value;
                }
            }
            CallbackEvent::CloseStartTag { .. } => {
                if let Some((name, attributes)) = self.tag.take() {
                    self.start(&name, attributes)?;
                }
            }
            CallbackEvent::EndTag { name } => {
                self.tag = None;
                self.end(&lossy(name));
            }
            CallbackEvent::String { value } => self.text(lossy(value))?,
            CallbackEvent::Comment { .. } | CallbackEvent::Doctype { .. } | CallbackEvent::Error(_) => {}
        }
        Ok(())
    }

    fn attribute(&mut self, name: String) -> Result<(), FormatError> {
        let Some((_, attributes)) = &mut self.tag else { return Ok(()) };
        let most = self.budget.limits.members;
        if attributes.len() >= most {
            let reason = format!("an element with more than {most} attributes (limit: members)");
            return Err(FormatError::Limit(reason));
        }
        attributes.push((name, String::new()));
        Ok(())
    }

    fn start(&mut self, name: &str, attributes: Vec<(String, String)>) -> Result<(), FormatError> {
        match name {
            // The root is there already.
            "html" => {
                if let NodeData::Element { attributes: own, .. } = &mut self.tree.nodes[0].data {
                    own.extend(attributes);
                }
                return Ok(());
            }
            "body" if self.is_open("body") => return Ok(()),
            _ => self.imply(name)?,
        }
        self.add(name, attributes)?;
        if is_void(name.as_bytes()) {
            self.close_to(self.open.len() - 1);
        }
        Ok(())
    }

    /// Closes the elements that `name` ends without a tag, and opens those that it begins.
    fn imply(&mut self, name: &str) -> Result<(), FormatError> {
        let in_head = matches!(
            name,
            "head" | "title" | "meta" | "link" | "base" | "script" | "style" | "noscript" | "template"
        );
        if !in_head && !self.is_open("body") && !self.is_open("frameset") {
            self.close_to(1);
            if name != "body" && name != "frameset" {
                self.add("body", Vec::new())?;
            }
        }
        match name {
            "li" => self.close_nearest(&["li"], &["ul", "ol", "menu", "dir"]),
            "dt" | "dd" => self.close_nearest(&["dt", "dd"], &["dl"]),
            "option" => self.close_nearest(&["option"], &["select", "datalist", "optgroup"]),
            "td" | "th" => self.close_nearest(&["td", "th"], &["tr", "table"]),
            "tr" => self.close_nearest(&["tr"], &["table", "tbody", "thead", "tfoot"]),
            "tbody" | "thead" | "tfoot" => self.close_nearest(&["tbody", "thead", "tfoot"], &["table"]),
            _ => {}
        }
        if closes_paragraph(name) {
            self.close_nearest(&["p"], PARAGRAPH_BOUNDS);
        }
        if name == "tr" && self.current() == Some("table") {
            self.add("tbody", Vec::new())?;
        }
        if matches!(name, "td" | "th") && matches!(self.current(), Some("tbody" | "thead" | "tfoot")) {
            self.add("tr", Vec::new())?;
        }
        Ok(())
    }

    fn end(&mut self, name: &str) {
        let bounds: &[&str] = match name {
            // Their content stays open until the end, as in the standard: some pages go on behind them.
            "html" | "body" => return,
            "table" | "tbody" | "thead" | "tfoot" | "tr" | "td" | "th" => &[],
            // A stray end tag in a cell must not close what is around its table.
            _ => &["table", "td", "th"],
        };
        self.close_nearest(&[name], bounds);
    }

    fn text(&mut self, text: String) -> Result<(), FormatError> {
        self.budget.text(text.len())?;
        let is_space = text.trim().is_empty();
        // Spaces between rows and before the body belong to nothing.
        let drops_space =
            matches!(self.current(), Some("html" | "table" | "tbody" | "thead" | "tfoot" | "tr" | "head"));
        if is_space && drops_space {
            return Ok(());
        }
        if self.current() == Some("html") {
            self.imply("#text")?;
        }
        self.budget.store(size_of::<Node>() + text.len())?;
        self.push(NodeData::Text(text));
        Ok(())
    }

    fn add(&mut self, name: &str, attributes: Vec<(String, String)>) -> Result<(), FormatError> {
        if self.open.len() > self.budget.limits.depth {
            let reason = format!("elements nested deeper than {} (limit: depth)", self.budget.limits.depth);
            return Err(FormatError::Limit(reason));
        }
        // 80 bytes for the two strings themselves, and for what the allocator adds to each.
        let texts: usize = attributes.iter().map(|(name, value)| name.len() + value.len() + 80).sum();
        self.budget.store(size_of::<Node>() + name.len() + texts)?;
        let node = self.push(NodeData::Element { name: name.to_owned(), attributes });
        self.open.push(node);
        Ok(())
    }

    /// Appends a node to the current element.
    fn push(&mut self, data: NodeData) -> usize {
        let index = self.tree.nodes.len();
        let parent = self.open.last().copied();
        let (mut before, mut place) = (None, 1);
        if let Some(parent) = parent {
            let parent = &mut self.tree.nodes[parent];
            before = parent.last_child;
            if matches!(data, NodeData::Element { .. }) {
                parent.elements += 1;
                place = parent.elements;
                parent.last_child = Some(number(index));
            }
        }
        let parent = parent.map(number);
        let end = number(index + 1);
        self.tree.nodes.push(Node { parent, before, last_child: None, place, elements: 0, end, data });
        index
    }

    fn current(&self) -> Option<&str> {
        self.open.last().and_then(|node| self.tree.name(*node))
    }

    fn is_open(&self, name: &str) -> bool {
        // Only the first two levels below the root are asked for.
        self.open.iter().take(3).any(|node| self.tree.name(*node) == Some(name))
    }

    /// Closes the innermost open element with one of these names, unless one of `bounds` is within it.
    fn close_nearest(&mut self, names: &[&str], bounds: &[&str]) {
        // No further than the limit of depth: a page full of stray end tags still takes linear time.
        for at in (1..self.open.len()).rev() {
            let name = self.tree.name(self.open[at]).unwrap_or_default();
            if names.contains(&name) {
                return self.close_to(at);
            }
            if bounds.contains(&name) {
                return;
            }
        }
    }

    /// Closes all elements from this depth on.
    fn close_to(&mut self, depth: usize) {
        let end = number(self.tree.nodes.len());
        for node in self.open.drain(depth..) {
            self.tree.nodes[node].end = end;
        }
    }
}

/// Elements that a paragraph around them does not end at.
const PARAGRAPH_BOUNDS: &[&str] = &["table", "td", "th", "caption", "button", "object", "template"];

/// Returns `true` if the start of this element ends a paragraph (HTML standard, section 13.1.2.4).
fn closes_paragraph(name: &str) -> bool {
    matches!(
        name,
        "address"
            | "article"
            | "aside"
            | "blockquote"
            | "center"
            | "details"
            | "dialog"
            | "dir"
            | "div"
            | "dl"
            | "fieldset"
            | "figcaption"
            | "figure"
            | "footer"
            | "form"
            | "h1"
            | "h2"
            | "h3"
            | "h4"
            | "h5"
            | "h6"
            | "header"
            | "hgroup"
            | "hr"
            | "main"
            | "menu"
            | "nav"
            | "ol"
            | "p"
            | "pre"
            | "section"
            | "summary"
            | "table"
            | "ul"
    )
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Numbers of nodes have 32 bits; the budget ends long before.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
