//! What others wrote, shown on a terminal.

/// The text on one line, without the control characters by which a publisher could write to the reader's
/// terminal whatever it likes.
pub(super) fn plain(text: &str) -> String {
    let show = |c: char| {
        let hidden = c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if hidden { c.escape_default().to_string() } else { c.to_string() }
    };
    text.chars().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_spelled_out() {
        assert_eq!(plain("a\u{1b}[31mé😀\n\u{202e}b"), "a\\u{1b}[31mé😀\\n\\u{202e}b");
    }
}
