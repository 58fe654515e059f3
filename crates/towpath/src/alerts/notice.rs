//! Messages about events of one kind, as text and as JSON.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::kind::AlertKind;

/// Most events that a message lists. It counts the others.
pub(super) const MAX_LISTED: usize = 20;

/// An event in a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct AlertEntry {
    /// Name of the feed or sink; empty for the node.
    pub(super) subject: String,
    pub(super) since: Timestamp,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
}

/// Events of a message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct NoticeContent {
    pub(super) began: AlertList,
    pub(super) recovered: AlertList,
    /// Events that were told before and go on.
    pub(super) still: AlertList,
}

/// Events, the first of them with their names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct AlertList {
    pub(super) count: usize,
    pub(super) events: Vec<AlertEntry>,
}

impl FromIterator<AlertEntry> for AlertList {
    fn from_iter<I: IntoIterator<Item = AlertEntry>>(entries: I) -> Self {
        let mut list = Self::default();
        for entry in entries {
            list.count += 1;
            if list.events.len() < MAX_LISTED {
                list.events.push(entry);
            }
        }
        list
    }
}

/// A message about events of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct AlertNotice {
    /// Id of the message: receivers know a repeated delivery by it.
    pub(super) id: String,
    pub(super) kind: AlertKind,
    pub(super) at: Timestamp,
    pub(super) content: NoticeContent,
    /// Name of the cluster's node that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
}

impl AlertNotice {
    pub(super) fn new(kind: AlertKind, at: Timestamp, number: u64, content: NoticeContent) -> Self {
        Self { id: format!("{}-{number}-{}", at.as_second(), kind.name()), kind, at, content, node: None }
    }

    /// Names the node. Each node counts its own messages, so their ids differ by it.
    pub(super) fn of_node(self, node: &str) -> Self {
        // Signatures of Standard Webhooks put a dot behind the id, so it has none itself.
        let in_id = node.replace(['.', ':'], "-");
        Self { id: format!("{}-{in_id}", self.id), node: Some(node.to_owned()), ..self }
    }

    /// A message by which the destinations are tested.
    pub(crate) fn test(at: Timestamp) -> Self {
        let entry =
            AlertEntry { subject: String::new(), since: at, message: "sent by `towpath alerts test`".into() };
        let began = AlertList { count: 1, events: vec![entry] };
        Self::new(AlertKind::Test, at, 1, NoticeContent { began, ..NoticeContent::default() })
    }

    /// Returns true if it says only what is over.
    pub(super) fn is_recovery(&self) -> bool {
        self.content.began.count == 0 && self.content.still.count == 0
    }

    /// Title: the events that began, else those that ended, else those that go on.
    pub(super) fn title(&self) -> String {
        let NoticeContent { began, recovered, still } = &self.content;
        let first =
            |list: &AlertList| list.events.first().map(|event| event.subject.clone()).unwrap_or_default();
        if began.count > 0 {
            return self.kind.sentence(&first(began), began.count);
        }
        if recovered.count > 0 {
            return self.kind.recovered(&first(recovered), recovered.count);
        }
        format!("still: {}", self.kind.sentence(&first(still), still.count))
    }

    /// Text for people: a line for each event.
    pub(super) fn text(&self, server: &str) -> String {
        let node = self.node.as_ref().map(|node| format!(", node {node}")).unwrap_or_default();
        let mut text = format!("{} ({server}{node})\n", self.title());
        for (heading, list) in [
            ("Begun", &self.content.began),
            ("Over", &self.content.recovered),
            ("Going on", &self.content.still),
        ] {
            if list.count == 0 {
                continue;
            }
            // Writing to a String cannot fail.
            let _ = writeln!(text, "\n{heading}:");
            for AlertEntry { subject, since, message } in &list.events {
                let subject = if subject.is_empty() { "this server" } else { subject };
                let message = if message.is_empty() { String::new() } else { format!(": {message}") };
                let _ = writeln!(text, "- {subject}, since {since:.0}{message}");
            }
            if list.count > list.events.len() {
                let _ = writeln!(text, "- and {} more", list.count - list.events.len());
            }
        }
        text
    }

    /// JSON for programs: type, time and data, as Standard Webhooks has them.
    pub(super) fn json(&self, server: &str) -> Value {
        let NoticeContent { began, recovered, still } = &self.content;
        json!({
            "type": format!("alert.{}", self.kind.name()),
            "timestamp": self.at,
            "data": {
                "id": self.id,
                "server": server,
                "node": self.node,
                "title": self.title(),
                "began": began,
                "recovered": recovered,
                "still": still,
            },
        })
    }
}

impl AlertKind {
    fn sentence(self, subject: &str, count: usize) -> String {
        if count == 1 { self.one(subject) } else { self.many(count) }
    }
}
