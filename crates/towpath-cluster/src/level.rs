//! Feature levels: what the messages of a log may contain, and how nodes decide on them.
//!
//! | level | adds |
//! |---|---|
//! | 1 | appends and table writes |
//! | 2 | the level itself: each message names the level of its cluster, and a message can raise it |
//!
//! A cluster is at the level that its log was last raised to. One node proposes the next level once every live node has
//! it, and [`decide`](towpath_store::embedded::command::LogCommand::raise_level) makes it so, at one position for all.
//! A node reads the level before the rest of a message. Where it is higher than its own, the node stops: it does not
//! know what the message does. Nodes of level 1 do so as well: for them the number is that of an unknown format.
//!
//! To add a level, raise [`SUPPORTED`], and let producers check [`NodeHealth::level`] before they publish what is new.
//!
//! [`NodeHealth::level`]: crate::health::NodeHealth::level

/// Highest level that this program supports.
pub const SUPPORTED: u8 = 2;

/// Returns the sentence of a node that is too old for its cluster.
pub(crate) fn too_old(needed: u8, supported: u8) -> String {
    format!(
        "the cluster is at feature level {needed}, and this program has up to {supported}: a newer version of towpath \
         raised it; upgrade this node"
    )
}
