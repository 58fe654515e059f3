//! Repair of ill-formed XML, as feed readers do: the result is well-formed, and each change has a warning.
//!
//! It runs only after the strict reader has refused a document, so well-formed documents cost nothing. It reads forward
//! once and never moves a line break, so later problems keep their lines. A document that ends too early stays so: the
//! transfer is the likely cause, and half a document is no document.

mod ends;
mod references;
mod root;
mod start_tag;
mod tags;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use self::ends::TagPlaces;
use super::errors::place;
use crate::format::budget::Budget;
use crate::format::error::FormatError;
use crate::format::problems::Problems;

/// Open element.
struct Open<'i> {
    name: &'i str,
    offset: usize,
    /// Number of prefixes in scope before its own declarations.
    prefixes: usize,
    /// Its tags of HTML are text: `description`, and the like.
    holds_html: bool,
    /// No end tag follows before the item ends, so the next start tag ends it.
    has_no_end: bool,
}

/// Repair in progress.
struct Repair<'i, 'b> {
    text: &'i str,
    out: String,
    at: usize,
    open: Vec<Open<'i>>,
    /// Declared prefixes in scope.
    prefixes: Vec<&'i str>,
    tags: TagPlaces<'i>,
    /// Entities of the document type, with their replacement text as XML.
    entities: HashMap<&'i str, String>,
    /// The root element was closed.
    is_done: bool,
    /// A document type was read.
    has_doctype: bool,
    /// No further processing instruction has its end.
    no_instruction_ends: bool,
    problems: Problems,
    budget: &'b mut Budget,
}

/// Returns a document as well-formed XML, with the changes that were made.
pub(crate) fn repair(text: &str, budget: &mut Budget) -> Result<(String, Problems), FormatError> {
    // The output may be no longer than any text that is read.
    budget.store(text.len())?;
    let tags = TagPlaces::of(text, budget)?;
    let mut repair = Repair {
        text,
        out: String::with_capacity(text.len() + text.len() / 16),
        at: 0,
        open: Vec::new(),
        prefixes: Vec::new(),
        tags,
        entities: HashMap::new(),
        is_done: false,
        has_doctype: false,
        no_instruction_ends: false,
        problems: Problems::default(),
        budget,
    };
    while repair.at < text.len() {
        repair.step()?;
    }
    Ok((repair.out, repair.problems))
}

impl<'i> Repair<'i, '_> {
    fn step(&mut self) -> Result<(), FormatError> {
        let rest = &self.text[self.at..];
        let next = memchr::memchr(b'<', rest.as_bytes()).unwrap_or(rest.len());
        if next > 0 {
            self.text_part(&rest[..next])?;
            self.at += next;
            return Ok(());
        }
        match rest.as_bytes() {
            [b'<', b'!', b'-', b'-', ..] => self.copied(rest, "<!--", "-->"),
            [b'<', b'!', b'[', b'C', b'D', b'A', b'T', b'A', b'[', ..] if !self.open.is_empty() => {
                self.copied(rest, "<![CDATA[", "]]>");
            }
            [b'<', b'!', ..] => self.declaration(rest),
            [b'<', b'?', ..] => self.instruction(rest),
            [b'<', b'/', ..] => self.end_tag(rest)?,
            _ => self.start_tag(rest)?,
        }
        Ok(())
    }

    fn warn(&mut self, offset: usize, what: impl std::fmt::Display) {
        self.problems.warn(|| place(self.text, offset, what));
    }

    /// Adds text to the output beyond what it replaces.
    fn push(&mut self, text: &str) -> Result<(), FormatError> {
        self.budget.store(text.len())?;
        self.out.push_str(text);
        Ok(())
    }

    /// Copies a comment or section with its end. Without its end it is the rest of the document, which is then cut off.
    fn copied(&mut self, rest: &str, begin: &str, end: &str) {
        // The end shares nothing with the beginning: `<!-->` is no whole comment.
        let length = rest[begin.len()..].find(end).map_or(rest.len(), |at| begin.len() + at + end.len());
        if !self.is_done || end == "-->" {
            self.out.push_str(&rest[..length]);
        }
        self.at += length;
    }

    /// Drops what is not white space before or behind the root element.
    fn outside(&mut self, text: &str) {
        if !text.trim().is_empty() {
            let offset = self.at + (text.len() - text.trim_start().len());
            let side = if self.is_done { "behind the end" } else { "before the beginning" };
            self.warn(offset, format_args!("text {side} of the document was dropped"));
        }
        self.out.extend(text.chars().filter(|c| *c == '\n'));
    }

    fn text_part(&mut self, text: &'i str) -> Result<(), FormatError> {
        if self.open.is_empty() {
            self.outside(text);
            return Ok(());
        }
        self.references(text, self.at)
    }

    /// Handles `<!DOCTYPE …>`, whose internal subset may declare entities. Any other `<!` is dropped.
    fn declaration(&mut self, rest: &'i str) {
        let is_doctype = rest.get(..9).is_some_and(|start| start.eq_ignore_ascii_case("<!DOCTYPE"));
        let is_first = is_doctype && self.open.is_empty() && !self.has_doctype;
        // The whole search is made once: it may read up to the end of the document.
        let length = match is_first {
            true => declaration_length(rest),
            false => rest.find('>').map_or(rest.len(), |at| at + 1),
        };
        let whole = &rest[..length];
        if is_first {
            self.has_doctype = true;
            if let Some((_, subset)) = whole.split_once('[') {
                self.entities = references::declared(subset);
            }
        } else {
            self.warn(self.at, "a declaration within the document was dropped");
        }
        // What it declares is applied here. The strict reader would refuse its entities.
        self.out.extend(whole.chars().filter(|c| *c == '\n'));
        self.at += length;
    }

    fn instruction(&mut self, rest: &'i str) {
        let end = if self.no_instruction_ends { None } else { rest.find("?>") };
        self.no_instruction_ends = end.is_none();
        let (length, is_closed) = match (end, rest.find('>')) {
            (Some(end), _) => (end + 2, true),
            (None, Some(end)) => (end + 1, false),
            (None, None) => (rest.len(), true),
        };
        let is_declaration = rest.starts_with("<?xml") && !rest.starts_with("<?xml-");
        let is_first = self.out.trim().is_empty();
        if !is_closed || (is_declaration && !is_first) {
            self.warn(self.at, "a processing instruction that is not one was dropped");
            self.out.extend(rest[..length].chars().filter(|c| *c == '\n'));
        } else if is_declaration {
            // The text is decoded already, and XML wants the declaration at the very beginning.
            self.out.extend(rest[..length].chars().filter(|c| *c == '\n'));
        } else {
            self.out.push_str(&rest[..length]);
        }
        self.at += length;
    }
}

/// Returns the length of a declaration: up to its `>`, outside of quotation marks and brackets.
fn declaration_length(rest: &str) -> usize {
    let mut in_subset = false;
    let mut quote = None;
    for (at, byte) in rest.bytes().enumerate() {
        match (byte, quote) {
            (b, Some(open)) if b == open => quote = None,
            (_, Some(_)) => {}
            (b'"' | b'\'', None) => quote = Some(byte),
            (b'[', None) => in_subset = true,
            (b']', None) => in_subset = false,
            (b'>', None) if !in_subset => return at + 1,
            _ => {}
        }
    }
    // Quotation marks do not match: the first bracket must do.
    rest.find('>').map_or(rest.len(), |at| at + 1)
}
