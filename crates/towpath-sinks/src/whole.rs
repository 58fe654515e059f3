//! The whole item after a change, for publishers that send patches alone.

use std::borrow::Cow;

use towpath_proto::follow::Followed;
use towpath_proto::{Item, Op, patch};

/// Returns the item after a put or a patch. `held` reads the item that the destination holds.
///
/// The error is the reason why the patch cannot be applied.
pub(crate) fn whole<'a, E>(
    change: &'a Followed,
    held: impl FnOnce() -> Result<Option<Item>, E>,
) -> Result<Result<Cow<'a, Item>, String>, E> {
    // A patch of towpath's own publishers comes with its result.
    let (Op::Patch, None, Some(patch)) = (change.op, &change.item.content, &change.patch) else {
        return Ok(Ok(Cow::Borrowed(&change.item)));
    };
    let Some(item) = held()? else {
        return Ok(Err(patch::PatchError::NoItem(change.item.id.clone()).to_string()));
    };
    Ok(patch::apply(&item, patch).map(Cow::Owned).map_err(|error| error.to_string()))
}
