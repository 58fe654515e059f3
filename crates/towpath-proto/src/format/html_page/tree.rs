//! Elements and texts of a page, in document order.

use crate::format::html::{TextSink, is_block, is_void, resolved_attribute};
use crate::format::xml::{push_attribute, push_text};

/// Nodes of a page in document order, so that the nodes below one stand directly behind it.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
}

/// Element or text.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: Option<u32>,
    /// Element before this one, of the same parent.
    pub(super) before: Option<u32>,
    /// Last element among the children.
    pub(super) last_child: Option<u32>,
    /// Number of this element among its parent's, from 1.
    pub(super) place: u32,
    /// Number of elements among the children.
    pub(super) elements: u32,
    /// End of the nodes below this one.
    pub(super) end: u32,
    pub(super) data: NodeData,
}

/// Content of a node.
#[derive(Debug)]
pub(super) enum NodeData {
    Element { name: String, attributes: Vec<(String, String)> },
    Text(String),
}

impl Tree {
    /// Returns the name of an element in lower case; `None` for text.
    pub(super) fn name(&self, node: usize) -> Option<&str> {
        match &self.nodes[node].data {
            NodeData::Element { name, .. } => Some(name),
            NodeData::Text(_) => None,
        }
    }

    /// Returns the value of an attribute.
    pub(super) fn attribute(&self, node: usize, name: &str) -> Option<&str> {
        let NodeData::Element { attributes, .. } = &self.nodes[node].data else { return None };
        attributes.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn parent(&self, node: usize) -> Option<usize> {
        self.nodes[node].parent.map(|parent| parent as usize)
    }

    pub(super) fn element_before(&self, node: usize) -> Option<usize> {
        self.nodes[node].before.map(|before| before as usize)
    }

    /// Returns the place of an element among its parent's, from 1, counted from the first or the last.
    pub(super) fn place(&self, node: usize, from_end: bool) -> i64 {
        let place = i64::from(self.nodes[node].place);
        if !from_end {
            return place;
        }
        let all = self.parent(node).map_or(1, |parent| i64::from(self.nodes[parent].elements));
        all - place + 1
    }

    pub(super) fn is_empty(&self, node: usize) -> bool {
        self.end(node) == node + 1
    }

    /// Returns the end of the nodes below one.
    pub(super) fn end(&self, node: usize) -> usize {
        self.nodes[node].end as usize
    }

    /// Returns the text of an element on one line, without scripts and styles below it.
    pub(super) fn text(&self, element: usize) -> String {
        let mut text = TextSink::new(usize::MAX);
        // Ends of the open blocks, which separate words as their beginnings do.
        let mut blocks: Vec<usize> = Vec::new();
        let mut node = element;
        while node < self.end(element) {
            while blocks.pop_if(|end| *end <= node).is_some() {
                text.separate(' ');
            }
            match &self.nodes[node].data {
                NodeData::Text(part) => text.push(part),
                NodeData::Element { name, .. } if node != element && is_skipped(name) => {
                    node = self.end(node);
                    continue;
                }
                NodeData::Element { name, .. } if is_block(name.as_bytes()) => {
                    text.separate(' ');
                    blocks.push(self.end(node));
                }
                NodeData::Element { .. } => {}
            }
            node += 1;
        }
        text.finish()
    }

    /// Returns the HTML within an element. `resolve` makes its URLs absolute.
    pub(super) fn inner_html<E>(
        &self,
        element: usize,
        mut resolve: impl FnMut(&str) -> Result<String, E>,
    ) -> Result<String, E> {
        let mut out = String::new();
        let mut open: Vec<(usize, &str)> = Vec::new();
        for node in element + 1..self.end(element) {
            close(&mut out, &mut open, node);
            match &self.nodes[node].data {
                // Scripts and styles are text that no parser unescapes.
                NodeData::Text(text) if open.last().is_some_and(|(_, name)| is_raw(name)) => {
                    out.push_str(text);
                }
                NodeData::Text(text) => push_text(&mut out, text),
                NodeData::Element { name, attributes } => {
                    out.push('<');
                    out.push_str(name);
                    for (name, value) in attributes {
                        out.push(' ');
                        out.push_str(name);
                        out.push_str("=\"");
                        match name.as_str() {
                            "href" | "src" => push_attribute(&mut out, &resolve(value.trim())?),
                            name => {
                                let resolved = resolved_attribute(name, value, &mut resolve)?;
                                push_attribute(&mut out, resolved.as_deref().unwrap_or(value));
                            }
                        }
                        out.push('"');
                    }
                    out.push('>');
                    if !is_void(name.as_bytes()) {
                        open.push((self.end(node), name));
                    }
                }
            }
        }
        close(&mut out, &mut open, usize::MAX);
        Ok(out.trim().to_owned())
    }
}

/// Closes the elements that end at or before `node`.
fn close(out: &mut String, open: &mut Vec<(usize, &str)>, node: usize) {
    while let Some((_, name)) = open.pop_if(|(end, _)| *end <= node) {
        out.push_str("</");
        out.push_str(name);
        out.push('>');
    }
}

fn is_raw(name: &str) -> bool {
    matches!(name, "script" | "style")
}

fn is_skipped(name: &str) -> bool {
    is_raw(name) || matches!(name, "template" | "noscript")
}
