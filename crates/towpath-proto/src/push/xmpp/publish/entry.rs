//! Items in a stanza: as many Atom entries as fit ("Items are always formatted as Atom entries").

use percent_encoding::percent_decode_str;

use crate::change::Change;
use crate::format::document::encoded_id;
use crate::format::xml::{ATOM, XmlWriter, is_xml_text};
use crate::item::Item;
use crate::push::xmpp::wire::stanza::write_attribute;
use crate::smart::atom;
use crate::smart::pull::FeedSettings;
use crate::smart::spec::OrderBy;

/// Minimum room for a page, in bytes: the longest id in all its forms, and the markup around it.
pub const MIN_ROOM: usize = 32 << 10;
/// Maximum characters of a title in a reduced entry.
const SHORT_TITLE: usize = 200;

/// Items of a page that fit into a stanza.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fitting {
    /// `item` elements, in the given order.
    pub items: Vec<String>,
    /// `true` if some items did not fit.
    pub cut: bool,
}

/// Writes items in the given order until `room` bytes are used. The first item is always included: if it does
/// not fit, its entry refers to the content instead of holding it (RFC 4287, 4.1.3.2).
pub fn fit(feed: &FeedSettings, by: OrderBy, changes: &[Change], room: usize) -> Fitting {
    let mut fitting = Fitting::default();
    let mut used = 0;
    for change in changes {
        let mut item = item(feed, by, change);
        // An item is never left out: a follower would take the gap for a lost push and pull forever.
        if item.len() > room {
            item = self::item(feed, by, &reduced(feed, change));
        }
        used += item.len();
        if used > room && !fitting.items.is_empty() {
            // The rest goes into the next page, which begins after the last item here.
            fitting.cut = true;
            break;
        }
        fitting.items.push(item);
    }
    fitting
}

fn item(feed: &FeedSettings, by: OrderBy, change: &Change) -> String {
    let mut out = String::from("<item");
    write_attribute(&mut out, "id", &item_id(&change.item.id));
    out.push('>');
    out.push_str(&atom::entry(feed, by, change));
    out.push_str("</item>");
    out
}

/// Returns the id attribute of an item. An id that XML cannot hold is percent-encoded here; the entry holds
/// it in its own form.
pub fn item_id(id: &str) -> std::borrow::Cow<'_, str> {
    if is_xml_text(id) { id.into() } else { encoded_id(id).into() }
}

/// Returns the item id that is meant by the id attribute of an item: the inverse of [`item_id`].
pub fn stored_id(attribute: &str) -> String {
    // An id that XML can hold stands as it is, even if it looks encoded.
    let decoded = percent_decode_str(attribute).decode_utf8();
    match decoded {
        Ok(id) if item_id(&id) == attribute => id.into_owned(),
        _ => attribute.to_owned(),
    }
}

/// Returns a change with a link in place of the item's content.
fn reduced(feed: &FeedSettings, change: &Change) -> Change {
    let whole = &change.item;
    let mut item =
        Item { published: whole.published, updated: whole.updated, ..Item::new(whole.id.as_str()) };
    // A title may be as long as the content.
    item.title = whole.title.as_ref().map(|title| title.chars().take(SHORT_TITLE).collect());
    let mut xml = XmlWriter::default();
    xml.start("content").attribute("xmlns", ATOM);
    if let Some(content) = whole.content.as_ref().filter(|content| content.media_type.len() < SHORT_TITLE) {
        xml.attribute("type", &content.media_type);
    }
    // The reader can fetch the content over HTTP.
    xml.attribute("src", &format!("{}/{}", feed.base, encoded_id(&whole.id)));
    item.extra.insert("xml".into(), serde_json::json!([xml.finish()]));
    Change { item, patch: None, ..change.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Content;
    use crate::push::xmpp::wire::stream::read_one;
    use crate::smart::cursor::CursorKind;
    use crate::smart::tests::{change, settings};

    fn with_content(seq: u64, id: &str, bytes: usize) -> Change {
        let mut change = change(seq, id, 5);
        change.item.content = Some(Content::new("text/html", "x".repeat(bytes)));
        change
    }

    #[test]
    fn a_page_is_cut_where_the_stanza_is_full() {
        let feed = settings(CursorKind::Sequence);
        let changes: Vec<Change> = (1..=5).map(|seq| with_content(seq, &format!("i{seq}"), 10_000)).collect();
        let fitting = fit(&feed, OrderBy::Modified, &changes, MIN_ROOM);
        assert!(fitting.cut && fitting.items.len() == 3, "{}", fitting.items.len());
        assert!(fitting.items.iter().map(String::len).sum::<usize>() <= MIN_ROOM);
        let all = fit(&feed, OrderBy::Modified, &changes, 1 << 20);
        assert!(!all.cut && all.items.len() == 5);
        assert_eq!(fit(&feed, OrderBy::Modified, &[], 100), Fitting::default());
    }

    /// RFC 4287, 4.1.3.2: out-of-line content.
    #[test]
    fn an_item_that_does_not_fit_refers_to_its_content() {
        let feed = settings(CursorKind::Sequence);
        let mut large = with_content(1, "a b", 1 << 20);
        large.item.title = Some("t".repeat(1 << 20));
        large.item.summary = Some("s".repeat(1 << 20));
        let fitting = fit(&feed, OrderBy::Modified, &[large, change(2, "b", 5)], MIN_ROOM);
        assert!(!fitting.cut && fitting.items.len() == 2);
        let item = read_one(&fitting.items[0]).unwrap();
        assert_eq!(item.attribute("id"), Some("a b"));
        let content = item.child("entry", ATOM).unwrap().child("content", ATOM).unwrap();
        assert_eq!(content.attribute("src"), Some("http://example.com/feeds/a/items/a%20b"));
        assert_eq!(content.attribute("type"), Some("text/html"));
    }

    #[test]
    fn ids_come_back_from_attributes() {
        for id in ["a", "a b", "a%20b", "%", "\u{1}", "a\u{0}%41é", "100%"] {
            assert_eq!(stored_id(&item_id(id)), id);
        }
    }

    #[test]
    fn the_longest_ids_fit_into_the_least_room() {
        let feed = settings(CursorKind::Sequence);
        for id in ["\"".repeat(2048), "\u{1}".repeat(2048), "é".repeat(1024)] {
            let fitting = fit(&feed, OrderBy::Modified, &[with_content(1, &id, 1 << 20)], MIN_ROOM);
            assert!(fitting.items[0].len() <= MIN_ROOM, "{:.1}: {}", id, fitting.items[0].len());
            assert!(read_one(&fitting.items[0]).is_ok());
        }
    }
}
