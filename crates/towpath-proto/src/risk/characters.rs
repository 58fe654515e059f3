//! Invisible characters, and characters that change the display order.

use super::detector::{Detector, Signals};

/// Number of adjacent invisible characters that typography does not need.
const INVISIBLE_RUN: usize = 6;

/// Number of adjacent variation selectors that no letter needs.
const SELECTOR_RUN: usize = 3;

/// Returns `true` if the character is invisible and does not change the meaning of the text.
pub(super) fn is_invisible(c: char) -> bool {
    is_zero_width(c) || is_direction(c) || is_tag(c) || is_variation_selector(c) || c == '\u{ad}'
}

fn is_zero_width(c: char) -> bool {
    matches!(
        c,
        '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{180e}' | '\u{34f}'
            | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' | '\u{206a}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}'
    )
}

fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn is_tag(c: char) -> bool {
    matches!(c, '\u{e0000}'..='\u{e007f}')
}

fn is_variation_selector(c: char) -> bool {
    matches!(c, '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}')
}

/// Inspects the characters of `text` and returns the text spelled by its tag characters.
pub(super) fn inspect(text: &str, signals: &mut Signals) -> String {
    signals.set_if(Detector::TerminalEscape, has_terminal_escape(text));
    // Everything below concerns characters beyond ASCII.
    if text.is_ascii() {
        return String::new();
    }
    let mut state = CharacterScan::default();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c.is_ascii() {
            state.visible(c);
        } else {
            state.other(c, chars.peek().copied(), signals);
        }
    }
    signals.set_if(Detector::BidiUnbalanced, state.embeddings > 0 || state.isolates > 0);
    state.spelled
}

/// Returns `true` for an ESC that begins a control sequence or an operating system command.
fn has_terminal_escape(text: &str) -> bool {
    let bytes = text.as_bytes();
    let escapes = memchr::memchr_iter(0x1b, bytes);
    escapes.into_iter().any(|at| matches!(bytes.get(at + 1), Some(b'[' | b']' | b'P' | b'_' | b'^' | b'c')))
}

#[derive(Default)]
struct CharacterScan {
    /// Last visible character.
    last: Option<char>,
    invisible: usize,
    selectors: usize,
    /// Within the tag characters of a black flag, such as England's.
    in_flag: bool,
    embeddings: usize,
    isolates: usize,
    spelled: String,
}

impl CharacterScan {
    fn visible(&mut self, c: char) {
        // A visible character ends every run.
        self.last = Some(c);
        self.invisible = 0;
        self.selectors = 0;
        self.in_flag = c == '\u{1f3f4}';
    }

    fn other(&mut self, c: char, next: Option<char>, signals: &mut Signals) {
        if is_tag(c) {
            self.tag(c, signals);
        } else if is_variation_selector(c) {
            self.selectors += 1;
            signals.set_if(Detector::VariationSelectorRun, self.selectors >= SELECTOR_RUN);
        } else if is_zero_width(c) || is_direction(c) {
            self.direction(c, signals);
            self.invisible += 1;
            signals.set_if(Detector::InvisibleRun, self.invisible >= INVISIBLE_RUN);
            let latin = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphabetic());
            signals.set_if(Detector::ZeroWidthInWord, is_zero_width(c) && latin(self.last) && latin(next));
        } else {
            // U+009B is the control sequence introducer as a single character of Latin-1.
            signals.set_if(Detector::TerminalEscape, c == '\u{9b}');
            self.visible(c);
        }
    }

    fn tag(&mut self, c: char, signals: &mut Signals) {
        let meant = u32::from(c) - 0xe0000;
        // Flags of regions, as in Unicode's emoji tag sequences, are legitimate.
        let fits_flag = matches!(meant, 0x30..=0x39 | 0x61..=0x7a | 0x7f);
        if self.in_flag && fits_flag {
            self.in_flag = meant != 0x7f;
            return;
        }
        signals.set(Detector::TagCharacters);
        self.spelled.extend(char::from_u32(meant).filter(|c| matches!(c, ' '..='~')));
    }

    fn direction(&mut self, c: char, signals: &mut Signals) {
        match c {
            '\u{202d}' | '\u{202e}' => {
                signals.set(Detector::BidiOverride);
                self.embeddings += 1;
            }
            '\u{202a}' | '\u{202b}' => self.embeddings += 1,
            '\u{202c}' => self.embeddings = self.embeddings.saturating_sub(1),
            '\u{2066}'..='\u{2068}' => self.isolates += 1,
            '\u{2069}' => self.isolates = self.isolates.saturating_sub(1),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<Detector> {
        let mut signals = Signals::default();
        inspect(text, &mut signals);
        Detector::ALL.iter().map(|(detector, _)| *detector).filter(|d| signals.has(*d)).collect()
    }

    #[test]
    fn tag_characters_are_read() {
        let hidden: String =
            "Ignore this".chars().map(|c| char::from_u32(0xe0000 + c as u32).unwrap()).collect();
        let mut signals = Signals::default();
        assert_eq!(inspect(&format!("Hello{hidden} you"), &mut signals), "Ignore this");
        assert!(signals.has(Detector::TagCharacters));
    }

    #[test]
    fn ordinary_writing_is_left_alone() {
        for text in [
            "🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f} England",
            "family 👨\u{200d}👩\u{200d}👧\u{200d}👦 and ❤\u{fe0f}",
            "می\u{200c}خواهم",
            "\u{feff}a byte order mark",
            "שלום \u{2067}abc\u{2069} \u{202a}x\u{202c} \u{200f}",
            "hyphen\u{ad}ation, naïve, 中文",
            "क्\u{200d}ष",
        ] {
            assert_eq!(found(text), [], "{text:?}");
        }
    }

    #[test]
    fn characters_that_hide_are_found() {
        use Detector::*;
        assert_eq!(found("a\u{202e}fdp.exe"), [BidiOverride, BidiUnbalanced]);
        assert_eq!(found("\u{2067}never closed"), [BidiUnbalanced]);
        assert_eq!(found("pass\u{200b}word"), [ZeroWidthInWord]);
        assert_eq!(found(&format!("x {} y", "\u{200b}\u{200c}".repeat(4))), [InvisibleRun]);
        assert_eq!(found("😀\u{e0101}\u{e0102}\u{e0103}"), [VariationSelectorRun]);
        assert_eq!(found("red \u{1b}[31m"), [TerminalEscape]);
        assert_eq!(found("red \u{9b}31m"), [TerminalEscape]);
        assert_eq!(found("title \u{1b}]0;x\u{7}"), [TerminalEscape]);
        assert_eq!(found("🏴\u{e0049}x"), [TagCharacters], "a flag has small letters and digits only");
    }
}
