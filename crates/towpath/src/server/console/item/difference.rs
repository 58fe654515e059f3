//! Differences between two versions of an item: by field, and by line and word within texts.

use std::time::Duration;

use similar::{ChangeTag, TextDiff};
use towpath_proto::{Content, Item};

use super::super::pretty::pretty;
use super::super::text::{bytes, prefix};

/// Most bytes of each text that is compared.
const MAX_TEXT: usize = 512 << 10;
/// Longest time of one comparison. After it, the rest is shown as replaced.
const DEADLINE: Duration = Duration::from_millis(300);
/// Unchanged lines around a change.
const CONTEXT: usize = 3;
/// Most lines of a comparison.
const MAX_LINES: usize = 3000;

/// Difference of one field.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FieldDifference {
    pub(crate) name: &'static str,
    pub(crate) lines: Vec<DifferenceLine>,
    /// True if a text was too long to be compared whole.
    pub(crate) is_cut: bool,
}

/// A line of a comparison.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DifferenceLine {
    pub(crate) kind: LineKind,
    /// Number in the old text, from 1.
    pub(crate) old: Option<usize>,
    /// Number in the new text.
    pub(crate) new: Option<usize>,
    /// Parts of the text; true for those that differ within the line.
    pub(crate) parts: Vec<(bool, String)>,
}

/// Kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineKind {
    Same,
    Removed,
    Added,
    /// Unchanged lines are left out here.
    Skipped,
}

