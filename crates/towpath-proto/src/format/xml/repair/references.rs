//! References, of which feeds have more than XML allows.

use std::collections::HashMap;

use super::super::characters::is_xml_char;
use super::super::write::push_attribute;
use super::Repair;
use crate::format::error::FormatError;
use crate::format::html;
use crate::format::position::shortened;

/// Maximum length of a reference between `&` and `;`.
const MAX_NAME: usize = 60;
/// Maximum number of entities, and length of each. A declaration beyond is ignored.
const MAX_ENTITIES: usize = 1000;
const MAX_ENTITY: usize = 10_000;

impl<'i> Repair<'i, '_> {
    /// Writes character data or an attribute's value at `offset`, with references that XML allows.
    pub(super) fn references(&mut self, text: &'i str, offset: usize) -> Result<(), FormatError> {
        let mut rest = text;
        while let Some(next) = memchr::memchr(b'&', rest.as_bytes()) {
            self.plain(&rest[..next])?;
            rest = &rest[next + 1..];
            let at = offset + (text.len() - rest.len() - 1);
            let end = rest
                .bytes()
                .take(MAX_NAME)
                .position(|b| !is_name_byte(b))
                .unwrap_or(rest.len().min(MAX_NAME));
            let name = rest.get(..end).unwrap_or_default();
            let is_closed = rest.as_bytes().get(end) == Some(&b';');
            if self.reference(name, is_closed, at)? {
                rest = &rest[end + usize::from(is_closed)..];
            }
        }
        self.plain(rest)
    }

    /// Writes a reference. `false`: it is none, and the ampersand was written as text.
    fn reference(&mut self, name: &str, is_closed: bool, at: usize) -> Result<bool, FormatError> {
        if let Some(text) = self.entities.get(name).cloned() {
            // Counted for each use: a long text may be named often.
            self.push(&text)?;
            self.note_open_end(name, is_closed, at);
            return Ok(true);
        }
        let known = match name.strip_prefix('#') {
            Some(number) => character(number).is_some(),
            None => matches!(name, "lt" | "gt" | "amp" | "quot" | "apos") || html::entity(name).is_some(),
        };
        // Without its semicolon, a name is often just a word, such as a parameter of a URL.
        if known && (is_closed || name.starts_with('#')) {
            self.out.push('&');
            self.out.push_str(name);
            self.out.push(';');
            self.note_open_end(name, is_closed, at);
            return Ok(true);
        }
        self.push("&amp;")?;
        match is_closed && !name.is_empty() {
            true => self.warn(at, format_args!("unknown entity &{}; is read as text", shortened(name))),
            false => self.warn(at, "a bare & is read as text (write &amp;)"),
        }
        Ok(false)
    }

    fn note_open_end(&mut self, name: &str, is_closed: bool, at: usize) {
        if !is_closed {
            self.warn(at, format_args!("&{} has no semicolon", shortened(name)));
        }
    }

    /// Writes text without references. `]]>` may not stand in character data.
    fn plain(&mut self, text: &str) -> Result<(), FormatError> {
        let mut rest = text;
        while let Some(at) = rest.find("]]>") {
            self.out.push_str(&rest[..at + 2]);
            self.push("&gt;")?;
            rest = &rest[at + 3..];
        }
        self.out.push_str(rest);
        Ok(())
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'#' | b'_' | b'-' | b'.') || byte >= 0x80
}

/// Returns the character with this number; `None` for what is not a number.
fn character(number: &str) -> Option<char> {
    let digits = number.strip_prefix(['x', 'X']);
    let (digits, radix) = digits.map_or((number, 10), |digits| (digits, 16));
    let is_number =
        !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix)) && !number.starts_with('X');
    let code = is_number.then(|| u32::from_str_radix(digits, radix).ok()).flatten()?;
    char::from_u32(code).filter(|c| is_xml_char(*c))
}

/// Returns the entities of an internal subset. Their replacement is plain text or a single character: nested entities
/// could grow exponentially, and external ones would read files.
pub(super) fn declared(subset: &str) -> HashMap<&str, String> {
    let mut entities = HashMap::new();
    for declaration in subset.split("<!ENTITY").skip(1).take(MAX_ENTITIES) {
        let Some((name, rest)) = declaration.trim_start().split_once(char::is_whitespace) else { continue };
        let rest = rest.trim_start();
        let Some(quote) = rest.chars().next().filter(|c| matches!(c, '"' | '\'')) else { continue };
        let Some((value, _)) = rest[1..].split_once(quote) else { continue };
        let replacement = match value.strip_prefix("&#").and_then(|v| v.strip_suffix(';')) {
            Some(number) => character(number).map(String::from),
            None if value.contains('&') || value.len() > MAX_ENTITY => None,
            None => Some(value.to_owned()),
        };
        if let Some(replacement) = replacement {
            let mut escaped = String::new();
            push_attribute(&mut escaped, &replacement);
            // The first declaration counts (XML 1.0, section 4.2).
            entities.entry(name).or_insert(escaped);
        }
    }
    entities
}
