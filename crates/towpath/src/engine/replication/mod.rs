//! Every feed as Data Replication: its pages and its snapshots, which are kept as places in the log.

pub mod served;
pub mod snapshot;
pub(super) mod table;

pub(super) use served::forget as forget_page;
