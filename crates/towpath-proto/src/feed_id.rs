//! Ids of feeds.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Id of a feed: 2 to 32 characters of `a-z`, `0-9`, `_` and `-` (the pattern of a source in DiffDelta's
/// schema), other than the reserved `_global` and `source`.
///
/// Cheap to clone: clones share the text.
///
/// ```
/// use towpath_proto::FeedId;
///
/// assert_eq!(FeedId::new("orders")?.as_str(), "orders");
/// assert!(FeedId::new("No such name!").is_err());
/// # Ok::<(), towpath_proto::feed_id::FeedIdError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FeedId(Arc<str>);

/// Ids with a special meaning in published URLs.
const RESERVED: [&str; 2] = ["_global", "source"];

/// Error: a text is not a feed id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeedIdError {
    /// The length or a character violates the pattern.
    #[error("feed id {0:?} is not 2 to 32 characters of a-z, 0-9, _ and -")]
    Pattern(String),
    /// The id is reserved for published URLs.
    #[error("feed id {0:?} is reserved")]
    Reserved(String),
}

impl FeedId {
    /// Length of the longest id, in bytes.
    pub const MAX_LEN: usize = 32;

    /// Validates `text` as a feed id.
    pub fn new(text: &str) -> Result<Self, FeedIdError> {
        let fits = (2..=Self::MAX_LEN).contains(&text.len())
            && text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'));
        if !fits {
            // A hostile name must not fill the log.
            let shown: String = text.chars().take(80).collect();
            return Err(FeedIdError::Pattern(shown));
        }
        if RESERVED.contains(&text) {
            return Err(FeedIdError::Reserved(text.to_owned()));
        }
        Ok(Self(text.into()))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for FeedId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FeedId".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[a-z0-9_-]{2,32}$" })
    }
}

impl TryFrom<String> for FeedId {
    type Error = FeedIdError;
    fn try_from(text: String) -> Result<Self, FeedIdError> {
        Self::new(&text)
    }
}

impl std::str::FromStr for FeedId {
    type Err = FeedIdError;
    fn from_str(text: &str) -> Result<Self, FeedIdError> {
        Self::new(text)
    }
}

impl From<FeedId> for String {
    fn from(id: FeedId) -> Self {
        id.0.as_ref().to_owned()
    }
}

impl AsRef<str> for FeedId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for FeedId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FeedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for FeedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_pattern_of_the_schema() {
        for good in ["ab", "aws_whats_new", "a-1", &"x".repeat(32)] {
            assert_eq!(FeedId::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn refuses_everything_else() {
        // `..` and `a/b` would leave the feed's place in URLs and folders.
        for bad in ["", "a", "A1", "a b", "ä1", "a/b", "..", &"x".repeat(33)] {
            assert!(matches!(FeedId::new(bad), Err(FeedIdError::Pattern(_))), "{bad}");
        }
        assert!(matches!(FeedId::new("_global"), Err(FeedIdError::Reserved(_))));
        assert!(matches!(FeedId::new("source"), Err(FeedIdError::Reserved(_))));
    }
}
