//! Errors of reading a configuration.

use std::path::PathBuf;

/// The configuration cannot be used. The user's fault; every message says where.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason, and what to do.
        reason: String,
    },
    /// The file is not TOML, or contains an unknown key or a value of the wrong type.
    #[error("{path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, column and the error there.
        message: String,
    },
    /// An invalid value of a `[[feed]]`.
    #[error("{path}: feed {feed:?}: {message}")]
    Feed {
        /// The file.
        path: PathBuf,
        /// The feed.
        feed: String,
        /// The error.
        message: String,
    },
    /// An invalid value of a `[[token]]`.
    #[error("{path}: token {token:?}: {message}")]
    Token {
        /// The file.
        path: PathBuf,
        /// Name of the token.
        token: String,
        /// The error, without any secret.
        message: String,
    },
    /// An invalid value of `[xmpp]`.
    #[error("{path}: [xmpp] {message}")]
    Xmpp {
        /// The file.
        path: PathBuf,
        /// The error.
        message: String,
    },
    /// An invalid value of `[export]`.
    #[error("{path}: [export] {message}")]
    Export {
        /// The file.
        path: PathBuf,
        /// The error.
        message: String,
    },
    /// An invalid value of `[server]`.
    #[error("{path}: [server] {message}")]
    Server {
        /// The file.
        path: PathBuf,
        /// The error.
        message: String,
    },
}

impl ConfigError {
    /// Changes the message.
    pub(super) fn map_message(mut self, change: impl FnOnce(String) -> String) -> Self {
        let (Self::Read { reason: message, .. }
        | Self::Parse { message, .. }
        | Self::Feed { message, .. }
        | Self::Token { message, .. }
        | Self::Xmpp { message, .. }
        | Self::Export { message, .. }
        | Self::Server { message, .. }) = &mut self;
        *message = change(std::mem::take(message));
        self
    }
}
