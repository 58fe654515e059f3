//! Plan of the writes of a batch. Pure: rows are taken from the events, the last one of each item counts.

use std::collections::{BTreeSet, HashMap};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use towpath_client::sink::{RefusedItem, SinkEvent};
use towpath_proto::follow::Followed;
use towpath_proto::{Content, Item, Op, patch};

use crate::tables::{ItemRow, KeepChanges, Repeats, position};

/// Key of an item: feed and id.
pub(super) type ItemKey = (String, String);

/// Effects of a batch.
#[derive(Debug, Default)]
pub(super) struct BatchPlan {
    /// Feeds whose items are void.
    pub(super) wiped: BTreeSet<String>,
    /// The items of all feeds of the source are void.
    pub(super) wipes_source: bool,
    /// Feeds of the batch.
    pub(super) feeds: BTreeSet<String>,
    /// Items as they are after the batch.
    pub(super) puts: Vec<ItemValues>,
    /// Items that are gone after the batch.
    pub(super) deleted: Vec<ItemKey>,
    /// Rows of the history.
    pub(super) changes: Vec<ChangeValues>,
}

/// Values of a row of `items`.
#[derive(Debug)]
pub(super) struct ItemValues {
    pub(super) feed: String,
    pub(super) item: Item,
    pub(super) authors: String,
    pub(super) tags: String,
    pub(super) extra: String,
    pub(super) modified: Option<Timestamp>,
    pub(super) position: String,
}

impl ItemValues {
    fn new(feed: &str, item: Item, change: &Followed) -> Self {
        let ItemRow { authors, tags, extra, .. } = ItemRow::of(&item);
        Self {
            feed: feed.to_owned(),
            authors,
            tags,
            extra,
            modified: change.modified,
            position: position(change),
            item,
        }
    }

    /// Content, if it is text that the database can keep as such.
    pub(super) fn text(&self) -> Option<&str> {
        self.item.content.as_ref().and_then(Content::text).filter(|text| !text.contains('\0'))
    }

    /// Content, if the database cannot keep it as text.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        let content = self.item.content.as_ref().filter(|_| self.text().is_none());
        content.map(|content| &content.bytes[..])
    }
}

/// Values of a row of `changes`.
#[derive(Debug)]
pub(super) struct ChangeValues {
    pub(super) feed: String,
    pub(super) op: &'static str,
    pub(super) id: Option<String>,
    pub(super) position: Option<String>,
    pub(super) modified: Option<Timestamp>,
    pub(super) line: String,
}

/// Takes the rows of events out of those that come again.
pub(super) fn take_all(repeats: &mut Repeats, events: &[SinkEvent]) {
    if repeats.is_empty() {
        return;
    }
    for event in events {
        repeats.take(&line(event, event.change()));
    }
}

/// Operation of a feed that began anew.
const RESET: &str = "reset";

/// Returns true for a patch without the item that it makes.
fn is_bare_patch(change: &Followed) -> bool {
    change.op == Op::Patch && change.patch.is_some() && change.item.content.is_none()
}

/// Returns the items that patches of a batch apply to and that the batch does not contain itself.
pub(super) fn patched<'a>(events: impl IntoIterator<Item = &'a SinkEvent>) -> Vec<ItemKey> {
    let patches = events.into_iter().filter_map(|event| {
        let change = event.change().filter(|change| is_bare_patch(change))?;
        Some((event.feed(), change.item.id.clone()))
    });
    patches.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the feeds that resets name, and that have no change in the batch.
pub(super) fn reset_feeds<'a>(events: impl Iterator<Item = &'a SinkEvent> + Clone) -> Vec<String> {
    let resets: BTreeSet<String> =
        events.clone().filter(|event| event.change().is_none()).map(SinkEvent::feed).collect();
    if resets.is_empty() {
        return Vec::new();
    }
    let changed: BTreeSet<String> =
        events.filter(|event| event.change().is_some()).map(SinkEvent::feed).collect();
    resets.difference(&changed).cloned().collect()
}

