//! View of an item for the rules: texts by field, bounded in length and normalized.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use super::characters::is_invisible;
use crate::format::html;
use crate::item::{Content, Item};

/// Maximum length of a text that is scored whole, in bytes. A longer text is scored by its first and last
/// half of that size.
pub const MAX_TEXT: usize = 256 << 10;

/// Field of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ItemField {
    Title,
    Summary,
    Content,
    Url,
    Authors,
    Tags,
    Extra,
    /// Text that a reader does not see: hidden elements, comments, tag characters.
    Hidden,
    /// Decoded Base64.
    Encoded,
}

/// Set of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FieldSet(u16);

impl FieldSet {
    pub(super) const NONE: Self = Self(0);
    /// Every field except the URL.
    pub(super) const TEXT: Self = Self(!(1 << ItemField::Url as u16));

    pub(super) fn has(self, field: ItemField) -> bool {
        self.0 & (1 << field as u16) != 0
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<ItemField> for FieldSet {
    fn from_iter<I: IntoIterator<Item = ItemField>>(fields: I) -> Self {
        fields.into_iter().fold(Self::NONE, |all, field| all.and(Self(1 << field as u16)))
    }
}

/// Text of a field.
pub(super) struct ItemText<'a> {
    pub(super) field: ItemField,
    pub(super) text: Cow<'a, str>,
}

/// Iterates over the texts of `item`, each of bounded length.
pub(super) fn sources(item: &Item) -> impl Iterator<Item = ItemText<'_>> {
    let plain =
        [(ItemField::Title, &item.title), (ItemField::Summary, &item.summary), (ItemField::Url, &item.url)];
    let plain = plain.into_iter().filter_map(|(field, text)| Some((field, Cow::from(text.as_deref()?))));
    let content = item.content.as_ref().and_then(content_text).map(|text| (ItemField::Content, text));
    let authors = (!item.authors.is_empty()).then(|| (ItemField::Authors, authors(item).into()));
    let tags = (!item.tags.is_empty()).then(|| (ItemField::Tags, item.tags.join("\n").into()));
    let extra = (!item.extra.is_empty()).then(|| (ItemField::Extra, extra(item).into()));
    let texts = plain.chain(content).chain(authors).chain(tags).chain(extra);
    texts.map(|(field, text)| ItemText { field, text: clip(text) })
}

fn authors(item: &Item) -> String {
    let mut all = String::new();
    for author in &item.authors {
        for part in [Some(&author.name), author.email.as_ref(), author.url.as_ref()].into_iter().flatten() {
            all.push_str(part);
            all.push('\n');
        }
    }
    all
}

/// Returns every text in the extra values, a line each, without the keys.
fn extra(item: &Item) -> String {
    let mut all = String::new();
    // A work list in place of recursion: deeply nested values must not overflow the stack.
    let mut open: Vec<&Value> = item.extra.values().collect();
    while let Some(value) = open.pop() {
        match value {
            Value::String(text) => {
                all.push_str(text);
                all.push('\n');
            }
            Value::Array(values) => open.extend(values),
            Value::Object(values) => open.extend(values.values()),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    all
}

/// Returns the content as text, if it is text.
fn content_text(content: &Content) -> Option<Cow<'_, str>> {
    let text = match content.text() {
        Some(text) => Cow::from(text),
        // Text in a legacy character set is searched as far as it is readable.
        None if claims_text(content) => String::from_utf8_lossy(&content.bytes),
        None => return None,
    };
    // Only with escapes: other documents need no copy.
    if memchr::memchr(b'\\', text.as_bytes()).is_some() && content.is_json() {
        // Clipped first, so that the cost is bounded by the limit and not by the document.
        return Some(unescaped(&clip(text)).into());
    }
    Some(text)
}

/// Returns true if the media type is one of text.
fn claims_text(content: &Content) -> bool {
    let essence = content.essence();
    essence.starts_with("text/") || essence.contains("xml") || content.is_json()
}

/// Resolves the escapes in a JSON document's strings, so that they cannot hide text from the rules.
fn unescaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(escape) = rest.chars().next() else { break };
        rest = &rest[escape.len_utf8()..];
        match escape {
            'n' | 'r' | 't' => out.push('\n'),
            'b' | 'f' => out.push(' '),
            'u' => rest = push_code_unit(rest, &mut out),
            other => out.push(other),
        }
    }
    out.push_str(rest);
    out
}

