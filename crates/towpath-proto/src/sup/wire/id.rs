//! SUP IDs and update ids (sections 4 and 5).

use std::fmt;

use sha2::{Digest, Sha256};

use crate::change::Seq;

/// Maximum length of an id, in characters (sections 4 and 5).
pub const MAX_ID: usize = 128;

/// Returns true if `text` is a valid SUP ID or update id: 1 to [`MAX_ID`] ASCII letters, digits and hyphens
/// (sections 4 and 5, `1*128(CHAR / DIGIT / "-")`).
pub fn is_id(text: &str) -> bool {
    (1..=MAX_ID).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// The SUP ID of a feed: the first 64 bits of the SHA-256 of its URL, written as 16 hex digits.
///
/// A URL always has the same id (section 4), on every node and after every restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SupId(u64);

impl SupId {
    /// Returns the id of the feed at this URL, which is not normalised.
    pub fn of(feed_url: &str) -> Self {
        let digest = Sha256::digest(feed_url);
        // Two of a million feeds share 64 bits with a chance of 3 in 10^8, at the cost of a needless poll.
        Self(digest[..8].iter().fold(0, |id, byte| (id << 8) | u64::from(*byte)))
    }

    /// Returns the id as a fraction of all ids, from 0 to 1. It spreads the polls of many feeds over a period.
    pub(in crate::sup) fn fraction(self) -> f64 {
        self.0 as f64 / u64::MAX as f64
    }
}

impl fmt::Display for SupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The id of an update (section 5): the position of the feed's last change in its log, in hex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UpdateId(pub Seq);

impl fmt::Display for UpdateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Section 4: "A single feed MUST always map to a single, stable SUP ID".
    #[test]
    fn section_4_the_id_of_a_feed_never_changes() {
        // The first 8 bytes of the output of `printf %s URL | sha256sum`.
        let id = SupId::of("https://example.com/feeds/kev/atom");
        assert_eq!(id.to_string(), "2257f832df3987e0");
        assert_ne!(id, SupId::of("https://example.com/feeds/kev/rss"));
    }

    #[test]
    fn sections_4_and_5_ids_have_their_grammar() {
        for good in ["a", "4496672d", "A-b-9", &"x".repeat(128)] {
            assert!(is_id(good), "{good}");
        }
        for bad in ["", "a/b", "a b", "ä", "a_b", &"x".repeat(129)] {
            assert!(!is_id(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn generated_ids_are_valid(url in "\\PC{0,50}", seq: u64) {
            prop_assert!(is_id(&SupId::of(&url).to_string()));
            prop_assert!(SupId::of(&url).to_string().len() >= 10);
            prop_assert!(is_id(&UpdateId(seq).to_string()));
        }
    }
}