/// Returns the fields that differ.
pub(crate) fn compare(old: &Item, new: &Item) -> Vec<FieldDifference> {
    let time = |at: Option<jiff::Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let authors = |item: &Item| {
        let lines = item.authors.iter().map(|author| {
            let more = [author.email.as_deref(), author.url.as_deref()];
            let more: Vec<&str> = more.into_iter().flatten().collect();
            format!("{} {}", author.name, more.join(" ")).trim().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    let extra = |item: &Item| match item.extra.is_empty() {
        true => String::new(),
        // One byte more than is compared, so that it counts as cut.
        false => pretty(&item.extra, MAX_TEXT + 1),
    };
    let media_type =
        |item: &Item| item.content.as_ref().map(|content| content.media_type.clone()).unwrap_or_default();
    let (old_content, new_content) = content_texts(old.content.as_ref(), new.content.as_ref());
    let pairs = [
        ("title", text(&old.title), text(&new.title)),
        ("link", text(&old.url), text(&new.url)),
        ("summary", text(&old.summary), text(&new.summary)),
        ("authors", authors(old), authors(new)),
        ("tags", old.tags.join("\n"), new.tags.join("\n")),
        ("published", time(old.published), time(new.published)),
        ("updated", time(old.updated), time(new.updated)),
        ("media type", media_type(old), media_type(new)),
        ("content", old_content, new_content),
        ("further data", extra(old), extra(new)),
    ];
    let differs_beyond = |name: &str| match name {
        "content" => old.content != new.content,
        "further data" => old.extra != new.extra,
        _ => false,
    };
    pairs
        .into_iter()
        // Texts that are cut may differ behind their end.
        .filter(|(name, old, new)| old != new || (old.len() > MAX_TEXT && differs_beyond(name)))
        .map(|(name, old, new)| field(name, &old, &new))
        .collect()
}

/// Returns contents as texts that can be compared: JSON with a member on each line, unless only its text differs.
fn content_texts(old: Option<&Content>, new: Option<&Content>) -> (String, String) {
    let laid_out = (content_text(old), content_text(new));
    let (Some(old), Some(new)) = (old, new) else { return laid_out };
    // Numbers beyond 64 bits, the order of members and repeated ones are lost in the values.
    if laid_out.0 == laid_out.1 && laid_out.0.len() <= MAX_TEXT && old.bytes != new.bytes {
        return (old.text().unwrap_or_default().to_owned(), new.text().unwrap_or_default().to_owned());
    }
    laid_out
}

/// Returns content as text that can be compared.
fn content_text(content: Option<&Content>) -> String {
    let Some(content) = content else { return String::new() };
    if content.is_json() && content.bytes.len() <= MAX_TEXT {
        // One member on each line: a document without line breaks would differ as a whole.
        let value = serde_json::from_slice::<serde_json::Value>(&content.bytes).ok();
        if let Some(value) = value {
            return pretty(&value, MAX_TEXT + 1);
        }
    }
    match content.text() {
        Some(text) => text.to_owned(),
        None => format!("{} that are no text, {}", bytes(content.bytes.len() as u64), digest(&content.bytes)),
    }
}

fn digest(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    format!("SHA-256 {}", hex::encode(&Sha256::digest(bytes)[..8]))
}

fn field(name: &'static str, old: &str, new: &str) -> FieldDifference {
    // A line diff takes time by the product of both lengths in the worst case, and anybody may ask for a page.
    let cut = |text: &str| prefix(text, MAX_TEXT).to_owned();
    let (old_text, new_text) = (cut(old), cut(new));
    let is_cut = old_text.len() < old.len() || new_text.len() < new.len();
    let diff = TextDiff::configure().timeout(DEADLINE).diff_lines(old_text.as_str(), new_text.as_str());
    let mut lines = Vec::new();
    let deadline = std::time::Instant::now() + DEADLINE;
    for (index, group) in diff.grouped_ops(CONTEXT).iter().enumerate() {
        if index > 0 {
            lines.push(DifferenceLine { kind: LineKind::Skipped, old: None, new: None, parts: Vec::new() });
        }
        for op in group {
            for change in diff.iter_inline_changes_deadline(op, Some(deadline)) {
                let parts = change.iter_strings_lossy();
                let parts =
                    parts.map(|(differs, text)| (differs, text.trim_end_matches(['\n', '\r']).to_owned()));
                let parts = parts.filter(|(_, text)| !text.is_empty()).collect();
                let kind = match change.tag() {
                    ChangeTag::Equal => LineKind::Same,
                    ChangeTag::Delete => LineKind::Removed,
                    ChangeTag::Insert => LineKind::Added,
                };
                let number = |index: Option<usize>| index.map(|index| index + 1);
                lines.push(DifferenceLine {
                    kind,
                    old: number(change.old_index()),
                    new: number(change.new_index()),
                    parts,
                });
            }
        }
        if lines.len() > MAX_LINES {
            lines.truncate(MAX_LINES);
            return FieldDifference { name, lines, is_cut: true };
        }
    }
    FieldDifference { name, lines, is_cut }
}

/// Pairs the lines of a comparison for two columns: removed lines stand beside the added ones that follow them.
pub(super) fn side_by_side(
    lines: &[DifferenceLine],
) -> Vec<(Option<&DifferenceLine>, Option<&DifferenceLine>)> {
    let mut rows = Vec::new();
    let mut rest = lines;
    while let Some(first) = rest.first() {
        if matches!(first.kind, LineKind::Same | LineKind::Skipped) {
            rows.push((Some(first), Some(first)));
            rest = &rest[1..];
            continue;
        }
        let removed = rest.iter().take_while(|line| line.kind == LineKind::Removed).count();
        let added = rest[removed..].iter().take_while(|line| line.kind == LineKind::Added).count();
        for index in 0..removed.max(added) {
            let old = (index < removed).then(|| &rest[index]);
            let new = (index < added).then(|| &rest[removed + index]);
            rows.push((old, new));
        }
        rest = &rest[removed + added..];
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(title: &str, text: &str) -> Item {
        Item {
            title: Some(title.into()),
            content: Some(Content::new("text/plain", text.to_owned())),
            ..Item::new("a")
        }
    }

    #[test]
    fn fields_and_words_that_differ() {
        let differences =
            compare(&item("Ten boats", "one\ntwo\nthree\n"), &item("Ten ships", "one\ntwo\nthree\n"));
        assert_eq!(differences.len(), 1);
        assert_eq!(differences[0].name, "title");
        let words = |line: &DifferenceLine| -> Vec<String> {
            line.parts.iter().filter(|(differs, _)| *differs).map(|(_, text)| text.clone()).collect()
        };
        assert_eq!(differences[0].lines.iter().map(words).collect::<Vec<_>>(), [["boats"], ["ships"]]);
        assert!(compare(&item("a", "b"), &item("a", "b")).is_empty());
    }

    #[test]
    fn json_differs_by_member() {
        let json = |text: &str| Item {
            content: Some(Content::new("application/json", text.to_owned())),
            ..Item::new("a")
        };
        let differences = compare(&json(r#"{"a":1,"b":2}"#), &json(r#"{"a":1,"b":3}"#));
        let changed = differences[0].lines.iter().filter(|line| line.kind != LineKind::Same).count();
        assert_eq!(changed, 2);
    }

    /// Beyond what numbers in memory hold, and where only the order of members, white space or a repetition differs.
    #[test]
    fn json_that_differs_as_text_only() {
        let json = |text: &str| Item {
            content: Some(Content::new("application/json", text.to_owned())),
            ..Item::new("a")
        };
        for (old, new) in [
            (r#"{"z":12345678901234567890124}"#, r#"{"z":12345678901234567890125}"#),
            (r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#),
            (r#"{"a":1}"#, r#"{"a":2,"a":1}"#),
        ] {
            let differences = compare(&json(old), &json(new));
            let kinds: Vec<_> = differences[0].lines.iter().map(|line| line.kind).collect();
            assert_eq!(kinds, [LineKind::Removed, LineKind::Added], "{old}");
            assert!(compare(&json(old), &json(old)).is_empty());
        }
    }

    #[test]
    fn unchanged_lines_are_left_out() {
        let old: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let new = old.replace("line 10\n", "LINE 10\n").replace("line 90\n", "");
        let lines = &compare(&item("a", &old), &item("a", &new))[0].lines;
        assert_eq!(lines.iter().filter(|line| line.kind == LineKind::Skipped).count(), 1);
        assert!(lines.len() < 25);
        let rows = side_by_side(lines);
        let both =
            rows.iter().find(|(old, _)| old.is_some_and(|line| line.kind == LineKind::Removed)).unwrap();
        assert_eq!(both.1.unwrap().kind, LineKind::Added);
        assert!(rows.iter().any(|(old, new)| old.is_some() && new.is_none()));
    }

    /// A few hundred kilobytes of nested JSON are gigabytes with a line for each value.
    #[test]
    fn nested_data_is_cut() {
        let nested =
            |last: u8| format!("{}{}{last}{}", "[".repeat(120), "1,".repeat(200_000), "]".repeat(120));
        let item = |last: u8| {
            let mut item =
                Item { content: Some(Content::new("application/json", nested(last))), ..Item::new("a") };
            item.extra.insert("x".into(), serde_json::from_str(&nested(last)).unwrap());
            item
        };
        let differences = compare(&item(1), &item(2));
        assert_eq!(
            differences.iter().map(|field| field.name).collect::<Vec<_>>(),
            ["content", "further data"]
        );
        assert!(differences.iter().all(|field| field.is_cut && field.lines.len() <= MAX_LINES));
        assert!(compare(&item(1), &item(1)).is_empty());
    }

    #[test]
    fn huge_texts_are_cut() {
        let differences = compare(&item("a", &"x".repeat(1 << 21)), &item("a", &"y".repeat(1 << 21)));
        assert!(differences[0].is_cut);
        let old: String = (0..50_000).map(|n| format!("{n}\n")).collect();
        let new: String = (0..50_000).map(|n| format!("{}\n", n * 7)).collect();
        assert!(compare(&item("a", &old), &item("a", &new))[0].lines.len() <= MAX_LINES);
    }
}
