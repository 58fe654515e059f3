//! Places of Feed History's elements, in Atom and RSS.

use super::rules::history as rules;
use super::walk::WalkState;
use super::xml::XmlStart;
use crate::format::xml::HISTORY;

/// Reports an element of Feed History that does not stand in a feed's head.
///
/// "It MUST NOT occur there more than once, or elsewhere in a feed document." (-04, sections 3 to 5)
pub(super) fn history_element(is_head: bool, start: &XmlStart<'_>, walk: &mut WalkState<'_>) {
    if is_head || start.ns != HISTORY {
        return;
    }
    let rule = match start.local {
        "Stateful" => rules::STATEFUL,
        "incremental" => rules::INCREMENTAL,
        "archive" => rules::ARCHIVE,
        "prev" => rules::PREV,
        "complete" => rules::COMPLETE,
        _ => return,
    };
    walk.judge(rule, false, || format!("fh:{} outside of the feed's head", start.local));
}
