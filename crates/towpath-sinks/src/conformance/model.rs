//! The model: items in memory, and what a sink must make of events.

use std::sync::Arc;

use towpath_client::{SinkBatch, SinkEvent};
use towpath_proto::{Op, patch};

use super::{HistoryEntry, LiveItems};

/// State of a destination after the events so far.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) items: LiveItems,
    pub(super) history: Vec<HistoryEntry>,
}

impl Model {
    pub(super) fn apply(&mut self, events: &[SinkEvent]) {
        for event in events {
            let feed = event.feed();
            let Some(change) = event.change() else {
                self.items.retain(|(name, _), _| *name != feed);
                self.history.push((feed, "reset".into(), String::new(), String::new()));
                continue;
            };
            let key = (feed.clone(), change.item.id.clone());
            match (change.op, &change.patch, self.items.get(&key)) {
                (Op::Put, ..) => drop(self.items.insert(key, change.item.clone())),
                (Op::Delete, ..) => drop(self.items.remove(&key)),
                (Op::Patch, Some(patch), Some(held)) => {
                    if let Ok(patched) = patch::apply(held, patch) {
                        self.items.insert(key, patched);
                    }
                }
                (Op::Patch, ..) => {}
            }
            let (op, id) = (change.op.as_str().to_owned(), change.item.id.clone());
            self.history.push((feed, op, id, change.position.clone()));
        }
    }
}

/// Creates a batch. The checkpoint is a number, as JSON.
pub(super) fn batch(source: &str, events: Vec<SinkEvent>, checkpoint: Option<u64>) -> SinkBatch {
    let checkpoint = checkpoint.map(|number| number.to_string().into_bytes().into());
    SinkBatch { source: source.into(), events: Arc::new(events), checkpoint }
}