impl BatchPlan {
    /// Plans a batch. `stored` has the items of [`patched`] that the database has, and `named` those of [`reset_feeds`]
    /// that have items. `history` selects the changes that are kept.
    ///
    /// # Errors
    ///
    /// The items that the database cannot keep.
    pub(super) fn new<'a>(
        events: impl Iterator<Item = (usize, &'a SinkEvent)> + Clone,
        mut stored: HashMap<ItemKey, Item>,
        named: &[String],
        history: KeepChanges,
    ) -> Result<Self, Vec<RefusedItem>> {
        let (mut plan, mut refused) = (Self::default(), Vec::new());
        let resets = reset_feeds(events.clone().map(|(_, event)| event));
        // The last state of each item, in the order of first mention, so that the rows of a page lie together.
        let mut last: HashMap<ItemKey, Option<usize>> = HashMap::new();
        let mut order: Vec<ItemKey> = Vec::new();
        let mut puts: Vec<Option<ItemValues>> = Vec::new();
        for (index, event) in events {
            let feed = event.feed();
            let SinkEvent::Change(change) = event else {
                // A publisher of several feeds begins anew as a whole, under a name of its own.
                let is_whole = resets.contains(&feed) && !named.contains(&feed);
                // Only what was before the reset is void.
                for (key, put) in &mut last {
                    if is_whole || key.0 == feed {
                        put.take().into_iter().for_each(|put| puts[put] = None);
                    }
                }
                // A patch behind the reset must not apply to what the reset has made void.
                stored.retain(|key, _| !is_whole && key.0 != feed);
                plan.record(event, &feed, None, history);
                plan.wipes_source |= is_whole;
                plan.wiped.insert(feed);
                continue;
            };
            let key = (feed, change.item.id.clone());
            let known =
                last.get(&key).copied().flatten().and_then(|put| puts[put].as_ref()).map(|put| &put.item);
            let item = match new_item(change, known.or_else(|| stored.get(&key))) {
                Ok(item) => item,
                Err(message) => {
                    refused.push(RefusedItem { index, message });
                    continue;
                }
            };
            plan.record(event, &key.0, Some(change), history);
            let put = item.map(|item| {
                puts.push(Some(ItemValues::new(&key.0, item, change)));
                puts.len() - 1
            });
            let before = last.insert(key.clone(), put);
            if let Some(Some(before)) = before {
                // A gap, so that the indexes of the others stay.
                puts[before] = None;
            }
            if before.is_none() {
                order.push(key);
            }
        }
        // After all events: one answer names every refused item, instead of one attempt for each.
        if !refused.is_empty() {
            return Err(refused);
        }
        plan.deleted = order.into_iter().filter(|key| last.get(key).is_none_or(Option::is_none)).collect();
        plan.puts = puts.into_iter().flatten().collect();
        Ok(plan)
    }

    fn record(&mut self, event: &SinkEvent, feed: &str, change: Option<&Followed>, history: KeepChanges) {
        if !self.feeds.contains(feed) {
            self.feeds.insert(feed.to_owned());
        }
        if history == KeepChanges::Off {
            return;
        }
        self.changes.push(ChangeValues {
            feed: feed.to_owned(),
            op: change.map_or(RESET, |change| change.op.as_str()),
            id: change.map(|change| change.item.id.clone()),
            position: change.map(position),
            modified: change.and_then(|change| change.modified),
            line: line(event, change),
        });
    }
}

/// Returns the line of an event, in a form that the database's JSON functions can read: they fail at an escaped NUL.
fn line(event: &SinkEvent, change: Option<&Followed>) -> String {
    let text = String::from_utf8(event.to_json()).unwrap_or_default();
    let Some(change) = change.filter(|_| escapes_nul(&text)) else { return text };
    let mut line = change.line();
    // A reader takes the item, which is whole, and needs no patch.
    (line.content, line.json, line.patch) = (None, None, None);
    line.content_base64 = change.item.content.as_ref().map(|content| STANDARD.encode(&content.bytes));
    serde_json::to_string(&line).unwrap_or_default()
}

/// Returns the item after a change; `None` after a deletion.
fn new_item(change: &Followed, known: Option<&Item>) -> Result<Option<Item>, String> {
    // Refused before the statement: its error would not say which item it is.
    let texts = [Some(&change.feed), Some(&change.item.id), Some(&change.position)];
    if texts.into_iter().flatten().any(|text| text.contains('\0')) {
        return Err("its id, feed or position has a NUL character, which PostgreSQL cannot keep".into());
    }
    let item = match &change.patch {
        _ if change.op == Op::Delete => return Ok(None),
        Some(patch) if is_bare_patch(change) => {
            let known = known.ok_or("it is a patch of an item that the database does not have")?;
            patch::apply(known, patch).map_err(|e| format!("its patch does not fit: {e}"))?
        }
        _ => change.item.clone(),
    };
    refuse_nul(&item)?;
    Ok(Some(item))
}

/// Refuses an item with a NUL character outside its content, which is kept as bytes then.
fn refuse_nul(item: &Item) -> Result<(), String> {
    let has_nul = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains('\0'));
    let fields = [("title", &item.title), ("url", &item.url), ("summary", &item.summary)];
    let named = fields.into_iter().find(|(_, text)| has_nul(text)).map(|(name, _)| name);
    let row = ItemRow::of(item);
    let in_json = [("authors", &row.authors), ("tags", &row.tags), ("extra", &row.extra)];
    let in_json = in_json.into_iter().find(|(_, json)| escapes_nul(json)).map(|(name, _)| name);
    let content_type = row.content_type().filter(|text| text.contains('\0')).map(|_| "content_type");
    match named.or(in_json).or(content_type) {
        Some(name) => Err(format!("its {name} has a NUL character, which PostgreSQL cannot keep")),
        None => Ok(()),
    }
}

