//! Cursors ("Cursors"): sequence cursors, and the choice between them and T+O+C.
//!
//! A sequence cursor is `{letter}{seq}-{check}`: `c` or `m` for the sort key, the position in decimal, and a check
//! of ten hex digits over both and the log's identity. So a cursor of another feed, another server or the other
//! order, and a truncated one, is detected without reading the log. To the client a cursor is opaque.
//!
//! Up to the horizon of a log, deletions were let go. A client there has to begin anew, unless it began after that. So the
//! cursor of a page that ends there names the horizon too: `m{seq}.{horizon}-{check}`. It counts until the horizon moves.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::toc::TocCursor;
use crate::change::Seq;
use crate::smart::wire::spec::OrderBy;

/// Kind of cursor that a feed issues. Every feed accepts both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CursorKind {
    /// Positions in the log ("Cursors", 1).
    #[default]
    Sequence,
    /// Timestamp, offset and checksum ("Cursors", 2).
    Toc,
}

/// Identity of a log, as its cursors carry it. Cheap to clone: it is shared.
#[derive(Clone)]
pub struct LogTag(Arc<Sha256>);

impl LogTag {
    /// Returns the tag of a log.
    ///
    /// No other feed, no other server, and no later log of the same name may have the same `identity`.
    pub fn new(identity: &str) -> Self {
        Self(Arc::new(Sha256::new_with_prefix(Sha256::digest(identity))))
    }

    // Forty bits are enough: a cursor that passes by chance only selects another position of the same feed.
    fn check(&self, by: OrderBy, seq: Seq, horizon: Option<Seq>) -> [u8; CHECK] {
        // The hasher has absorbed the identity already: a page of cursors hashes only the positions.
        let mut hasher = Sha256::clone(&self.0);
        hasher.update([letter(by)]);
        hasher.update(seq.to_be_bytes());
        if let Some(horizon) = horizon {
            hasher.update(horizon.to_be_bytes());
        }
        let mut check = [0; CHECK];
        check.copy_from_slice(&hasher.finalize()[..CHECK]);
        check
    }

    // Each item of a page has a cursor. `format!` and a hex string took half of the time of making one.
    fn write(&self, by: OrderBy, seq: Seq, horizon: Option<Seq>) -> String {
        let mut text = String::with_capacity(MAX_CURSOR);
        text.push(char::from(letter(by)));
        push_number(&mut text, seq);
        if let Some(horizon) = horizon {
            text.push('.');
            push_number(&mut text, horizon);
        }
        text.push('-');
        for byte in self.check(by, seq, horizon) {
            text.push(hex_digit(byte >> 4));
            text.push(hex_digit(byte & 15));
        }
        text
    }

    /// Returns the sequence cursor of a position.
    pub fn cursor(&self, by: OrderBy, seq: Seq) -> String {
        self.write(by, seq, None)
    }

    /// Returns the cursor of a position of a log that was read with this horizon.
    pub fn cursor_within(&self, by: OrderBy, seq: Seq, horizon: Seq) -> String {
        if by == OrderBy::Created || seq == 0 || seq >= horizon {
            return self.cursor(by, seq);
        }
        self.write(by, seq, Some(horizon))
    }
}

impl std::fmt::Debug for LogTag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogTag")
    }
}

fn push_number(text: &mut String, mut number: u64) {
    let mut digits = ['0'; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = char::from(b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.extend(&digits[start..]);
}

fn hex_digit(nibble: u8) -> char {
    char::from(if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 })
}

fn letter(by: OrderBy) -> u8 {
    match by {
        OrderBy::Created => b'c',
        OrderBy::Modified => b'm',
    }
}

/// A parsed cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParsedCursor {
    /// A position of this log and this order.
    Sequence(Seq),
    /// A position before the horizon, and the horizon at which its page was read.
    Replay(Seq, Seq),
    /// A T+O+C cursor, still to be compared with the log.
    Toc(TocCursor),
}

impl ParsedCursor {
    /// Returns the position; `None` for a T+O+C cursor.
    pub fn seq(self) -> Option<Seq> {
        match self {
            Self::Sequence(seq) | Self::Replay(seq, _) => Some(seq),
            Self::Toc(_) => None,
        }
    }
}

/// Length of a cursor's check, in bytes.
const CHECK: usize = 5;
/// Maximum length of a cursor of either kind, in bytes.
const MAX_CURSOR: usize = 64;

