//! Static trees: every document that needs no server, in a folder or on object storage.
//!
//! The documents are the server's own, with the tree's addresses. The state of a tree is stored beside the log
//! (`tree_state`): an export touches only changed documents, and reads only a few records of an unchanged feed.
//!
//! No reader ever finds a broken link: a document is put before the documents that link to it, and removed after them.
//! This holds for each feed (`feed`), and then for the documents over all feeds (`shared_documents`).

mod feed;
mod feed_documents;
mod feed_state;
mod file_type;
mod folder;
mod hosting;
pub(crate) mod objects;
mod open;
mod paths;
mod run;
mod shared_documents;
mod summary;
pub mod target;
mod task;
#[cfg(test)]
mod tests;
mod tree;
mod tree_document;
mod tree_state;

pub use folder::Folder;
pub use objects::Objects;
pub(crate) use open::PlaceAddress;
pub(crate) use open::check_target;
pub use open::open_target;
pub use summary::ExportSummary;
pub use task::{KeptTree, keep};
pub use tree::{ExportError, ExportedFeeds, OnProgress, Tree, name_of};
pub use tree_document::TreeDocument;
