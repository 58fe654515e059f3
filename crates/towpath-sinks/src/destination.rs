//! Destinations: parsed from their text, and opened.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use towpath_client::sink::WithStateFile;
use towpath_client::{Sink, Transport};

use crate::exec::{ExecDestination, ExecSink};
use crate::folder::{FolderDestination, FolderSink};
use crate::nats::{NatsDestination, NatsSink};
use crate::postgres::{PostgresDestination, PostgresSink};
use crate::sqlite::{SqliteDestination, SqliteSink};
use crate::webhook::{WebhookDestination, WebhookOptions, WebhookSink};

/// A destination, with the options of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// `sqlite:PATH[?table=…]`.
    Sqlite(SqliteDestination),
    /// `postgres://USER@HOST/DATABASE[?schema=…&table=…]`.
    Postgres(Box<PostgresDestination>),
    /// `webhook:URL`.
    Webhook(WebhookDestination),
    /// `nats://HOST/SUBJECT`.
    Nats(NatsDestination),
    /// `dir:PATH`.
    Folder(FolderDestination),
    /// `exec:COMMAND`.
    Exec(ExecDestination),
}

/// Options that do not belong into a destination's text.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct DestinationOptions {
    /// Password of a database whose URL has none.
    pub password: Option<String>,
    /// Options of a webhook.
    pub webhook: WebhookOptions,
}

impl DestinationOptions {
    /// Sets [`password`](Self::password).
    #[must_use]
    pub fn with_password(mut self, password: impl Into<Option<String>>) -> Self {
        self.password = password.into();
        self
    }

    /// Sets [`webhook`](Self::webhook).
    #[must_use]
    pub fn with_webhook(mut self, webhook: WebhookOptions) -> Self {
        self.webhook = webhook;
        self
    }
}

/// The text names no destination, or has a bad option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DestinationError {
    /// The kind is unknown.
    #[error("{0:?} is not a destination; expected {FORMS}")]
    Kind(String),
    /// A part of it is missing or wrong.
    #[error("the destination {name}: {reason}")]
    Form {
        /// Destination without credentials.
        name: String,
        /// Fault, and what is expected.
        reason: String,
    },
}

/// Forms of a destination, for help and errors.
pub const FORMS: &str =
    "sqlite:PATH, postgres://USER@HOST/DATABASE, dir:PATH, exec:COMMAND, webhook:URL or nats://HOST/SUBJECT";

impl FromStr for Destination {
    type Err = DestinationError;

    /// Parses a destination that a user names on a command line. Secrets are taken from the environment.
    fn from_str(text: &str) -> Result<Self, DestinationError> {
        let webhook = WebhookOptions::from_environment()
            .map_err(|reason| DestinationError::Form { name: towpath_client::redact::text(text), reason })?;
        Self::parse(text, &DestinationOptions { password: None, webhook })
    }
}

impl Destination {
    /// Parses a destination.
    ///
    /// # Errors
    ///
    /// [`DestinationError`], which shows no credentials.
    pub fn parse(text: &str, options: &DestinationOptions) -> Result<Self, DestinationError> {
        let unknown = || DestinationError::Kind(towpath_client::redact::text(text));
        let (kind, rest) = text.split_once(':').ok_or_else(unknown)?;
        let parsed = match kind {
            "sqlite" => SqliteDestination::parse(rest).map(Self::Sqlite),
            "postgres" | "postgresql" => PostgresDestination::parse(text, options.password.as_deref())
                .map(|to| Self::Postgres(Box::new(to))),
            "webhook" => WebhookDestination::parse(rest, options.webhook.clone()).map(Self::Webhook),
            "nats" | "tls" => NatsDestination::parse(text).map(Self::Nats),
            "dir" => FolderDestination::parse(rest).map(Self::Folder),
            "exec" => ExecDestination::parse(rest).map(Self::Exec),
            _ => return Err(unknown()),
        };
        let name = || towpath_client::redact::text(text);
        parsed.map_err(|reason| DestinationError::Form { name: name(), reason })
    }
}

