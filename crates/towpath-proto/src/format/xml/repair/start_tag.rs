//! Start tags as they are written in feeds.

/// Maximum number of attributes of a tag that are kept.
pub(super) const MAX_ATTRIBUTES: usize = 256;

/// Parts of a start tag.
pub(super) struct StartTag<'i> {
    pub(super) name: &'i str,
    pub(super) attributes: Vec<(&'i str, &'i str, usize)>,
    pub(super) is_empty: bool,
    /// Length with both brackets; `None` if the document ends within the tag.
    pub(super) length: Option<usize>,
    /// The tag is not as XML wants it.
    pub(super) is_wrong: bool,
}

/// Reads a start tag; `None` if a `<` begins none.
pub(super) fn read_tag(rest: &str) -> Option<StartTag<'_>> {
    let bytes = rest.as_bytes();
    let name_end = (1..bytes.len()).find(|at| !is_name_byte(bytes[*at])).unwrap_or(bytes.len());
    let name = &rest[1..name_end];
    if !name.starts_with(|c: char| c.is_alphabetic() || c == '_') || name.ends_with(':') {
        return None;
    }
    let mut tag = StartTag { name, attributes: Vec::new(), is_empty: false, length: None, is_wrong: false };
    // A second colon is part of no name.
    tag.is_wrong = name.matches(':').count() > 1;
    let mut at = name_end;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'>' => {
                tag.length = Some(at + 1);
                return Some(tag);
            }
            // Another tag begins: this one lacks its end.
            b'<' => {
                tag.is_wrong = true;
                tag.length = Some(at);
                return Some(tag);
            }
            b'/' if bytes.get(at + 1) == Some(&b'>') => {
                (tag.is_empty, tag.length) = (true, Some(at + 2));
                return Some(tag);
            }
            b if is_name_byte(b) => at = read_attribute(rest, at, &mut tag),
            b if b.is_ascii_whitespace() => at += 1,
            _ => {
                tag.is_wrong = true;
                at += 1;
            }
        }
    }
    Some(tag)
}

/// Reads an attribute; returns its end.
fn read_attribute<'i>(rest: &'i str, from: usize, tag: &mut StartTag<'i>) -> usize {
    let bytes = rest.as_bytes();
    let skip_space = |mut at: usize| {
        while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        at
    };
    let mut at = from;
    while bytes.get(at).is_some_and(|b| is_name_byte(*b)) {
        at += 1;
    }
    let name = &rest[from..at];
    let equals = skip_space(at);
    let (mut value, mut value_at) = ("", at);
    if bytes.get(equals) == Some(&b'=') {
        value_at = skip_space(equals + 1);
        match bytes.get(value_at) {
            Some(&quote @ (b'"' | b'\'')) => {
                value_at += 1;
                let end = memchr::memchr(quote, &bytes[value_at..]).map_or(rest.len(), |n| value_at + n);
                match open_end(&rest[value_at..end], bytes.get(end + 1)) {
                    Some(length) => {
                        tag.is_wrong = true;
                        at = value_at + length;
                        value = &rest[value_at..at];
                    }
                    None => {
                        value = &rest[value_at..end];
                        at = (end + 1).min(rest.len());
                    }
                }
            }
            _ => {
                tag.is_wrong = true;
                let ends = |b: &u8| b.is_ascii_whitespace() || matches!(b, b'>' | b'<');
                let end = bytes[value_at..].iter().position(ends).map_or(rest.len(), |n| value_at + n);
                let end = if rest[value_at..end].ends_with('/') && bytes.get(end) == Some(&b'>') {
                    end - 1
                } else {
                    end
                };
                value = &rest[value_at..end];
                at = end;
            }
        }
    } else {
        tag.is_wrong = true;
    }
    let is_name = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && !name.ends_with(':')
        && name.matches(':').count() < 2;
    let is_new = tag.attributes.iter().all(|(known, ..)| *known != name);
    if is_name && is_new && tag.attributes.len() < MAX_ATTRIBUTES {
        tag.attributes.push((name, value, value_at));
    } else {
        tag.is_wrong = true;
    }
    at
}

/// Returns the length of a value that lacks its quotation mark, so that the next tag's was taken for it.
///
/// `next` is the byte behind that one: a value's end is followed by space or by the end of its tag.
fn open_end(value: &str, next: Option<&u8>) -> Option<usize> {
    let is_closed = next.is_none_or(|b| b.is_ascii_whitespace() || matches!(b, b'>' | b'/' | b'?'));
    let end = value.find('>').filter(|end| !is_closed && value[*end..].contains('<'))?;
    Some(if value[..end].ends_with('/') { end - 1 } else { end })
}

pub(super) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_' | b'-' | b'.') || byte >= 0x80
}