/// Parses a cursor; `None` if it is not of this log and this order ("processing SHOULD gracefully degrade").
pub fn read(text: &str, tag: &LogTag, by: OrderBy) -> Option<ParsedCursor> {
    // A parameter value may be far longer. No cursor is, so a long one is not even split.
    if text.len() > MAX_CURSOR {
        return None;
    }
    // Both kinds are tried, so that a feed can change its kind without invalidating the cursors of its clients.
    if let Some(toc) = TocCursor::parse(text) {
        return Some(ParsedCursor::Toc(toc));
    }
    let digits = text.get(1..)?.split_once('-')?.0;
    if let Some((seq, horizon)) = digits.split_once('.') {
        let (seq, horizon) = (seq.parse().ok()?, horizon.parse().ok()?);
        let is_own = by == OrderBy::Modified && tag.cursor_within(by, seq, horizon) == text;
        return is_own.then_some(ParsedCursor::Replay(seq, horizon));
    }
    let seq: Seq = digits.parse().ok()?;
    // Comparing the whole text also rejects leading zeros and signs: a cursor has one spelling.
    (tag.cursor(by, seq) == text).then_some(ParsedCursor::Sequence(seq))
}

/// Returns true if a text has the form of a cursor, of whatever log.
pub(super) fn is_cursor(text: &str) -> bool {
    let sequence = |text: &str| {
        let (seq, check) = text.strip_prefix(['c', 'm'])?.split_once('-')?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_seq = match seq.split_once('.') {
            Some((seq, horizon)) => is_number(seq) && is_number(horizon),
            None => is_number(seq),
        };
        Some(is_seq && check.len() == 10 && check.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    text.len() <= MAX_CURSOR && (TocCursor::parse(text).is_some() || sequence(text) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_by_its_own_log_and_order_only() {
        let tag = LogTag::new("http://example.com/feeds/a#1");
        for seq in [0, 1, 9, 10_000_000, u64::MAX] {
            let cursor = tag.cursor(OrderBy::Modified, seq);
            assert!(cursor.len() <= 32);
            assert_eq!(read(&cursor, &tag, OrderBy::Modified), Some(ParsedCursor::Sequence(seq)));
            assert_eq!(read(&cursor, &tag, OrderBy::Created), None);
            assert_eq!(read(&cursor, &LogTag::new("http://example.com/feeds/a#2"), OrderBy::Modified), None);
            for cut in 0..cursor.len() {
                assert_eq!(read(&cursor[..cut], &tag, OrderBy::Modified), None, "{cut}");
            }
        }
    }

    #[test]
    fn what_is_no_cursor_is_not_read() {
        let tag = LogTag::new("a");
        let good = tag.cursor(OrderBy::Modified, 12);
        let check = &good[4..];
        for bad in [
            String::new(),
            "é1-".into(),
            format!("m012-{check}"),
            format!("m+12-{check}"),
            format!("x12-{check}"),
            format!("m13-{check}"),
            format!("{good} "),
            good.to_uppercase(),
            "m99999999999999999999999-0000000000".into(),
            "m".repeat(1 << 20),
        ] {
            assert_eq!(read(&bad, &tag, OrderBy::Modified), None, "{bad:.40}");
        }
    }

    #[test]
    fn a_cursor_before_the_horizon_names_it() {
        let (tag, by) = (LogTag::new("a"), OrderBy::Modified);
        for seq in [0, 5, 6] {
            assert_eq!(tag.cursor_within(by, seq, 5), tag.cursor(by, seq));
        }
        assert_eq!(tag.cursor_within(OrderBy::Created, 3, 5), tag.cursor(OrderBy::Created, 3));
        let cursor = tag.cursor_within(by, 3, u64::MAX);
        assert!(is_cursor(&cursor), "{cursor}");
        assert_eq!(read(&cursor, &tag, by), Some(ParsedCursor::Replay(3, u64::MAX)));
        assert_eq!(read(&cursor, &LogTag::new("b"), by), None);
        let check = &cursor[cursor.find('-').unwrap()..];
        for bad in
            [format!("m3.5{check}"), format!("m3{check}"), format!("m9.5{check}"), "m3.-0000000000".into()]
        {
            assert_eq!(read(&bad, &tag, by), None, "{bad}");
        }
        for cut in 0..cursor.len() {
            assert_eq!(read(&cursor[..cut], &tag, by), None, "{cut}");
        }
    }

    #[test]
    fn both_kinds_are_understood() {
        let read = read("1389003527_0_3678689003", &LogTag::new("a"), OrderBy::Created);
        assert_eq!(
            read,
            Some(ParsedCursor::Toc(TocCursor { time: 1_389_003_527, offset: 0, checksum: 3_678_689_003 }))
        );
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "[cm]?[0-9_-]{0,30}.{0,12}") {
            let _ = read(&text, &LogTag::new("a"), OrderBy::Modified);
        }
    }
}
