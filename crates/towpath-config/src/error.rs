//! Errors of reading a configuration.

use std::fmt;
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
    /// The files have mistakes: all that were found.
    #[error("{}", lines(.0))]
    Invalid(Vec<ConfigProblem>),
}

/// Mistake in a configuration. It shows no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The file, or the environment variable.
    pub source: String,
    /// Line and column, from 1.
    pub place: Option<(usize, usize)>,
    /// The error, and what to do.
    pub message: String,
}

/// Mistake that another part of the program finds in a table of an array, such as the second `[[sink]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueError {
    /// Name of the array of tables.
    pub table: &'static str,
    /// Number of the table, from 0.
    pub index: usize,
    /// Beginning of the message, such as `sink "db": `.
    pub subject: String,
    /// Key of the table that is wrong.
    pub key: &'static str,
    /// The error, and what to do. It shows no secret.
    pub message: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, place, message } = self;
        match place {
            Some((line, column)) => write!(f, "{source}: line {line}, column {column}: {message}"),
            None => write!(f, "{source}: {message}"),
        }
    }
}

fn lines(problems: &[ConfigProblem]) -> String {
    match problems {
        [only] => only.to_string(),
        _ => {
            let lines: Vec<_> = problems.iter().map(|problem| format!("\n  {problem}")).collect();
            format!("the configuration has {} errors:{}", problems.len(), lines.concat())
        }
    }
}
