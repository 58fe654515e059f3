//! Division of each feed's log into pages, which Data Replication and Feed History both serve.
//!
//! Bodies of pages are not stored. The record of a sealed page has its range of the log; its body is built from the log
//! on request, with the same bytes each time, and cached. A stored copy would double the size of the data folder and
//! save the one read of the log that a page costs. So the log must stay whole.

mod cleanup;
mod feed_cleanup;
mod log_range;
mod paging;
mod retention;
mod state;
pub(crate) mod table;
mod task;
pub(crate) mod verify;

pub use paging::page_since;
pub use state::{PageListener, Pages};
pub use task::run;

pub(crate) use cleanup::{apply_remote, cleanup, on_retention_written, versioned_cleanup};
pub(crate) use feed_cleanup::{VersionedCleanup, cleanup_version};
pub(crate) use log_range::{READ, build_page, limits, read_range, report};
pub(crate) use paging::{Division, divided, number_at, page_at};
pub(crate) use state::on_append;
pub(crate) use table::{PageHeaders, SealedPage};
