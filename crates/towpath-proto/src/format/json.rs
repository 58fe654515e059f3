//! Parts shared by the JSON formats: errors with positions, and values as text.

use std::borrow::Cow;

use serde_json::Value;
use url::Url;

use super::budget::Budget;
use super::error::FormatError;
use super::html;
use super::iri::{has_scheme, web_page};
use super::position::line_and_column;

/// Removes a byte order mark, which JSON does not allow and some publishers send.
pub(crate) fn without_mark(text: &str) -> &str {
    text.trim_start_matches('\u{FEFF}')
}

/// Returns the error for the part of `text` from `offset`, which is not JSON. Nesting is limited by serde_json, to 128.
pub(crate) fn syntax_error(text: &str, offset: usize, error: &serde_json::Error) -> FormatError {
    let reason = error.to_string();
    if error.is_eof() {
        let (line, column) = line_and_column(text.as_bytes(), text.len());
        return FormatError::Truncated { line, column, reason };
    }
    // The error counts from the part's own start.
    let (first_line, first_column) = line_and_column(text.as_bytes(), offset);
    let line = first_line + error.line().saturating_sub(1);
    let column = if error.line() <= 1 { first_column - 1 + error.column() } else { error.column() };
    if reason.starts_with("recursion limit exceeded") {
        return FormatError::Limit(format!(
            "JSON nested too deeply (recursion limit exceeded) at line {line}, column {column}"
        ));
    }
    FormatError::Malformed { line, column, reason }
}

/// Returns text, a number or a boolean as text.
pub(crate) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns the type of a value, for messages.
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

/// Base of a document's relative URLs, and its budget for memory.
#[derive(Debug)]
pub(crate) struct Base {
    url: Option<Url>,
    pub(crate) budget: Budget,
}

impl Base {
    /// Creates the base of a document at `url`.
    pub(crate) fn new(url: Option<&str>, budget: Budget) -> Self {
        Self { url: url.and_then(|u| Url::parse(u).ok()), budget }
    }

    /// Resolves from now on against the feed's page, if there is one.
    pub(crate) fn set_home(&mut self, home: Option<&str>) {
        self.url = home.and_then(web_page).or(self.url.take());
    }

    /// Resolves a relative URL against the base.
    pub(crate) fn resolve(&mut self, address: String) -> Result<String, FormatError> {
        let Some(base) = self.url.as_ref().filter(|_| !has_scheme(&address)) else { return Ok(address) };
        let reason = || "the document's address is too long for so many relative ones".to_owned();
        self.budget.spend(base.as_str().len(), reason)?;
        Ok(base.join(&address).map_or(address, String::from))
    }

    /// Resolves the relative addresses in HTML against an item's page if it is known, else against the base.
    pub(crate) fn resolve_html_of(
        &mut self,
        page: Option<&str>,
        text: &str,
    ) -> Result<Option<String>, FormatError> {
        let Some(page) = page.and_then(web_page) else { return self.resolve_html(text) };
        let of_feed = self.url.replace(page);
        let resolved = self.resolve_html(text);
        self.url = of_feed;
        resolved
    }

    /// Resolves the relative addresses in HTML.
    pub(crate) fn resolve_html(&mut self, text: &str) -> Result<Option<String>, FormatError> {
        match html::resolved(text, |address| self.resolve(address.to_owned()))? {
            Cow::Owned(resolved) if self.url.is_some() => Ok(Some(resolved)),
            _ => Ok(None),
        }
    }
}
