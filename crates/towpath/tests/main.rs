//! Tests of the program from outside, as its users and clients meet it. A file holds those of one topic.
//!
//! All are one test program: linking one for each file took most of a build's time. `cargo test --test program alerts::`
//! runs the tests of one file.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(missing_docs, unreachable_pub, reason = "nothing outside sees them")]

mod abuse;
mod adverse_conditions;
mod alerts;
mod backup;
mod backup_storage;
mod bad_input;
mod callback;
mod change_lines;
mod check_watch;
mod cli_follow;
mod cluster;
mod cluster_faults;
mod cluster_feeds;
mod cluster_power;
mod cluster_roles;
mod cluster_takeover;
mod cluster_versions;
mod common;
mod damaged_files;
mod dashboard;
mod data_folder;
mod diffdelta_catalogue;
mod diffdelta_follow;
mod diffdelta_foreign;
mod discovery;
mod export;
mod export_follow;
mod export_order;
mod export_storage;
mod external_hubs;
mod faults;
mod feed_readers;
mod follow_anew;
mod follow_into;
mod follow_many;
mod follow_page;
mod history_follow;
mod history_recent;
mod http_feeds;
mod http_sources;
mod js_client;
mod kill;
mod large_content;
mod large_files;
mod log_retention;
mod logs;
mod metrics;
mod mirror;
mod mirror_files;
mod mirror_pairs;
mod nodes;
mod openapi;
mod operations;
#[cfg(feature = "otlp")]
mod otlp;
#[allow(dead_code, reason = "the tests of towpath-sinks need more of it")]
#[path = "../../towpath-sinks/tests/support/postgres_server.rs"]
mod postgres_server;
mod publishing;
mod publishing_effects;
mod publishing_history;
mod publishing_sup;
mod publishing_syndication;
mod push_documents;
mod push_hub;
mod push_sources;
mod push_subscriber;
mod python_client;
#[path = "../../towpath-client/tests/raw_server/mod.rs"]
mod raw_server;
mod reload;
mod removed_feeds;
mod replication_faults;
mod replication_feed;
mod replication_mirror;
mod replication_snapshot;
mod rust_client;
mod sink_kills;
mod sinks;
mod smart_follow;
mod smart_rearm;
mod smart_server;
mod smart_waiting;
mod storage;
mod terminal;
mod tus_clients;
mod upgrade;
mod web_forms;
mod web_page;
mod xmpp_component;
mod xmpp_follow;
