//! Destinations in which a follow ends: databases, folders, queues and programs.
//!
//! A destination is named by a text, as on the command line (`towpath follow URL --into DEST`):
//!
//! ```
//! use towpath_sinks::{Destination, open};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("copy.db");
//! let destination: Destination = format!("sqlite:{}?table=kev&changes=30d", path.display()).parse()?;
//! let sink = open(&destination);
//! assert!(sink.keeps_checkpoint());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`destination`] | parses and opens destinations |
//! | [`query`] | options behind the `?` of a destination |
//! | [`tables`] | columns and options that all databases share |
//! | [`sqlite`] | one SQLite database, exactly once |
//! | [`postgres`] | tables in a PostgreSQL database, exactly once |
//! | [`webhook`] | signed messages to a URL, at least once |
//! | [`nats`] | messages to a subject of NATS JetStream, at least once |
//! | [`folder`] | one file per item |
//! | [`exec`] | a program that reads lines and acknowledges them |
//! | [`stdout`] | lines to standard output, acknowledged on standard input |
//! | `conformance` | tests that every kind passes (feature `conformance`) |

mod blocking_store;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod destination;
pub mod exec;
mod file_identity;
pub mod folder;
pub mod nats;
pub mod postgres;
pub mod query;
pub mod sqlite;
pub mod stdout;
pub mod tables;
pub mod webhook;
mod whole;

pub use destination::{Destination, DestinationError, DestinationOptions, open, open_over, open_with_state};