impl fmt::Display for Destination {
    /// Formats the destination's name without credentials and options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(sqlite) => write!(f, "sqlite:{}", sqlite.path.display()),
            Self::Postgres(postgres) => postgres.fmt(f),
            Self::Webhook(webhook) => write!(f, "webhook:{webhook}"),
            Self::Nats(nats) => nats.fmt(f),
            Self::Folder(folder) => write!(f, "dir:{}", folder.path.display()),
            Self::Exec(exec) => write!(f, "exec:{}", exec.command),
        }
    }
}

/// Creates the sink of a destination. Nothing is opened or connected before [`Sink::open`].
pub fn open(destination: &Destination) -> Box<dyn Sink> {
    open_over(destination, None)
}

/// Creates the sink of a destination, whose webhooks are sent by `transport`, if there is one.
pub fn open_over(destination: &Destination, transport: Option<Arc<dyn Transport>>) -> Box<dyn Sink> {
    match destination {
        Destination::Sqlite(sqlite) => Box::new(SqliteSink::new(sqlite.clone())),
        Destination::Postgres(postgres) => Box::new(PostgresSink::new((**postgres).clone())),
        Destination::Webhook(webhook) => {
            Box::new(WebhookSink::new(webhook.clone()).with_transport(transport))
        }
        Destination::Nats(nats) => Box::new(NatsSink::new(nats.clone())),
        Destination::Folder(folder) => Box::new(FolderSink::new(folder.clone())),
        Destination::Exec(exec) => Box::new(ExecSink::new(exec.clone())),
    }
}

/// Creates the sink of a destination, with a state file where the destination keeps no position itself.
///
/// # Errors
///
/// [`DestinationError::Form`] if the destination needs no state file, or the file cannot be used.
pub fn open_with_state(
    destination: &Destination,
    state: Option<&Path>,
) -> Result<Box<dyn Sink>, DestinationError> {
    let Some(path) = state else { return Ok(open(destination)) };
    let name = destination.to_string();
    if let Destination::Exec(exec) = destination {
        // Acknowledgements move its state, not the end of a batch.
        return Ok(Box::new(ExecSink::new(ExecDestination { state: Some(path.into()), ..exec.clone() })));
    }
    let sink = open(destination);
    if sink.keeps_checkpoint() {
        let reason = "it keeps the position itself; leave out the state file".into();
        return Err(DestinationError::Form { name, reason });
    }
    match WithStateFile::open(sink, &name, path) {
        Ok(sink) => Ok(Box::new(sink)),
        Err(error) => Err(DestinationError::Form { name, reason: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_its_kind_and_place() {
        for (text, name) in [
            ("sqlite:copy.db", "sqlite:copy.db"),
            ("sqlite:/a/b?c.db?table=kev&changes=off&search=on", "sqlite:/a/b?c.db"),
            ("sqlite:what?.db", "sqlite:what?.db"),
            ("postgres://me:secret@db.example/feeds?table=kev", "postgres://me@db.example/feeds"),
            ("webhook:https://a.example/hook?key=secret", "webhook:https://a.example/hook?…"),
            ("nats://me:secret@a.example/changes", "nats://a.example/changes"),
            ("dir:/a b", "dir:/a b"),
            ("exec:tee -a 'x?y=z'", "exec:tee -a 'x?y=z'"),
        ] {
            let parsed: Destination = text.parse().unwrap();
            assert_eq!(parsed.to_string(), name, "{text}");
        }
    }

    #[test]
    fn a_bad_destination_is_refused_with_what_is_expected() {
        for (text, part) in [
            ("copy.db", "sqlite:PATH"),
            ("mysql://me:secret@host/", "mysql://host/"),
            ("postgres://me:secret@host/db?tables=kev", "unknown option"),
            ("webhook:ftp://me:secret@host/", "http"),
            ("nats://me:secret@host", "subject"),
            ("sqlite:", "a path"),
            ("sqlite::memory:", "in memory"),
            ("sqlite:x?tables=kev", "table, changes, search"),
            ("sqlite:x?table=a-b", "letters, digits"),
            ("sqlite:x?changes=soon", "changes=30d"),
            ("sqlite:x?search=maybe", "on or off"),
            ("dir:", "a path"),
            ("exec: ", "a command"),
        ] {
            let error = text.parse::<Destination>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
