//! Messages: lines of changes in the envelope of Standard Webhooks.

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use towpath_client::sink::SinkEvent;

/// Type of every message.
pub(super) const TYPE: &str = "towpath.changes";

/// Hash of a line, by which an event is known again.
pub(super) type LineHash = [u8; 32];

/// An event as a line, with its hash.
pub(super) struct MessageLine {
    /// Index of the event in its batch.
    pub(super) index: usize,
    pub(super) hash: LineHash,
    json: Box<RawValue>,
    modified: Option<Timestamp>,
}

impl MessageLine {
    /// Makes the line of an event; `None` for one that is no JSON, which would be a fault of this program.
    pub(super) fn new(index: usize, event: &SinkEvent) -> Option<Self> {
        let json = event.to_json();
        let hash = Sha256::digest(&json).into();
        let json = RawValue::from_string(String::from_utf8(json).ok()?).ok()?;
        let modified = event.change().and_then(|change| change.modified);
        Some(Self { index, hash, json, modified })
    }

    /// Size in bytes.
    pub(super) fn size(&self) -> usize {
        self.json.get().len()
    }
}

/// Body of a message (Standard Webhooks, "Payload structure").
#[derive(Serialize)]
struct Payload<'a> {
    r#type: &'static str,
    /// Time of the last change, so that the body stays the same over retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<Timestamp>,
    data: PayloadData<'a>,
}

#[derive(Serialize)]
struct PayloadData<'a> {
    changes: Vec<&'a RawValue>,
}

/// A message that is sent until it is delivered, always with the same id and body.
pub(super) struct Message {
    pub(super) id: String,
    pub(super) body: Bytes,
}

impl Message {
    /// Makes the message of lines. Equal lines of one source make the same id, also after a restart.
    pub(super) fn new(source: &str, lines: &[MessageLine]) -> Self {
        let mut hash = Sha256::new_with_prefix(source);
        lines.iter().for_each(|line| hash.update(line.hash));
        let changes = lines.iter().map(|line| &*line.json).collect();
        let timestamp = lines.iter().filter_map(|line| line.modified).max();
        let payload = Payload { r#type: TYPE, timestamp, data: PayloadData { changes } };
        // Raw JSON into memory: this cannot fail.
        let body = serde_json::to_vec(&payload).unwrap_or_default();
        Self { id: format!("msg_{}", hex::encode(&hash.finalize()[..16])), body: body.into() }
    }
}

/// Divides lines into messages of at most `lines` lines and about `bytes` bytes.
pub(super) fn divide(lines: Vec<MessageLine>, limit: usize, bytes: usize) -> Vec<Vec<MessageLine>> {
    let mut messages: Vec<Vec<MessageLine>> = Vec::new();
    let mut size = 0;
    for line in lines {
        size += line.size();
        match messages.last_mut() {
            Some(message) if message.len() < limit && size <= bytes => message.push(line),
            _ => {
                size = line.size();
                messages.push(vec![line]);
            }
        }
    }
    messages
}
