//! Canonical JSON: RFC 8785 (JCS), and the form that Python's `json.dumps` gives.
//!
//! Works on JSON *text* in one pass, because the two forms differ in how a number was written (`0.0` and `0`
//! are one value). The result is as large as the text; an object whose keys are already in order is copied
//! through, so canonicalising a document that was written canonically costs little more than reading it.

use std::ops::Range;

mod key;
mod number;

use key::{decode, utf16_order};

/// How deep arrays and objects may nest.
pub const MAX_DEPTH: usize = 128;

/// Which canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Style {
    /// RFC 8785: numbers as ECMAScript writes them, keys in the order of their UTF-16 code units.
    Jcs,
    /// `json.dumps(obj, sort_keys=True, separators=(',',':'), ensure_ascii=False)`: numbers as Python writes
    /// them (`0.0`, `1e-07`, whole numbers of any size), keys in the order of their code points.
    Python,
    /// Numbers as they are written, of any size and precision; keys in the order of their code points.
    AsWritten,
}

/// Why a text has no canonical form. Offsets are bytes from the start of the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JcsError {
    /// Not JSON.
    #[error("not JSON at byte {offset}: {reason}")]
    Syntax {
        /// Where.
        offset: usize,
        /// What was expected.
        reason: &'static str,
    },
    /// Arrays and objects nest deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} at byte {offset}")]
    Depth {
        /// Where.
        offset: usize,
    },
    /// A number that the form cannot hold (RFC 8785, section 3.2.2.3): beyond ±(2^53 - 1) as a whole number,
    /// or beyond the range of a double.
    #[error("the number at byte {offset} is beyond what RFC 8785 can write exactly")]
    Number {
        /// Where.
        offset: usize,
    },
    /// An object has a key twice (RFC 8785, section 3.1, by way of I-JSON). Python keeps the last.
    #[error("an object that begins at byte {offset} has a key twice")]
    DuplicateKey {
        /// Where the object begins.
        offset: usize,
    },
}

/// The canonical form of a JSON text.
pub fn canonical(text: &[u8], style: Style) -> Result<Vec<u8>, JcsError> {
    canonical_without(text, style, &[])
}

/// The canonical form of a JSON text, without these members of the outermost object.
pub fn canonical_without(text: &[u8], style: Style, without: &[&str]) -> Result<Vec<u8>, JcsError> {
    let text = match std::str::from_utf8(text) {
        Ok(text) => text,
        Err(e) => return Err(JcsError::Syntax { offset: e.valid_up_to(), reason: "UTF-8" }),
    };
    let mut writer = Writer {
        text: text.as_bytes(),
        at: 0,
        style,
        out: Vec::with_capacity(text.len()),
        members: Vec::new(),
        scratch: Vec::new(),
    };
    writer.white_space();
    writer.value(0, without)?;
    writer.white_space();
    if writer.at < text.len() {
        return Err(writer.syntax("the end of the text"));
    }
    Ok(writer.out)
}

/// The canonical form of a JSON value.
pub fn canonical_value(value: &serde_json::Value, style: Style) -> Result<Vec<u8>, JcsError> {
    canonical(value.to_string().as_bytes(), style)
}

/// A member of an object that has been written to [`Writer::out`].
struct Member {
    /// The key as it is, where it had escapes; otherwise it is what stands between the quotes.
    decoded: Option<String>,
    /// The key's place in `out`, between its quotes.
    key: Range<usize>,
    /// Where the member ends in `out`; it begins at the quote before `key`.
    end: usize,
}

impl Member {
    /// The key as it is, of a member that was written to `out`.
    fn name<'m>(&'m self, out: &'m [u8]) -> &'m [u8] {
        self.decoded.as_deref().map_or(&out[self.key.clone()], str::as_bytes)
    }
}

struct Writer<'a> {
    text: &'a [u8],
    at: usize,
    style: Style,
    out: Vec<u8>,
    /// The members of all objects that are open, outermost first.
    members: Vec<Member>,
    scratch: Vec<u8>,
}

