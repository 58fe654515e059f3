//! Repair of values that JSON does not have and some writers write: `NaN`, infinities, lone surrogates, control
//! characters in texts. Each costs its value only.
//!
//! It runs only after the strict reader has refused a document.

use super::position::line_and_column;
use super::problems::Problems;

/// Returns the document with values that JSON has, and a warning for each change; `None` without any.
pub(crate) fn repair(text: &str) -> Option<(String, Problems)> {
    let mut repair =
        Repair { text, out: String::with_capacity(text.len()), from: 0, problems: Problems::default() };
    let bytes = text.as_bytes();
    let (mut at, mut in_string, mut changed) = (0, false, false);
    while at < bytes.len() {
        let rest = &text[at..];
        let replaced = match bytes[at] {
            b'"' => {
                in_string = !in_string;
                None
            }
            b'\\' if in_string => match escape(rest) {
                Escape::Fine(length) => {
                    at += length;
                    continue;
                }
                Escape::Lone => Some((6, "\\ufffd", "half a surrogate pair became U+FFFD")),
            },
            b'\t' if in_string => Some((1, "\\t", "a tab in a text")),
            b'\n' if in_string => Some((1, "\\n", "a line break in a text")),
            b'\r' if in_string => Some((1, "\\r", "a line break in a text")),
            byte if in_string && byte < 0x20 => Some((1, "\\ufffd", "a control character became U+FFFD")),
            b'N' | b'I' | b'-' if !in_string => number(rest),
            _ => None,
        };
        match replaced {
            Some((length, with, why)) => {
                repair.replace(at, length, with, why);
                changed = true;
                at += length;
            }
            // Bytes are looked at one by one; slices begin at ASCII only.
            None => at += rest.chars().next().map_or(1, char::len_utf8),
        }
    }
    repair.out.push_str(&text[repair.from..]);
    changed.then_some((repair.out, repair.problems))
}

struct Repair<'a> {
    text: &'a str,
    out: String,
    /// Beginning of what is not copied yet.
    from: usize,
    problems: Problems,
}

impl Repair<'_> {
    fn replace(&mut self, at: usize, length: usize, with: &str, why: &str) {
        self.out.push_str(&self.text[self.from..at]);
        self.out.push_str(with);
        self.from = at + length;
        self.problems.warn(|| {
            let (line, column) = line_and_column(self.text.as_bytes(), at);
            format!("line {line}, column {column}: {why}")
        });
    }
}

enum Escape {
    /// An escape of this length, or a whole pair.
    Fine(usize),
    /// Half a pair of surrogates, of six bytes.
    Lone,
}

fn escape(rest: &str) -> Escape {
    let unit = |text: &str| {
        let digits = text.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok().filter(|_| !digits.contains('+'))
    };
    match unit(rest) {
        Some(0xD800..=0xDBFF) => match rest.get(6..).and_then(unit) {
            Some(0xDC00..=0xDFFF) => Escape::Fine(12),
            _ => Escape::Lone,
        },
        Some(0xDC00..=0xDFFF) => Escape::Lone,
        Some(_) => Escape::Fine(6),
        // The character behind the backslash is part of the escape, whatever it is.
        None => Escape::Fine(1 + rest[1..].chars().next().map_or(0, char::len_utf8)),
    }
}

/// Returns the replacement of a number that JSON does not have.
fn number(rest: &str) -> Option<(usize, &'static str, &'static str)> {
    let names = ["NaN", "-NaN", "Infinity", "-Infinity"];
    let found = names.into_iter().find(|name| rest.starts_with(name))?;
    let is_word = rest[found.len()..].starts_with(|c: char| c.is_alphanumeric());
    (!is_word).then_some((found.len(), "null", "NaN or an infinity became null"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::json_pointers::Mapping;
    use crate::format::{Format, FormatError, ReadOptions, read};

    #[test]
    fn a_value_that_json_lacks_costs_that_value() {
        let (text, problems) = repair(
            "{\"a\": NaN, \"b\": [-Infinity,\nInfinity], \"c\": \"\\ud83d x \\ud83d\\ude00 \\udc00\", \"NaN\": \"NaN\tx\"}",
        )
        .unwrap();
        assert_eq!(
            text,
            "{\"a\": null, \"b\": [null,\nnull], \"c\": \"\\ufffd x \\ud83d\\ude00 \\ufffd\", \"NaN\": \"NaN\\tx\"}"
        );
        let (listed, counts) = problems.into_parts();
        assert_eq!((listed.len(), counts.warnings), (6, 6));
        assert_eq!(listed[0], "line 1, column 7: NaN or an infinity became null");
        assert!(listed[2].starts_with("line 2, column 1: "), "{listed:?}");
        for fine in ["{}", "[\"\\\\\", \"\\\"NaN\", -1, \"\\u00e9é\"]", "[NaNo]"] {
            assert!(repair(fine).is_none(), "{fine}");
        }
    }

    #[test]
    fn the_other_items_of_the_source_are_read() {
        let text = r#"{"list": [{"id": "a", "t": "x\ud800", "n": 1}, {"id": "b", "n": NaN}, {"id": "c"}]}"#;
        let mapping = Mapping {
            items: "/list".into(),
            id: "/id".into(),
            title: Some("/t".into()),
            summary: Some("/n".into()),
            ..Mapping::default()
        };
        let options = |repair| ReadOptions {
            format: Some(Format::Json),
            mapping: Some(&mapping),
            repair,
            ..ReadOptions::default()
        };
        assert!(matches!(read(text.as_bytes(), &options(false)), Err(FormatError::Malformed { .. })));
        let feed = read(text.as_bytes(), &options(true)).unwrap();
        assert_eq!((feed.items.len(), feed.counts.warnings, feed.counts.left_out), (3, 2, 0));
        assert_eq!(feed.items[0].title.as_deref(), Some("x\u{fffd}"));
        assert_eq!((feed.items[0].summary.as_deref(), feed.items[1].summary.as_deref()), (Some("1"), None));
        // What is broken otherwise stays an error, with its own place.
        let error = read(br#"{"list": [{"id": NaN}, {"id" "b"}]}"#, &options(true)).unwrap_err();
        assert!(matches!(error, FormatError::Malformed { column: 18, .. }), "{error}");
        let cut = read(br#"{"list": [{"id": "a", "n": NaN"#, &options(true)).unwrap_err();
        assert!(matches!(cut, FormatError::Malformed { .. } | FormatError::Truncated { .. }), "{cut}");
    }
}
