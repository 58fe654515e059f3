//! Canonical JSON: RFC 8785 (JCS), and the form of Python's `json.dumps`.
//!
//! Works on JSON *text* in a single pass, because the forms depend on how a number is written: `0.0` and `0`
//! are equal values. The result is about as large as the text. An object with sorted keys is copied through,
//! so canonical input costs little more than parsing.

use std::ops::Range;

mod key;
mod number;

use key::{decode, utf16_order};
pub(crate) use number::lexeme;

/// Maximum nesting depth of arrays and objects.
pub const MAX_DEPTH: usize = 128;

/// Canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Style {
    /// RFC 8785: numbers as in ECMAScript, keys in the order of their UTF-16 code units.
    Jcs,
    /// `json.dumps(obj, sort_keys=True, separators=(',',':'), ensure_ascii=False)`: numbers as in Python
    /// (`0.0`, `1e-07`, integers of any size), keys in the order of their code points.
    Python,
    /// Numbers as written, of any size and precision; keys in the order of their code points.
    AsWritten,
}

/// Error of canonicalization. Offsets are bytes from the start of the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JcsError {
    /// The text is not JSON.
    #[error("not JSON at byte {offset}: {reason}")]
    Syntax {
        /// Offset of the error.
        offset: usize,
        /// Expected syntax.
        reason: &'static str,
    },
    /// Arrays and objects nest deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} at byte {offset}")]
    Depth {
        /// Offset of the bracket.
        offset: usize,
    },
    /// The number cannot be represented (RFC 8785, section 3.2.2.3): an integer beyond ±(2^53 - 1), or beyond
    /// the range of a double.
    #[error("the number at byte {offset} is beyond what RFC 8785 can write exactly")]
    Number {
        /// Offset of the number.
        offset: usize,
    },
    /// An object has a duplicate key (RFC 8785, section 3.1, by way of I-JSON). Python keeps the last.
    #[error("an object that begins at byte {offset} has a key twice")]
    DuplicateKey {
        /// Offset of the object.
        offset: usize,
    },
}

/// Returns the canonical form of a JSON text.
pub fn canonical(text: &[u8], style: Style) -> Result<Vec<u8>, JcsError> {
    canonical_without(text, style, &[])
}

/// Returns the canonical form of a JSON text, without these members of the outermost object.
pub fn canonical_without(text: &[u8], style: Style, without: &[&str]) -> Result<Vec<u8>, JcsError> {
    let text = match std::str::from_utf8(text) {
        Ok(text) => text,
        Err(e) => return Err(JcsError::Syntax { offset: e.valid_up_to(), reason: "UTF-8" }),
    };
    let mut writer = CanonicalWriter {
        text: text.as_bytes(),
        at: 0,
        style,
        // The result is at most a little longer than the text: one allocation in the common case.
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

/// Returns the canonical form of a JSON value.
pub fn canonical_value(value: &serde_json::Value, style: Style) -> Result<Vec<u8>, JcsError> {
    canonical(value.to_string().as_bytes(), style)
}

/// Member of an object, already written to [`CanonicalWriter::out`].
struct Member {
    /// Decoded key, if it has escapes; otherwise the text between the quotes.
    decoded: Option<String>,
    /// Range of the key in `out`, between its quotes.
    key: Range<usize>,
    /// End of the member in `out`; it begins at the quote before `key`.
    end: usize,
}

impl Member {
    /// Returns the decoded key of a member in `out`.
    fn name<'m>(&'m self, out: &'m [u8]) -> &'m [u8] {
        self.decoded.as_deref().map_or(&out[self.key.clone()], str::as_bytes)
    }
}

struct CanonicalWriter<'a> {
    text: &'a [u8],
    at: usize,
    style: Style,
    out: Vec<u8>,
    /// Members of all open objects, outermost first.
    members: Vec<Member>,
    scratch: Vec<u8>,
}

impl CanonicalWriter<'_> {
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
        // The writer is recursive; without a limit a hostile text would overflow the stack.
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
            // Members are only left out of the outermost object.
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

    /// Writes the members in input order, each followed by a comma, then sorts them.
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
        // Removes the comma after the last member.
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
        // Compared after decoding: a key may be written with escapes.
        if without.iter().any(|w| w.as_bytes() == member.name(&self.out)) {
            self.out.truncate(begin);
        } else {
            self.members.push(member);
        }
        Ok(())
    }

    /// Sorts the members from index `first`, which begin at `start` in `out`.
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
        // Sorted and distinct keys, the common case for canonical input, need no copy.
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
            // Python's dict keeps the last value of a repeated key.
            if !again {
                scratch.extend_from_slice(&out[member.key.start - 1..member.end]);
            }
        }
        out.truncate(start);
        out.extend_from_slice(scratch);
        Ok(())
    }

    /// Copies a string with the shortest escapes. Returns the decoded string if it differs from the text.
    fn string(&mut self) -> Result<Option<String>, JcsError> {
        self.at += 1;
        self.out.push(b'"');
        let begin = self.out.len();
        let mut escaped = false;
        loop {
            let rest = &self.text[self.at..];
            let plain = &rest[..memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len())];
            // Folded without branches, so that the compiler vectorizes it. The position is searched only
            // after a hit.
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
                // A lone surrogate is not a character, and UTF-8 cannot express it.
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

    /// Parses the four hex digits of a `\u` escape at `at`.
    fn hex4(&self, at: usize) -> Result<u32, JcsError> {
        let bad = JcsError::Syntax { offset: at, reason: "\\u and four hex digits" };
        let Some(escape) = self.text.get(at..at + 6) else { return Err(bad) };
        // A sign or a space would pass from_str_radix.
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
            // RFC 8785, section 3.2.2.2: other control characters have lower-case hex escapes.
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
