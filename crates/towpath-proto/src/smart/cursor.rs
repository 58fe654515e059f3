//! Cursors ("Cursors"): sequence cursors, and the choice between them and T+O+C.
//!
//! A sequence cursor is `{letter}{seq}-{check}`: `c` or `m` for what the order goes by, the position in
//! decimal, and ten hex digits over both and the log's identity. So a cursor of another feed, another server,
//! the other order, or one that was cut off is told apart without a look at the log. Nothing of this is the
//! client's business: to it a cursor is opaque.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::spec::By;
use super::toc::Toc;
use crate::change::Seq;

/// Which cursors a feed gives out. Every feed understands both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CursorKind {
    /// Places in the log ("Cursors", 1).
    #[default]
    Sequence,
    /// Timestamp, offset and checksum ("Cursors", 2).
    Toc,
}

/// What tells a log's cursors from those of any other. Cheap to clone: it is shared.
#[derive(Clone)]
pub struct LogTag(Arc<Sha256>);

impl LogTag {
    /// The tag of a log with this identity: a text that no other feed, no other server, and no later log
    /// under the same name has.
    pub fn new(identity: &str) -> Self {
        Self(Arc::new(Sha256::new_with_prefix(Sha256::digest(identity))))
    }

    fn check(&self, by: By, seq: Seq) -> String {
        let mut hasher = Sha256::clone(&self.0);
        hasher.update([letter(by)]);
        hasher.update(seq.to_be_bytes());
        hex::encode(&hasher.finalize()[..5])
    }

    /// The sequence cursor of a position.
    pub fn cursor(&self, by: By, seq: Seq) -> String {
        format!("{}{seq}-{}", char::from(letter(by)), self.check(by, seq))
    }
}

impl std::fmt::Debug for LogTag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogTag")
    }
}

fn letter(by: By) -> u8 {
    match by {
        By::Created => b'c',
        By::Modified => b'm',
    }
}

/// A cursor that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cursor {
    /// A position of this log and this order.
    Sequence(Seq),
    /// To be compared with the log.
    Toc(Toc),
}

/// The longest cursor of either kind, in bytes.
const MAX_CURSOR: usize = 64;

/// Reads a cursor; `None` where it is none of this log and this order ("processing SHOULD gracefully degrade").
pub fn read(text: &str, tag: &LogTag, by: By) -> Option<Cursor> {
    if text.len() > MAX_CURSOR {
        return None;
    }
    if let Some(toc) = Toc::parse(text) {
        return Some(Cursor::Toc(toc));
    }
    let digits = text.get(1..)?.split_once('-')?.0;
    let seq: Seq = digits.parse().ok()?;
    (tag.cursor(by, seq) == text).then_some(Cursor::Sequence(seq))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_by_its_own_log_and_order_only() {
        let tag = LogTag::new("http://example.com/feeds/a#1");
        for seq in [0, 1, 9, 10_000_000, u64::MAX] {
            let cursor = tag.cursor(By::Modified, seq);
            assert!(cursor.len() <= 32);
            assert_eq!(read(&cursor, &tag, By::Modified), Some(Cursor::Sequence(seq)));
            assert_eq!(read(&cursor, &tag, By::Created), None);
            assert_eq!(read(&cursor, &LogTag::new("http://example.com/feeds/a#2"), By::Modified), None);
            for cut in 0..cursor.len() {
                assert_eq!(read(&cursor[..cut], &tag, By::Modified), None, "{cut}");
            }
        }
    }

    #[test]
    fn what_is_no_cursor_is_not_read() {
        let tag = LogTag::new("a");
        let good = tag.cursor(By::Modified, 12);
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
            assert_eq!(read(&bad, &tag, By::Modified), None, "{bad:.40}");
        }
    }

    #[test]
    fn both_kinds_are_understood() {
        let read = read("1389003527_0_3678689003", &LogTag::new("a"), By::Created);
        assert_eq!(read, Some(Cursor::Toc(Toc { time: 1_389_003_527, offset: 0, checksum: 3_678_689_003 })));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "[cm]?[0-9_-]{0,30}.{0,12}") {
            let _ = read(&text, &LogTag::new("a"), By::Modified);
        }
    }
}
