//! Data Replication: multipart pages and snapshots.
