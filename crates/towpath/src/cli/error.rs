//! Errors of commands, and their exit codes.

use std::fmt;
use std::process::ExitCode;

use towpath_client::state_file::StateError;
use towpath_client::{DiscoverError, FindRouteError, ListenError, SetupError};
use towpath_cluster::ClusterError;
use towpath_proto::FeedId;
use towpath_proto::follow::FollowError;
use towpath_store::{OpenError, ReadError};

use super::feed_list::ListError;
use crate::config::ConfigError;
use crate::engine::EngineError;
use crate::export::ExportError;
use crate::export::target::TargetError;
use crate::server::{ServeError, TlsError};
use crate::store_error::StoreError;

/// Exit code of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Everything was done.
    Done = 0,
    /// Something failed.
    Failed = 1,
    /// The command line or the configuration is invalid.
    Usage = 2,
    /// Everything that the publisher still has was delivered, but older items are missing.
    Incomplete = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Failure of a command, with a message that names what failed, where, and what to do.
#[derive(Debug)]
pub struct CliError {
    /// The exit code.
    pub exit: Exit,
    /// The message.
    pub message: String,
    /// True if a server refused a request: asking again gives the same answer.
    pub is_refusal: bool,
}

impl CliError {
    /// Error in the command line or the configuration.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, message: message.into(), is_refusal: false }
    }

    /// Any other failure.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, message: message.into(), is_refusal: false }
    }

    /// A feed lacks an item.
    pub(super) fn no_item(feed: &FeedId, id: &str) -> Self {
        Self::failed(format!("feed {feed} has no item {id:?}"))
    }

    /// Refusal of a server, with its words.
    pub fn refused(message: impl Into<String>) -> Self {
        Self { is_refusal: true, ..Self::failed(message) }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<TlsError> for CliError {
    fn from(error: TlsError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<ServeError> for CliError {
    fn from(error: ServeError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<ReadError> for CliError {
    fn from(error: ReadError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<OpenError> for CliError {
    fn from(error: OpenError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<ClusterError> for CliError {
    fn from(error: ClusterError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> Self {
        match error {
            // The rules file is named in the configuration, so it is the user's to fix.
            EngineError::Rules { .. } => Self::usage(error.to_string()),
            EngineError::Store(_) => Self::failed(error.to_string()),
        }
    }
}

impl From<TargetError> for CliError {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Place { .. } => Self::usage(error.to_string()),
            TargetError::File { .. } | TargetError::Storage { .. } | TargetError::Body { .. } => {
                Self::failed(error.to_string())
            }
        }
    }
}

impl From<ExportError> for CliError {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Target(error) => error.into(),
            error => Self::failed(error.to_string()),
        }
    }
}

impl From<StateError> for CliError {
    fn from(error: StateError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<ListError> for CliError {
    fn from(error: ListError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<SetupError> for CliError {
    fn from(error: SetupError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<ListenError> for CliError {
    fn from(error: ListenError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<DiscoverError> for CliError {
    fn from(error: DiscoverError) -> Self {
        let hint = match error {
            DiscoverError::Unknown { .. } => "; name its protocol with --protocol",
            _ => "",
        };
        Self::failed(format!("{error}{hint}"))
    }
}

impl From<FindRouteError> for CliError {
    fn from(error: FindRouteError) -> Self {
        match error {
            FindRouteError::Discover(error) => error.into(),
            other => Self::usage(other.to_string()),
        }
    }
}

impl From<FollowError> for CliError {
    fn from(error: FollowError) -> Self {
        match error {
            FollowError::Usage(text) => Self::usage(text),
            other => Self::failed(other.to_string()),
        }
    }
}
