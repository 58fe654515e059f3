//! Escapes untrusted text for the terminal.

use std::fmt::Write as _;

use towpath_client::redact;

/// Escapes characters that a terminal acts on or does not show, including line breaks.
///
/// A publisher could otherwise send terminal escape sequences, or reorder the text that a reader sees.
pub(super) fn plain(text: &str) -> String {
    escaped(text, is_hidden)
}

/// Escapes a message about URLs that the user named, as [`plain`] does, and removes their users and passwords.
pub(super) fn message(text: &str) -> String {
    plain(&redact::credentials(text))
}

/// Escapes as [`plain`], but keeps the line breaks of a message of our own.
pub(super) fn plain_lines(text: &str) -> String {
    escaped(text, |c| c != '\n' && is_hidden(c))
}

fn escaped(text: &str, escapes: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if escapes(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// Escapes the same characters in JSON, whose values stay equal. The text has JSON's own escapes already.
pub(super) fn visible_json(json: Vec<u8>) -> Vec<u8> {
    // All that is escaped here is beyond printable ASCII, and so outside of JSON's syntax: it is in strings only.
    if json.iter().all(|byte| *byte < 0x7f) {
        return json;
    }
    // The serializer writes UTF-8.
    let Ok(text) = std::str::from_utf8(&json) else { return json };
    let mut shown = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        if c >= '\u{7f}' && is_hidden(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(c);
        }
    }
    shown.into_bytes()
}

/// Returns true for characters that change how a terminal shows other text, or that it does not show.
///
/// Joiners are left: emoji and several scripts need them.
fn is_hidden(c: char) -> bool {
    // C0, DEL, and C1: U+009B is "escape [" in one character.
    c.is_control()
        || matches!(
            c,
            // Bidirectional controls are not control characters to Rust, yet they can disguise a URL (Trojan Source).
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
            // Line and paragraph separators end lines for some programs.
            | '\u{2028}' | '\u{2029}'
            // A byte order mark, annotations and tags, which carry text that nobody sees.
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(plain("a\u{1b}[31mé😀\n\u{202e}b"), "a\\u{1b}[31mé😀\\n\\u{202e}b");
        assert_eq!(
            plain("\u{9b}2J\u{61c}\u{2028}\u{e0041}\u{7f}"),
            "\\u{9b}2J\\u{61c}\\u{2028}\\u{e0041}\\u{7f}"
        );
        assert_eq!(plain("👩\u{200d}💻 \\"), "👩\u{200d}💻 \\");
        assert_eq!(plain_lines("a\n\u{9b}b"), "a\n\\u{9b}b");
    }

    #[test]
    fn json_keeps_its_values() {
        for text in
            ["plain", "é😀\u{200d}\n\"", "\u{9b}2J\u{7f}", "\u{202e}\u{2066}x\u{e0041}\u{feff}\u{2029}"]
        {
            let json = visible_json(serde_json::to_vec(text).unwrap());
            assert_eq!(serde_json::from_slice::<String>(&json).unwrap(), text);
            let shown = String::from_utf8(json).unwrap();
            assert!(!shown.chars().any(is_hidden), "{shown:?}");
        }
        assert_eq!(visible_json("\"\u{9b}\u{e0041}\"".into()), b"\"\\u009b\\udb40\\udc41\"");
    }
}
