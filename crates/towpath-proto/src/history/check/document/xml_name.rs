//! Names, white space and references of XML 1.0 (sections 2.3 and 4.1).

use crate::format::xml::is_xml_char;

/// Returns true for a character that may begin a name.
pub(super) fn is_name_start(c: char) -> bool {
    matches!(c, 'A'..='Z' | 'a'..='z' | '_' | '\u{C0}'..='\u{D6}' | '\u{D8}'..='\u{F6}' | '\u{F8}'..='\u{2FF}'
        | '\u{370}'..='\u{37D}' | '\u{37F}'..='\u{1FFF}' | '\u{200C}'..='\u{200D}' | '\u{2070}'..='\u{218F}'
        | '\u{2C00}'..='\u{2FEF}' | '\u{3001}'..='\u{D7FF}' | '\u{F900}'..='\u{FDCF}' | '\u{FDF0}'..='\u{FFFD}'
        | '\u{10000}'..='\u{EFFFF}')
}

/// Returns true for a character of a name, and for the colon.
pub(super) fn is_name_char(c: char) -> bool {
    is_name_start(c)
        || matches!(c, ':' | '-' | '.' | '0'..='9' | '\u{B7}' | '\u{300}'..='\u{36F}' | '\u{203F}'..='\u{2040}')
}

/// Returns true for the white space of XML.
pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// Returns true for a name with at most one prefix (Namespaces in XML, section 4).
pub(super) fn is_name(name: &str) -> bool {
    let mut parts = name.split(':');
    let (first, second) = (parts.next().unwrap_or_default(), parts.next());
    let is_part = |part: &str| part.starts_with(is_name_start);
    is_part(first) && second.is_none_or(is_part) && parts.next().is_none()
}

/// Returns true if the text between `&` and `;` has the form of a reference.
pub(super) fn is_reference(name: &str) -> bool {
    match name.strip_prefix('#') {
        Some(number) => !number.is_empty() && number.len() <= 10,
        None => name.len() <= 64 && is_name(name) && name.chars().all(is_name_char),
    }
}

/// Returns the character of a reference that needs no DTD.
pub(super) fn expansion(name: &str) -> Option<char> {
    let number = match name {
        "amp" => return Some('&'),
        "lt" => return Some('<'),
        "gt" => return Some('>'),
        "quot" => return Some('"'),
        "apos" => return Some('\''),
        _ => name.strip_prefix('#')?,
    };
    let code = match number.strip_prefix('x') {
        Some(hex) => u32::from_str_radix(hex, 16).ok()?,
        None => number.parse().ok()?,
    };
    char::from_u32(code).filter(|c| is_xml_char(*c))
}
