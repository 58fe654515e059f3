//! Control characters that were meant as characters of Windows-1252.

use std::borrow::Cow;

use encoding_rs::WINDOWS_1252;

use super::position::line_and_column;

/// Length of the longest reference to such a character.
const LONGEST: usize = "&#x00009f;".len();

/// Replaces control characters from U+0080 on, and references to them, as HTML does: programs that took Windows-1252
/// for ISO 8859-1 wrote them for quotation marks and dashes, and nobody writes them on purpose.
pub(super) fn replace_controls<'a>(text: Cow<'a, str>, problems: &mut Vec<String>) -> Cow<'a, str> {
    let bytes = text.as_bytes();
    let mut replaced = String::new();
    let mut copied = 0;
    // Both begin with a byte that few documents have often.
    for at in memchr::memchr2_iter(b'&', 0xC2, bytes) {
        let Some((length, character)) = control(&bytes[at..]) else { continue };
        if copied == 0 {
            let (line, column) = line_and_column(bytes, at);
            problems
                .push(format!("line {line}, column {column}: control characters were read as Windows-1252"));
        }
        replaced.push_str(&text[copied..at]);
        replaced.push(character);
        copied = at + length;
    }
    if copied == 0 {
        return text;
    }
    replaced.push_str(&text[copied..]);
    Cow::Owned(replaced)
}

/// Returns the length of a control character or reference at the beginning, and what was meant.
fn control(bytes: &[u8]) -> Option<(usize, char)> {
    let (length, code) = match bytes {
        [0xC2, code @ 0x80..=0x9F, ..] => (2, *code),
        [b'&', b'#', rest @ ..] => {
            let end = rest.iter().take(LONGEST).position(|b| *b == b';')?;
            let number = std::str::from_utf8(&rest[..end]).ok()?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u8::from_str_radix(digits, 16),
                None => number.parse(),
            };
            (end + 3, code.ok().filter(|code| (0x80..=0x9F).contains(code))?)
        }
        _ => return None,
    };
    let one = [code];
    let meant = WINDOWS_1252.decode_without_bom_handling(&one).0.chars().next()?;
    // Five codes have no character there.
    (!meant.is_control()).then_some((length, meant))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_become_what_was_meant() {
        for (text, meant) in [
            ("it\u{92}s", "it’s"),
            ("\u{93}a\u{94} &#150; &#x85; &#x00097;", "“a” – … —"),
            ("é « \u{a0} &#160; &amp;#150; &#x80", "é « \u{a0} &#160; &amp;#150; &#x80"),
            // No character has these codes.
            ("\u{81}&#141;", "\u{81}&#141;"),
        ] {
            let mut problems = Vec::new();
            assert_eq!(replace_controls(text.into(), &mut problems), meant);
            assert_eq!(problems.len(), usize::from(text != meant), "{problems:?}");
        }
        let mut problems = Vec::new();
        replace_controls("a\n &#150;".into(), &mut problems);
        assert_eq!(problems, ["line 2, column 2: control characters were read as Windows-1252"]);
    }
}