/// Returns true if a JSON text has an escaped NUL. A backslash before the escape's own one makes it ordinary text.
fn escapes_nul(json: &str) -> bool {
    let is_escape = |at: usize| json[..at].bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 0;
    json.match_indices("\\u0000").any(|(at, _)| is_escape(at))
}

#[cfg(test)]
mod tests {
    use towpath_proto::follow::FeedReset;

    use super::*;

    fn change(op: Op, id: &str, position: u64) -> SinkEvent {
        let (item, position) = (Item::new(id), position.to_string());
        SinkEvent::Change(Box::new(Followed {
            feed: "f".into(),
            op,
            item,
            patch: None,
            modified: None,
            position,
            entry_id: None,
        }))
    }

    fn plan(events: &[SinkEvent]) -> BatchPlan {
        BatchPlan::new(events.iter().enumerate(), HashMap::new(), &[], KeepChanges::All).unwrap()
    }

    fn puts(plan: &BatchPlan) -> Vec<(&str, &str)> {
        plan.puts.iter().map(|put| (put.item.id.as_str(), put.position.as_str())).collect()
    }

    #[test]
    fn the_last_change_of_an_item_counts_and_history_has_all() {
        let events = [
            change(Op::Put, "a", 1),
            change(Op::Put, "b", 2),
            change(Op::Put, "a", 3),
            change(Op::Delete, "b", 4),
            change(Op::Delete, "c", 5),
            change(Op::Put, "c", 6),
        ];
        let plan = plan(&events);
        assert_eq!(puts(&plan), [("a", "3"), ("c", "6")]);
        assert_eq!(plan.deleted, [("f".to_owned(), "b".to_owned())]);
        assert_eq!(plan.changes.len(), 6);
    }

    #[test]
    fn a_reset_voids_what_was_before_it() {
        let reset = SinkEvent::Reset(FeedReset { feed: "f".into(), reason: "r".into() });
        let plan = plan(&[change(Op::Put, "a", 1), reset, change(Op::Put, "b", 1)]);
        assert_eq!(puts(&plan), [("b", "1")]);
        assert!(plan.wiped.contains("f"));
        assert_eq!(plan.changes.iter().map(|change| change.op).collect::<Vec<_>>(), ["put", "reset", "put"]);
    }

    #[test]
    fn a_reset_under_another_name_is_of_the_whole_source() {
        let reset = || SinkEvent::Reset(FeedReset { feed: "http://publisher/".into(), reason: "r".into() });
        let whole = plan(&[change(Op::Put, "a", 1), reset(), change(Op::Put, "b", 1)]);
        assert_eq!((puts(&whole), whole.wipes_source), (vec![("b", "1")], true));
        let events = [change(Op::Put, "a", 1), reset()];
        let named = ["http://publisher/".to_owned()];
        let part =
            BatchPlan::new(events.iter().enumerate(), HashMap::new(), &named, KeepChanges::All).unwrap();
        assert_eq!((puts(&part), part.wipes_source), (vec![("a", "1")], false));
    }

    #[test]
    fn a_patch_applies_to_the_newest_version() {
        let patched_title = |title: &str, position| {
            let mut event = change(Op::Patch, "a", position);
            if let SinkEvent::Change(change) = &mut event {
                change.patch = Some(Content::new(patch::MERGE_PATCH, format!("{{\"title\":{title:?}}}")));
            }
            event
        };
        let events = [patched_title("one", 2), patched_title("two", 3)];
        assert_eq!(patched(&events), [("f".to_owned(), "a".to_owned())]);
        let refused =
            BatchPlan::new(events.iter().enumerate(), HashMap::new(), &[], KeepChanges::All).unwrap_err();
        assert_eq!(refused.len(), 2, "there is nothing to patch");
    }

    #[test]
    fn nul_is_kept_in_content_and_named_elsewhere() {
        let mut event = change(Op::Put, "a", 1);
        if let SinkEvent::Change(change) = &mut event {
            change.item.content = Some(Content::new("text/plain", "a\0b"));
        }
        let plan = plan(std::slice::from_ref(&event));
        assert_eq!((plan.puts[0].text(), plan.puts[0].bytes()), (None, Some(&b"a\0b"[..])));
        assert!(plan.changes[0].line.contains("\"content_base64\":\"YQBi\""), "{}", plan.changes[0].line);
        if let SinkEvent::Change(change) = &mut event {
            change.item.tags = vec!["a\0b".into()];
        }
        let refused =
            BatchPlan::new([(7, &event)].into_iter(), HashMap::new(), &[], KeepChanges::All).unwrap_err();
        assert_eq!(refused[0].index, 7);
        assert!(refused[0].message.contains("tags"), "{}", refused[0].message);
        assert!(
            escapes_nul(r#"["a\u0000"]"#) && escapes_nul(r#"["\\\u0000"]"#) && !escapes_nul(r#"["\\u0000"]"#)
        );
        let bad_id = change(Op::Delete, "a\0", 1);
        assert!(BatchPlan::new([(0, &bad_id)].into_iter(), HashMap::new(), &[], KeepChanges::All).is_err());
    }
}