impl Writer<'_> {
    fn syntax(&self, reason: &'static str) -> JcsError {
        JcsError::Syntax { offset: self.at, reason }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn white_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, literal: &'static str) -> Result<(), JcsError> {
        if !self.text[self.at..].starts_with(literal.as_bytes()) {
            return Err(self.syntax(literal));
        }
        self.at += literal.len();
        Ok(())
    }

    fn value(&mut self, depth: usize, without: &[&str]) -> Result<(), JcsError> {
        if depth > MAX_DEPTH {
            return Err(JcsError::Depth { offset: self.at });
        }
        let literal = match self.peek() {
            Some(b'{') => return self.object(depth, without),
            Some(b'[') => return self.array(depth),
            Some(b'"') => return self.string().map(|_| ()),
            Some(b'-' | b'0'..=b'9') => return self.number(),
            Some(b't') => "true",
            Some(b'f') => "false",
            Some(b'n') => "null",
            _ => return Err(self.syntax("a value")),
        };
        self.expect(literal)?;
        self.out.extend_from_slice(literal.as_bytes());
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<(), JcsError> {
        self.at += 1;
        self.out.push(b'[');
        self.white_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            self.out.push(b']');
            return Ok(());
        }
        loop {
            self.white_space();
            self.value(depth + 1, &[])?;
            self.white_space();
            let next = self.peek();
            match next {
                Some(b',') => self.out.push(b','),
                Some(b']') => self.out.push(b']'),
                _ => return Err(self.syntax("a comma or the end of the array")),
            }
            self.at += 1;
            if next == Some(b']') {
                return Ok(());
            }
        }
    }

    /// Writes the members one after another, each followed by a comma, then puts them in order.
    fn object(&mut self, depth: usize, without: &[&str]) -> Result<(), JcsError> {
        let offset = self.at;
        let first = self.members.len();
        self.at += 1;
        self.out.push(b'{');
        let start = self.out.len();
        self.white_space();
        let mut more = self.peek() != Some(b'}');
        if !more {
            self.at += 1;
        }
        while more {
            self.white_space();
            self.member(depth, without)?;
            self.white_space();
            more = match self.peek() {
                Some(b',') => true,
                Some(b'}') => false,
                _ => return Err(self.syntax("a comma or the end of the object")),
            };
            self.at += 1;
        }
        self.sort(start, first, offset)?;
        self.members.truncate(first);
        if self.out.len() > start {
            self.out.pop();
        }
        self.out.push(b'}');
        Ok(())
    }

    fn member(&mut self, depth: usize, without: &[&str]) -> Result<(), JcsError> {
        if self.peek() != Some(b'"') {
            return Err(self.syntax("a key in quotes"));
        }
        let begin = self.out.len();
        let decoded = self.string()?;
        let key = begin + 1..self.out.len() - 1;
        self.white_space();
        self.expect(":")?;
        self.out.push(b':');
        self.white_space();
        self.value(depth + 1, &[])?;
        self.out.push(b',');
        let member = Member { decoded, key, end: self.out.len() };
        if without.iter().any(|w| w.as_bytes() == member.name(&self.out)) {
            self.out.truncate(begin);
        } else {
            self.members.push(member);
        }
        Ok(())
    }

    /// Puts the members from `first` on, which stand in `out` from `start` on, in order.
    fn sort(&mut self, start: usize, first: usize, offset: usize) -> Result<(), JcsError> {
        let Self { out, members, scratch, style, .. } = self;
        let members = &mut members[first..];
        let compare = |a: &Member, b: &Member| {
            let (a, b) = (a.name(out), b.name(out));
            match style {
                Style::Python | Style::AsWritten => a.cmp(b),
                Style::Jcs => utf16_order(a, b),
            }
        };
        if members.windows(2).all(|w| compare(&w[0], &w[1]).is_lt()) {
            return Ok(());
        }
        members.sort_by(compare); // stable: of one key's members the last stays last
        scratch.clear();
        for (index, member) in members.iter().enumerate() {
            let again = members.get(index + 1).is_some_and(|next| compare(member, next).is_eq());
            if again && *style == Style::Jcs {
                return Err(JcsError::DuplicateKey { offset });
            }
            if !again {
                scratch.extend_from_slice(&out[member.key.start - 1..member.end]);
            }
        }
        out.truncate(start);
        out.extend_from_slice(scratch);
        Ok(())
    }

    /// Copies a string, with the shortest escapes. Returns what it says where that is not what was written.
    fn string(&mut self) -> Result<Option<String>, JcsError> {
        self.at += 1;
        self.out.push(b'"');
        let begin = self.out.len();
        let mut escaped = false;
        loop {
            let rest = &self.text[self.at..];
            let plain = &rest[..memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len())];
            // Folded without a branch, which is many bytes at a time; the place is looked for if it matters.
            if plain.iter().fold(false, |found, &b| found | (b < b' ')) {
                self.at += plain.iter().position(|&b| b < b' ').unwrap_or(0);
                return Err(self.syntax("an escape instead of a control character"));
            }
            self.out.extend_from_slice(plain);
            self.at += plain.len();
            match self.peek() {
                Some(b'"') => break,
                Some(_) => self.escape()?,
                None => return Err(self.syntax("the end of the string")),
            }
            escaped = true;
        }
        self.at += 1;
        let decoded = escaped.then(|| decode(&self.out[begin..]));
        self.out.push(b'"');
        Ok(decoded)
    }

    fn escape(&mut self) -> Result<(), JcsError> {
        let Some(&kind) = self.text.get(self.at + 1) else {
            return Err(self.syntax("the end of the escape"));
        };
        let c = match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode_escape(),
            _ => return Err(self.syntax("an escape that JSON knows")),
        };
        self.at += 2;
        self.push_char(c);
        Ok(())
    }

    fn unicode_escape(&mut self) -> Result<(), JcsError> {
        let unit = self.hex4(self.at)?;
        let mut length = 6;
        let code = match unit {
            0xd800..=0xdbff => {
                let low = self.hex4(self.at + 6)?;
                if !(0xdc00..=0xdfff).contains(&low) {
                    return Err(self.syntax("both halves of a surrogate pair"));
                }
                length = 12;
                0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00)
            }
            unit => unit,
        };
        let Some(c) = char::from_u32(code) else {
            return Err(self.syntax("both halves of a surrogate pair"));
        };
        self.at += length;
        self.push_char(c);
        Ok(())
    }

    /// The four hex digits of a `\u` escape that begins at `at`.
    fn hex4(&self, at: usize) -> Result<u32, JcsError> {
        let bad = JcsError::Syntax { offset: at, reason: "\\u and four hex digits" };
        let Some(escape) = self.text.get(at..at + 6) else { return Err(bad) };
        let digits = escape.strip_prefix(b"\\u").filter(|d| d.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|d| std::str::from_utf8(d).ok());
        digits.and_then(|d| u32::from_str_radix(d, 16).ok()).ok_or(bad)
    }

    fn push_char(&mut self, c: char) {
        let short = match c {
            '"' => b'"',
            '\\' => b'\\',
            '\u{8}' => b'b',
            '\u{c}' => b'f',
            '\n' => b'n',
            '\r' => b'r',
            '\t' => b't',
            c if c < ' ' => {
                let escape = format!("\\u{:04x}", u32::from(c));
                return self.out.extend_from_slice(escape.as_bytes());
            }
            c => return self.out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        };
        self.out.extend_from_slice(&[b'\\', short]);
    }

    fn number(&mut self) -> Result<(), JcsError> {
        let lexeme = number::lexeme(&self.text[self.at..])
            .map_err(|skip| JcsError::Syntax { offset: self.at + skip, reason: "a digit" })?;
        let written = match self.style {
            Style::Jcs => number::ecmascript(lexeme),
            Style::Python => number::python(lexeme),
            Style::AsWritten => Some(lexeme.into()),
        };
        let written = written.ok_or(JcsError::Number { offset: self.at })?;
        self.out.extend_from_slice(written.as_bytes());
        self.at += lexeme.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
