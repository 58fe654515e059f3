//! What the JSON formats share: errors with their place, and values as text.

use serde_json::Value;
use url::Url;

use super::budget::Budget;
use super::xml::place;
use super::{FormatError, has_scheme};

/// Reads a whole document. Nesting is limited (by serde_json, to 128).
pub(crate) fn parse<'a, T: serde::Deserialize<'a>>(text: &'a str) -> Result<T, FormatError> {
    let text = text.trim_start_matches('\u{FEFF}');
    serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let reason = error.to_string();
        if error.is_eof() {
            let (line, column) = place::place(text.as_bytes(), text.len());
            FormatError::Truncated { line, column, reason }
        } else if reason.starts_with("recursion limit exceeded") {
            FormatError::Limit(format!("JSON nested too deeply at line {line}, column {column}"))
        } else {
            FormatError::Malformed { line, column, reason }
        }
    })
}

/// Text, a number or a truth value as text.
pub(crate) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// What kind of value it is, for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// What relative addresses of a document are resolved against, and what may be repeated of it and of the document.
pub(crate) struct Base {
    url: Option<Url>,
    pub(crate) budget: Budget,
}

impl Base {
    /// For a document of `length` bytes that came from `url`.
    pub(crate) fn new(url: Option<&str>, length: usize) -> Self {
        Self { url: url.and_then(|u| Url::parse(u).ok()), budget: Budget::new(length) }
    }

    /// An address, made absolute by the document's where it is relative.
    pub(crate) fn resolve(&mut self, address: String) -> Result<String, FormatError> {
        let Some(base) = self.url.as_ref().filter(|_| !has_scheme(&address)) else { return Ok(address) };
        let reason = || "the document's address is too long for so many relative ones".to_owned();
        self.budget.spend(base.as_str().len(), reason)?;
        Ok(base.join(&address).map_or(address, String::from))
    }
}
