//! Times of the last changes of newest documents, which an append is not the only cause of.

use http::HeaderValue;
use jiff::Timestamp;
use parking_lot::Mutex;
use towpath_proto::change::Seq;
use towpath_proto::history::wire::Syntax;

/// Newest documents of a feed as they were made last.
#[derive(Debug, Default)]
pub(super) struct LastChanges(Mutex<[Option<LastChange>; Syntax::ALL.len()]>);

#[derive(Debug)]
struct LastChange {
    seq: Seq,
    tag: HeaderValue,
    at: Timestamp,
}

impl LastChanges {
    /// Returns the time since when a document that shows the log up to `seq` has this tag, as far as its appends do not
    /// tell it: its title may have changed.
    ///
    /// Nothing is known of the time before `started`: the configuration may have been another one.
    pub(super) fn update(
        &self,
        syntax: Syntax,
        (seq, tag): (Seq, &HeaderValue),
        started: Timestamp,
        now: Timestamp,
    ) -> Timestamp {
        let mut all = self.0.lock();
        let Some(last) = Syntax::ALL.iter().position(|known| *known == syntax).and_then(|at| all.get_mut(at))
        else {
            return started;
        };
        let at = match last {
            Some(last) if last.seq == seq && last.tag == tag => return last.at,
            Some(last) if last.seq == seq => now,
            // Nobody has seen it at this position without its being made here.
            _ => started,
        };
        *last = Some(LastChange { seq, tag: tag.clone(), at });
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_changes_with_its_head() {
        let (changes, time) = (LastChanges::default(), |second| Timestamp::from_second(second).unwrap());
        let update = |syntax, seq, tag: &'static str, now| {
            let at = changes.update(syntax, (seq, &HeaderValue::from_static(tag)), time(1), time(now));
            at.as_second()
        };
        assert_eq!(update(Syntax::Atom, 5, "a", 10), 1);
        assert_eq!(update(Syntax::Atom, 5, "a", 11), 1);
        assert_eq!(update(Syntax::Atom, 5, "b", 12), 12);
        assert_eq!(update(Syntax::Atom, 5, "b", 13), 12);
        assert_eq!(update(Syntax::Rss, 5, "r", 14), 1);
        // The time of the append is later.
        assert_eq!(update(Syntax::Atom, 6, "c", 15), 1);
    }
}
