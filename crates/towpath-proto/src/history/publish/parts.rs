//! Parts of a page: the documents between the newest one and the page before.

use crate::change::Seq;

/// Least number of changes of a document that begins within a page.
// So the parts of a page are few, and addresses of one or two changes name nothing.
pub const MIN_PART: u64 = 8;

/// The document that `prev` leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlierDocument {
    /// The document of the page with this number.
    Page(u64),
    /// A part of a page.
    Part {
        /// The first change.
        first: Seq,
        /// The last change.
        last: Seq,
    },
}

/// A page, as the documents that begin in it need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPage {
    /// Number of the page, from 1.
    pub number: u64,
    /// The first change.
    pub first: Seq,
    /// The last change so far.
    pub last: Seq,
}

impl LogPage {
    /// Returns the document before a range that begins in this page.
    ///
    /// A part of length 2^k begins at a multiple of 2^k within its page. The document before offset `n` is the part that
    /// ends there and is as long as the lowest set bit of `n`. So a chain has a few documents, each is in the chain of all
    /// later ranges until a longer part replaces it, and none depends on more than its own range: permanent documents stay
    /// as they are when the configuration changes.
    pub fn before(&self, first: Seq, last: Seq) -> Option<EarlierDocument> {
        let offset = first.checked_sub(self.first)?;
        if offset == 0 {
            return Some(self.number - 1).filter(|number| *number > 0).map(EarlierDocument::Page);
        }
        let length = (last + 1).checked_sub(first)?.max(1);
        // Rounded up, or each append would give the newest document another predecessor, which every reader would load.
        // The part then has a few of the range's own changes as well.
        let end = offset.next_multiple_of(1 << length.ilog2());
        if self.first + end > self.last + 1 {
            return Some(EarlierDocument::Page(self.number));
        }
        let lowest_bit = end & end.wrapping_neg();
        Some(EarlierDocument::Part { first: self.first + end - lowest_bit, last: self.first + end - 1 })
    }

    /// Returns the parts of this page that lead back to its first change from a range that begins in it.
    pub fn parts_before(&self, first: Seq, last: Seq) -> Vec<(Seq, Seq)> {
        let next = |(first, last): (Seq, Seq)| match self.before(first, last)? {
            EarlierDocument::Part { first, last } => Some((first, last)),
            EarlierDocument::Page(_) => None,
        };
        std::iter::successors(next((first, last)), |part| next(*part)).collect()
    }

    /// Returns true if a range of this page is a part of it.
    pub fn has_part(&self, first: Seq, last: Seq) -> bool {
        let is_inside = first >= self.first && first <= last && last <= self.last;
        let length = (last + 1).saturating_sub(first);
        is_inside
            && length >= MIN_PART
            && length.is_power_of_two()
            && (first - self.first).is_multiple_of(length)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The chain of every newest document has every change of the page, in documents that exist.
    #[test]
    fn the_chain_has_every_change() {
        for (shown, begin) in [(8, 1), (13, 501), (50, 1), (64, 7)] {
            for end in begin..begin + 1000 {
                let page = LogPage { number: 3, first: begin, last: end };
                let newest = ((end + 1).saturating_sub(shown).max(begin), end);
                let parts = page.parts_before(newest.0, newest.1);
                assert!(parts.len() <= 10, "{newest:?}: {parts:?}");
                let mut oldest = newest.0;
                for (first, last) in &parts {
                    assert!(*last + 1 >= oldest && *first < oldest, "{newest:?}: {parts:?}");
                    assert!(page.has_part(*first, *last));
                    oldest = *first;
                }
                assert_eq!(oldest, begin, "{newest:?}: {parts:?}");
                let start = parts.last().map_or(newest, |part| *part);
                assert_eq!(page.before(start.0, start.1), Some(EarlierDocument::Page(2)));
            }
        }
    }

    /// A reader of every newest document loads few entries more than there are.
    #[test]
    fn a_reader_of_every_newest_document_loads_few_parts() {
        let (mut read, mut loaded) = (BTreeSet::new(), 0);
        for end in 1..=1000 {
            let page = LogPage { number: 1, first: 1, last: end };
            for part in page.parts_before((end + 1).saturating_sub(50).max(1), end) {
                if !read.insert(part) {
                    break;
                }
                loaded += part.1 - part.0 + 1;
            }
        }
        assert!(loaded < 4000, "{loaded} of 1000");
    }

    /// A range at the end of a sealed page has no part of its length before it, so the page itself is.
    #[test]
    fn the_end_of_a_sealed_page_leads_to_the_page() {
        let page = LogPage { number: 4, first: 101, last: 110 };
        assert_eq!(page.before(110, 140), Some(EarlierDocument::Page(4)));
        assert_eq!(page.before(101, 140), Some(EarlierDocument::Page(3)));
        assert_eq!(page.before(103, 110), Some(EarlierDocument::Part { first: 101, last: 108 }));
    }
}
