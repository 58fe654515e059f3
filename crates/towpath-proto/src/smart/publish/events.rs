//! Server-Sent Events of a feed: its items in the order of their changes (HTML, section 9.2).

use super::cursor::LogTag;
use super::lines;
use super::page::PullPage;
use super::query::{PullLimits, PullQuery};
use super::settings::FeedSettings;
use crate::change::Change;
use crate::format::activity_streams::ActivityObject;
use crate::line::ResetLine;
use crate::smart::wire::spec::{FeedOrder, OrderBy, PositionSpec};

/// The content type of an event stream.
pub const EVENT_STREAM: &str = "text/event-stream";

// Clients ignore a line that begins with a colon (HTML, section 9.2.6).
/// A comment to send periodically, so that proxies do not close an idle connection.
pub const KEEP_ALIVE: &[u8] = b":\n\n";

/// Maximum length of a `Last-Event-ID`, in bytes; a longer one counts as unreadable.
const MAX_LAST_EVENT_ID: usize = 256;

/// Returns the query whose pages make up a stream: after the client's last event, else after `start`.
///
/// An id that cannot be read degrades as any cursor does: everything is sent again.
pub fn stream_query(
    last_event_id: Option<&str>,
    start: Option<PositionSpec>,
    limits: &PullLimits,
) -> PullQuery {
    let last = last_event_id.map(str::trim).filter(|id| !id.is_empty());
    // `?` is never a cursor, so a hostile id degrades without a copy of it.
    let last = last.map(|id| if id.len() > MAX_LAST_EVENT_ID { "?" } else { id });
    PullQuery {
        since: last.map(|id| PositionSpec::Cursor(id.to_owned())).or(start),
        timeout: limits.max_timeout,
        ..PullQuery::at_once(FeedOrder::MODIFIED, limits.default_items)
    }
}

/// Appends one change as an event: `id` is its cursor in a page of [`FeedOrder::MODIFIED`], `event` its operation, `data` its object.
pub fn push_event(out: &mut Vec<u8>, cursor: &str, change: &Change) {
    out.extend_from_slice(b"id: ");
    out.extend_from_slice(cursor.as_bytes());
    out.extend_from_slice(b"\nevent: ");
    out.extend_from_slice(change.op.as_str().as_bytes());
    out.extend_from_slice(b"\ndata: ");
    // JSON escapes line ends, so `data` is one line. Neither the object nor the writer can fail.
    let written = serde_json::to_writer(&mut *out, &ActivityObject { change, cursor: Some(cursor) });
    debug_assert!(written.is_ok());
    out.extend_from_slice(b"\n\n");
}

/// Appends a page's changes as events whose data are lines ([`lines`]), after a reset if the page tells
/// one.
pub fn push_lines(out: &mut Vec<u8>, feed: &FeedSettings, page: &PullPage) {
    let by = OrderBy::Modified;
    if page.reset {
        push_line(out, &feed.tag.cursor(by, 0), "reset", &ResetLine::new(feed.name.clone()));
    }
    for change in &page.changes {
        let line = lines::line_of_page(feed, by, page, change);
        push_line(out, line.position.as_deref().unwrap_or_default(), change.op.as_str(), &line);
    }
}

fn push_line(out: &mut Vec<u8>, id: &str, event: &str, line: &impl serde::Serialize) {
    out.extend_from_slice(format!("id: {id}\nevent: {event}\ndata: ").as_bytes());
    // JSON escapes line ends, so `data` is one line.
    let written = serde_json::to_writer(&mut *out, line);
    debug_assert!(written.is_ok());
    out.extend_from_slice(b"\n\n");
}

/// Appends the event that tells a client that its last event is of another log.
///
/// Its id is the start of this log, so that a client that is cut off here is not told twice.
pub fn push_reset(out: &mut Vec<u8>, tag: &LogTag) {
    let start = tag.cursor(OrderBy::Modified, 0);
    out.extend_from_slice(format!("id: {start}\nevent: reset\ndata: {{\"op\":\"reset\"}}\n\n").as_bytes());
}