/// Appends the character of `XXXX` or of the surrogate pair `XXXX\uXXXX`, and returns the rest.
fn push_code_unit<'a>(rest: &'a str, out: &mut String) -> &'a str {
    let unit = |text: &str| u32::from_str_radix(text.get(..4)?, 16).ok();
    let Some(first) = unit(rest) else { return rest };
    let after = &rest[4..];
    let second = after.strip_prefix("\\u").and_then(unit).filter(|low| (0xdc00..0xe000).contains(low));
    if let (0xd800..0xdc00, Some(low)) = (first, second) {
        out.extend(char::from_u32(0x10000 + ((first - 0xd800) << 10) + (low - 0xdc00)));
        return &after[6..];
    }
    out.push(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER));
    after
}

/// Returns the first and last halves of [`MAX_TEXT`] bytes of a longer text.
fn clip(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.len() <= MAX_TEXT {
        return text;
    }
    let head = boundary(&text, MAX_TEXT / 2);
    // Both ends, so that a text cannot be hidden behind a long beginning.
    let tail = boundary(&text, text.len() - MAX_TEXT / 2);
    format!("{}\n{}", &text[..head], &text[tail..]).into()
}

/// Returns the last character boundary at or before `at`, at most the text's end.
pub(super) fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|place| text.is_char_boundary(*place)).unwrap_or(0)
}

/// Normalizes a text for the patterns: white space collapsed, invisible characters removed, full-width and
/// mathematical letters mapped to ASCII.
pub(super) fn normal(text: &str) -> Cow<'_, str> {
    // Most texts are plain ASCII and need no copy.
    if html::is_collapsed(text) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii_graphic() {
            out.push(c);
        } else if c.is_whitespace() || c.is_control() {
            if !out.ends_with(' ') {
                out.push(' ');
            }
        } else if !is_invisible(c) {
            out.push(look_alike(c));
        }
    }
    out.into()
}

/// Maps a compatibility character to its ASCII letter or digit.
fn look_alike(c: char) -> char {
    let code = u32::from(c);
    let ascii = match code {
        0xff01..=0xff5e => code - 0xff01 + 0x21,
        0x1d400..=0x1d6a3 => match (code - 0x1d400) % 52 {
            upper @ 0..26 => u32::from(b'A') + upper,
            lower => u32::from(b'a') + lower - 26,
        },
        0x1d7ce..=0x1d7ff => u32::from(b'0') + (code - 0x1d7ce) % 10,
        _ => return c,
    };
    char::from_u32(ascii).unwrap_or(c)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn disguises_are_taken_off() {
        assert_eq!(normal("ig\u{200b}no\u{ad}re\n\n  all\u{a0}this"), "ignore all this");
        assert_eq!(normal("ｉｇｎｏｒｅ 𝐚𝐥𝐥 𝓻𝓾𝓵𝓮𝓼 𝟏"), "ignore all rules 1");
        assert!(matches!(normal("plain text"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_escapes_are_resolved() {
        assert_eq!(
            unescaped(r#"{"a":"\u202e\ud83d\ude00\n<\/script>\"\ud83d\u0041"}"#),
            "{\"a\":\"\u{202e}😀\n</script>\"\u{fffd}A\"}"
        );
        assert_eq!(unescaped(r"\u12"), "12");
        assert_eq!(unescaped("\\"), "");
    }

    #[test]
    fn long_texts_keep_both_ends() {
        let text = format!("head{}tail", "ä".repeat(MAX_TEXT));
        let clipped = clip(text.as_str().into());
        assert!(clipped.len() <= MAX_TEXT + 4);
        assert!(clipped.starts_with("head") && clipped.ends_with("tail"));
    }

    #[test]
    fn every_text_of_an_item_is_seen_once() {
        let mut item = Item::new("a");
        item.extra.insert("json_feed".into(), serde_json::json!({"k": ["deep", {"x": "er"}], "n": 1}));
        item.tags = vec!["t1".into(), "t2".into()];
        item.content = Some(Content::new("image/png", vec![0xff, 0x00]));
        let texts: Vec<(ItemField, String)> =
            sources(&item).map(|s| (s.field, s.text.into_owned())).collect();
        assert_eq!(texts[0], (ItemField::Tags, "t1\nt2".into()));
        assert_eq!(texts[1].0, ItemField::Extra);
        assert!(texts[1].1.contains("deep\n") && texts[1].1.contains("er\n"));
        assert_eq!(texts.len(), 2, "bytes that are no text are not searched");
    }

    proptest! {
        #[test]
        fn json_text_comes_back_from_its_escapes(text in "\\PC{0,40}") {
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(unescaped(&json), format!("\"{text}\""));
        }

        #[test]
        fn any_escape_is_survived(text in "[\\\\udDcC089a\"n/é]{0,40}") {
            unescaped(&text);
        }
    }
}
