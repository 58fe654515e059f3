//! NDJSON: one item per line.

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::stream::RawItemReader;
use crate::format::error::FormatError;
use crate::format::json::{syntax_error, without_mark};

/// Returns `true` if a document is an object per line, and not one value.
pub(super) fn is_lines(text: &str) -> bool {
    let text = without_mark(text).trim_start();
    let Some((first, rest)) = text.split_once('\n') else { return false };
    first.starts_with('{')
        && rest.trim_start().starts_with('{')
        && serde_json::from_str::<IgnoredAny>(first).is_ok()
}

/// Passes each line that is not blank to `reader`.
pub(super) fn read_lines(text: &str, reader: &mut impl RawItemReader) -> Result<(), FormatError> {
    let text = without_mark(text);
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        if !line.trim().is_empty() {
            let item: &RawValue = serde_json::from_str(line).map_err(|error| {
                let is_last = offset + line.len() == text.len() && !line.ends_with('\n');
                match syntax_error(text, offset, &error) {
                    // Only the end of the document can be cut off.
                    FormatError::Truncated { reason, .. } if !is_last => crate::format::position::malformed(
                        text.as_bytes(),
                        offset + line.trim_end().len(),
                        reason,
                    ),
                    error => error,
                }
            })?;
            reader.read_item(None, item)?;
        }
        offset += line.len();
    }
    Ok(())
}
