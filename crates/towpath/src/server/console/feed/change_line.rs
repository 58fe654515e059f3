//! Summary of a change in a line: what it did to its item.

use towpath_proto::change::Change;
use towpath_proto::{Content, Item, Op};

use super::super::text::{bytes, clip};

/// Kind of a change for people, which is also its class in the style sheet.
pub(super) fn kind(change: &Change, previous: Option<&Change>) -> &'static str {
    let is_back = previous.is_some_and(|previous| previous.op == Op::Delete);
    match change.op {
        Op::Delete => "removed",
        _ if change.is_first() || is_back => "new",
        _ => "changed",
    }
}

/// Describes a change in one line.
pub(super) fn describe(change: &Change, previous: Option<&Change>) -> String {
    match (change.op, previous) {
        (Op::Delete, _) => "the item was removed".to_owned(),
        (_, Some(previous)) if previous.op == Op::Delete => "the item came back".to_owned(),
        (_, None) if change.is_first() => first(&change.item),
        (_, None) => "the version before it is no longer kept".to_owned(),
        (_, Some(previous)) => difference(&previous.item, &change.item),
    }
}

fn first(item: &Item) -> String {
    match &item.content {
        Some(content) => format!("first version, {} of {}", size(content), clip(&content.media_type, 60)),
        None => "first version".to_owned(),
    }
}

fn difference(old: &Item, new: &Item) -> String {
    let mut parts = Vec::new();
    if old.title != new.title {
        parts.push(match (&old.title, &new.title) {
            (Some(old), Some(new)) => format!("title “{}” → “{}”", clip(old, 50), clip(new, 50)),
            (None, Some(new)) => format!("title “{}”", clip(new, 60)),
            _ => "no title any more".to_owned(),
        });
    }
    match (&old.content, &new.content) {
        (Some(old), Some(new)) if old != new => parts.push(format!("content {} → {}", size(old), size(new))),
        (None, Some(new)) => parts.push(format!("content of {}", size(new))),
        (Some(_), None) => parts.push("no content any more".to_owned()),
        _ => {}
    }
    let others = [
        ("summary", old.summary != new.summary),
        ("link", old.url != new.url),
        ("authors", old.authors != new.authors),
        ("tags", old.tags != new.tags),
        ("date of publication", old.published != new.published),
        ("date of update", old.updated != new.updated),
        ("further data", old.extra != new.extra),
    ];
    parts.extend(others.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()));
    if parts.is_empty() { "no difference".to_owned() } else { parts.join(", ") }
}

fn size(content: &Content) -> String {
    bytes(content.bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_whose_earlier_one_was_let_go_is_no_first() {
        let at = jiff::Timestamp::UNIX_EPOCH;
        let later = Change {
            seq: 9,
            op: Op::Put,
            modified: at,
            created: at,
            first_seq: 1,
            previous: Some(1),
            item: Item::new("a"),
            patch: None,
            entry_id: None,
            hash: Item::new("a").content_hash(),
        };
        assert_eq!(
            (kind(&later, None), describe(&later, None).as_str()),
            ("changed", "the version before it is no longer kept")
        );
        let first = Change { previous: None, ..later };
        assert_eq!((kind(&first, None), describe(&first, None).as_str()), ("new", "first version"));
    }

    #[test]
    fn a_line_names_what_differs() {
        let old = Item { title: Some("Ten boats".into()), ..Item::new("a") };
        let content = Some(Content::new("text/plain", "x"));
        let new = Item { title: Some("Eleven".into()), tags: vec!["t".into()], content, ..Item::new("a") };
        assert_eq!(difference(&old, &new), "title “Ten boats” → “Eleven”, content of 1 byte, tags");
        assert_eq!(difference(&old, &old), "no difference");
        assert_eq!(first(&new), "first version, 1 byte of text/plain");
    }
}
