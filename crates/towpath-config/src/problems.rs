//! Collects the problems of a configuration's values, with the keys that they are at.

use super::tree::PathStep;

/// Collects the values of a list, or the errors of all that are wrong, as one message.
pub(super) fn all_of<T>(values: impl Iterator<Item = Result<T, String>>) -> Result<Vec<T>, String> {
    let (mut good, mut errors) = (Vec::new(), Vec::new());
    for value in values {
        match value {
            Ok(value) => good.push(value),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(good) } else { Err(errors.join("; ")) }
}

/// A value that is not valid.
#[derive(Debug)]
pub(super) struct ValueProblem {
    /// Way to the value.
    pub(super) path: Vec<PathStep>,
    pub(super) message: String,
}

/// Problems of the values.
#[derive(Debug, Default)]
pub(super) struct Problems {
    found: Vec<ValueProblem>,
    /// Way to the table whose values are validated.
    table: Vec<PathStep>,
    /// Beginning of messages, such as `feed "kev": `.
    subject: String,
}

impl Problems {
    /// Begins with the values of a table, such as `[server]`.
    pub(super) fn enter(&mut self, table: &str, index: Option<usize>, subject: String) {
        let index = index.map(PathStep::Index);
        self.table = [PathStep::Key(table.to_owned())].into_iter().chain(index).collect();
        self.subject = subject;
    }

    /// Adds a problem at a key of the table, such as `source.every`.
    pub(super) fn add(&mut self, key: &str, message: impl AsRef<str>) {
        let keys = key.split('.').filter(|key| !key.is_empty()).map(|key| PathStep::Key(key.to_owned()));
        let path = self.table.iter().cloned().chain(keys).collect();
        let message = format!("{}{}", self.subject, message.as_ref());
        self.found.push(ValueProblem { path, message });
    }

    /// Adds the problem of a check, if it failed.
    pub(super) fn check(&mut self, key: &str, result: Result<(), impl AsRef<str>>) {
        if let Err(message) = result {
            self.add(key, message);
        }
    }

    /// Adds a problem unless a condition holds.
    pub(super) fn ensure(&mut self, holds: bool, key: &str, message: impl AsRef<str>) {
        if !holds {
            self.add(key, message);
        }
    }

    pub(super) fn into_found(self) -> Vec<ValueProblem> {
        self.found
    }
}