/// Appends a page's changes as events, after a reset if the page tells one.
pub fn push_page(out: &mut Vec<u8>, tag: &LogTag, page: &PullPage) {
    if page.reset {
        push_reset(out, tag);
    }
    for change in &page.changes {
        push_event(out, &page.cursor(tag, OrderBy::Modified, change), change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Op;
    use crate::smart::publish::cursor::{self, CursorKind, ParsedCursor};
    use crate::smart::publish::testing::{change, settings};

    #[test]
    fn an_event_is_a_change_on_one_line() {
        let tag = LogTag::new("a");
        let mut put = change(7, "a\r\nb\u{2028}", 5);
        // Line ends in a title must not forge a field.
        put.item.title = Some("line\n\ndata: forged\r".into());
        let mut gone = change(8, "b", 6);
        gone.op = Op::Delete;
        let mut out = Vec::new();
        let page = PullPage { changes: vec![put, gone], ..PullPage::empty(2, jiff::Timestamp::UNIX_EPOCH) };
        push_page(&mut out, &tag, &page);
        let text = String::from_utf8(out).unwrap();
        let events: Vec<&str> = text.split_terminator("\n\n").collect();
        assert_eq!(events.len(), 2);
        for (event, (op, seq)) in events.iter().zip([("put", 7), ("delete", 8)]) {
            let lines: Vec<&str> = event.split('\n').collect();
            assert_eq!(lines.len(), 3);
            let id = lines[0].strip_prefix("id: ").unwrap();
            assert_eq!(cursor::read(id, &tag, OrderBy::Modified), Some(ParsedCursor::Sequence(seq)));
            assert_eq!(lines[1], format!("event: {op}"));
            let object: serde_json::Value =
                serde_json::from_str(lines[2].strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(object["towpath"]["cursor"], id);
            assert!(!event.contains('\r'));
        }
    }

    #[test]
    fn lines_of_events_are_those_of_pages() {
        let feed = settings(CursorKind::Sequence);
        let mut page =
            PullPage { changes: vec![change(7, "a", 5)], ..PullPage::empty(1, jiff::Timestamp::MIN) };
        page.reset = true;
        let mut out = Vec::new();
        push_lines(&mut out, &feed, &page);
        let text = String::from_utf8(out).unwrap();
        let data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let query = stream_query(None, None, &feed.limits);
        let lines = String::from_utf8(lines::lines(&feed, &query, &page)).unwrap();
        assert_eq!(data, lines.lines().collect::<Vec<_>>());
        let line = crate::line::Line::parse(data[1].as_bytes()).unwrap();
        assert!(text.contains(&format!("id: {}\nevent: put\n", line.position.unwrap())), "{text}");
        assert_eq!(line.feed.as_deref(), Some(feed.name.as_str()));
    }

    /// A client that was cut off after the reset goes on at the start of this log, without a second one.
    #[test]
    fn a_stream_of_another_log_begins_with_a_reset() {
        let tag = LogTag::new("a");
        let mut page =
            PullPage { changes: vec![change(1, "a", 5)], ..PullPage::empty(1, jiff::Timestamp::MIN) };
        page.reset = true;
        let mut out = Vec::new();
        push_page(&mut out, &tag, &page);
        let text = String::from_utf8(out).unwrap();
        let (reset, put) = text.split_once("\n\n").unwrap();
        let id = reset
            .strip_prefix("id: ")
            .and_then(|rest| rest.strip_suffix("\nevent: reset\ndata: {\"op\":\"reset\"}"));
        assert_eq!(cursor::read(id.unwrap(), &tag, OrderBy::Modified), Some(ParsedCursor::Sequence(0)));
        assert!(put.contains("\nevent: put\n"), "{put}");
    }

    #[test]
    fn a_stream_goes_on_after_the_last_event() {
        let limits = PullLimits::default();
        let since = |id| stream_query(id, None, &limits).since;
        assert_eq!(since(None), None);
        assert_eq!(since(Some(" ")), None);
        assert_eq!(since(Some("m7-0123456789")), Some(PositionSpec::Cursor("m7-0123456789".into())));
        assert_eq!(since(Some(&"m".repeat(1 << 20))), Some(PositionSpec::Cursor("?".into())));
        let start = Some(PositionSpec::Cursor("x".into()));
        assert_eq!(stream_query(None, start.clone(), &limits).since, start);
    }
}
