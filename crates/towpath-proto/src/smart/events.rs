//! Server-Sent Events beside the feed: the same items in the order of their changes (HTML, section 9.2).

use super::cursor::LogTag;
use super::pull::Page;
use super::query::{Limits, PullQuery};
use super::spec::{By, Order, Spec};
use crate::change::Change;
use crate::format::activity_streams::Object;

/// The content type of an event stream.
pub const EVENT_STREAM: &str = "text/event-stream";

/// A comment, to be sent now and then so that nobody between takes the connection for dead.
pub const KEEP_ALIVE: &[u8] = b":\n\n";

/// How long a `Last-Event-ID` may be, in bytes; a longer one is not looked at.
const MAX_LAST_EVENT_ID: usize = 256;

/// The query whose pages a stream consists of: after the event that the client saw last, else after `start`.
///
/// An id that cannot be read degrades as any cursor does: everything is sent again.
pub fn stream_query(last_event_id: Option<&str>, start: Option<Spec>, limits: &Limits) -> PullQuery {
    let seen = last_event_id.map(str::trim).filter(|id| !id.is_empty());
    let seen = seen.map(|id| if id.len() > MAX_LAST_EVENT_ID { "?" } else { id });
    PullQuery {
        order: Order::MODIFIED,
        since: seen.map(|id| Spec::Cursor(id.to_owned())).or(start),
        until: None,
        max: limits.default_items,
        asked_max: None,
        timeout: limits.max_timeout,
        callback: None,
        base_query: String::new(),
    }
}

/// Appends one change: `id` is its cursor, `event` its operation, `data` its object.
pub fn push_event(out: &mut Vec<u8>, tag: &LogTag, change: &Change) {
    let cursor = tag.cursor(By::Modified, By::Modified.position(change));
    out.extend_from_slice(b"id: ");
    out.extend_from_slice(cursor.as_bytes());
    out.extend_from_slice(b"\nevent: ");
    out.extend_from_slice(change.op.as_str().as_bytes());
    out.extend_from_slice(b"\ndata: ");
    // JSON has its line ends escaped. Neither the object nor the writer can fail.
    let written = serde_json::to_writer(&mut *out, &Object { change, cursor: Some(&cursor) });
    debug_assert!(written.is_ok());
    out.extend_from_slice(b"\n\n");
}

/// Appends a page's changes.
pub fn push_page(out: &mut Vec<u8>, tag: &LogTag, page: &Page) {
    for change in &page.changes {
        push_event(out, tag, change);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::change;
    use super::*;
    use crate::change::Op;
    use crate::smart::cursor::{self, Cursor};

    #[test]
    fn an_event_is_a_change_on_one_line() {
        let tag = LogTag::new("a");
        let mut put = change(7, "a\r\nb\u{2028}", 5);
        put.item.title = Some("line\n\ndata: forged\r".into());
        let mut gone = change(8, "b", 6);
        gone.op = Op::Delete;
        let mut out = Vec::new();
        let page = Page { changes: vec![put, gone], ..Page::empty(2, jiff::Timestamp::UNIX_EPOCH) };
        push_page(&mut out, &tag, &page);
        let text = String::from_utf8(out).unwrap();
        let events: Vec<&str> = text.split_terminator("\n\n").collect();
        assert_eq!(events.len(), 2);
        for (event, (op, seq)) in events.iter().zip([("put", 7), ("delete", 8)]) {
            let lines: Vec<&str> = event.split('\n').collect();
            assert_eq!(lines.len(), 3);
            let id = lines[0].strip_prefix("id: ").unwrap();
            assert_eq!(cursor::read(id, &tag, By::Modified), Some(Cursor::Sequence(seq)));
            assert_eq!(lines[1], format!("event: {op}"));
            let object: serde_json::Value =
                serde_json::from_str(lines[2].strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(object["towpath"]["cursor"], id);
            assert!(!event.contains('\r'));
        }
    }

    #[test]
    fn a_stream_goes_on_after_the_last_event() {
        let limits = Limits::default();
        let since = |id| stream_query(id, None, &limits).since;
        assert_eq!(since(None), None);
        assert_eq!(since(Some(" ")), None);
        assert_eq!(since(Some("m7-0123456789")), Some(Spec::Cursor("m7-0123456789".into())));
        assert_eq!(since(Some(&"m".repeat(1 << 20))), Some(Spec::Cursor("?".into())));
        let start = Some(Spec::Cursor("x".into()));
        assert_eq!(stream_query(None, start.clone(), &limits).since, start);
    }
}
