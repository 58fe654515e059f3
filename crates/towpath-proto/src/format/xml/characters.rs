//! Characters that XML allows.

/// Returns `true` if XML 1.0 allows the character (section 2.2).
pub(crate) fn is_xml_char(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' => true,
        '\u{FFFE}' | '\u{FFFF}' => false,
        c => c >= ' ',
    }
}

/// Returns `true` if XML 1.0 allows every character of `text`.
pub(crate) fn is_xml_text(text: &str) -> bool {
    text.chars().all(is_xml_char)
}
