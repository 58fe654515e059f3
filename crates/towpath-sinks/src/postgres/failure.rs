//! Failures of the database, by what helps: waiting, a person, or leaving an item out.

use std::error::Error as _;
use std::fmt;

use tokio_postgres::error::SqlState;

/// Failure of a statement or a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PgFailure {
    /// The server is away, full or busy. The same statement succeeds later.
    Unavailable(String),
    /// The server refuses the user, the tables or this version. A person has to change something.
    Refused(String),
    /// The server refuses a value. Another item may be taken.
    Data(String),
}

impl fmt::Display for PgFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Unavailable(reason) | Self::Refused(reason) | Self::Data(reason)) = self;
        f.write_str(reason)
    }
}

impl PgFailure {
    /// Judges an error of the driver.
    pub(super) fn of(error: &tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            return Self::without_answer(error);
        };
        let said = format!("{} (SQLSTATE {})", db.message(), db.code().code());
        match advice(db.code()) {
            Some(advice) => advice(said),
            None => Self::by_class(db.code().code(), said),
        }
    }

    /// Judges an error that the server did not send: the network, TLS, or a value that cannot be encoded.
    fn without_answer(error: &tokio_postgres::Error) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            // The driver's own text often ends with its cause already.
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        if text.contains("does not support TLS") {
            return Self::Refused(format!(
                "{text}: on a network that you trust, add ?sslmode=disable to the URL"
            ));
        }
        if text.contains("password missing") {
            return Self::Refused(
                "the server asks for a password: put it into the URL, or set the variable PGPASSWORD".into(),
            );
        }
        if text.contains("invalid peer certificate") || text.contains("UnknownIssuer") {
            return Self::Refused(format!(
                "{text}: name the certificate of its issuer with ?sslrootcert=FILE"
            ));
        }
        Self::Unavailable(text)
    }

    /// Judges an error by its class (PostgreSQL documentation, appendix A).
    fn by_class(code: &str, said: String) -> Self {
        match code.get(..2).unwrap_or_default() {
            // Data exceptions, violated constraints, limits of the program such as the longest key of an index.
            "22" | "23" | "54" => Self::Data(said),
            // Functions and triggers of the owner of the tables: they refuse what they do not like.
            "P0" | "38" | "39" | "44" => Self::Data(said),
            // Connections, resources, rollbacks, the operator's intervention, the system's own errors.
            "08" | "40" | "53" | "55" | "57" | "58" | "25" => Self::Unavailable(said),
            _ => Self::Refused(said),
        }
    }
}

impl From<tokio_postgres::Error> for PgFailure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::of(&error)
    }
}

/// Returns the failure for codes that need advice.
fn advice(code: &SqlState) -> Option<fn(String) -> PgFailure> {
    use PgFailure::{Refused, Unavailable};

    type Advice = fn(String) -> PgFailure;
    let known: [(&SqlState, Advice); 10] = [
        (&SqlState::INVALID_PASSWORD, |said| Refused(format!("{said}: check the password"))),
        (&SqlState::INVALID_AUTHORIZATION_SPECIFICATION, |said| {
            Refused(format!("{said}: check the user, and pg_hba.conf of the server"))
        }),
        (&SqlState::INVALID_CATALOG_NAME, |said| Refused(format!("{said}: create it with CREATE DATABASE"))),
        (&SqlState::INSUFFICIENT_PRIVILEGE, |said| {
            Refused(format!("{said}: GRANT CREATE, USAGE ON SCHEMA and ALL ON the tables to this user"))
        }),
        (&SqlState::READ_ONLY_SQL_TRANSACTION, |said| {
            Unavailable(format!("{said}: it is a standby, or was made read-only"))
        }),
        (&SqlState::DISK_FULL, |said| Unavailable(format!("{said}: the disk of the database is full"))),
        (&SqlState::TOO_MANY_CONNECTIONS, |said| {
            Unavailable(format!("{said}: raise max_connections, or close connections"))
        }),
        (&SqlState::UNDEFINED_TABLE, |said| {
            Refused(format!("{said}: somebody dropped or renamed a table of this sink"))
        }),
        (&SqlState::UNDEFINED_COLUMN, |said| {
            Refused(format!("{said}: somebody changed a table of this sink"))
        }),
        (&SqlState::NOT_NULL_VIOLATION, |said| {
            Refused(format!("{said}: somebody added a column to a table of this sink that has no default"))
        }),
    ];
    known.into_iter().find(|(known, _)| *known == code).map(|(_, advice)| advice)
}
