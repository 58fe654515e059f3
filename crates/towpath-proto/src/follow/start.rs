//! Start positions: where a feed that has no persisted state is followed from.

use jiff::Timestamp;

/// Start position of a feed that has not been followed before.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StartFrom {
    /// Everything that the publisher still has.
    #[default]
    Beginning,
    /// Changes after now.
    Now,
    /// Changes modified at this time or later.
    Time(Timestamp),
    /// Changes after this position, a cursor or Content-ID of the publisher's.
    Position(String),
}
