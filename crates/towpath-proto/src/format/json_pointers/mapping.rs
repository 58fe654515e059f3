//! The mapping of a JSON feed: pointers to its parts.

use serde::{Deserialize, Serialize};

use super::node::KEY;
use super::template::{TemplatePart, parts};
use crate::format::error::FormatError;

/// Pointers (RFC 6901) to the parts of a JSON feed. `items` is relative to the document, all others to an
/// item.
///
/// A value with `{` is a template. In `https://example.com/{/id}` each `{pointer}` is replaced by the value
/// it points to, percent-encoded.
///
/// `#key` is an item's name where the items are an object's members: `id = "#key"`, `{#key}` in templates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Mapping {
    /// Array of items, or object whose values are the items. The empty pointer is the document itself, or in NDJSON
    /// its lines.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(example = "/vulnerabilities"))]
    pub items: String,
    /// Id of the item: text, or a number as written.
    #[cfg_attr(feature = "schema", schemars(example = "/cveID"))]
    pub id: String,
    /// Address of the item's page.
    #[cfg_attr(feature = "schema", schemars(example = "https://nvd.nist.gov/vuln/detail/{/cveID}"))]
    pub url: Option<String>,
    /// Title, as plain text.
    #[cfg_attr(feature = "schema", schemars(example = "/vulnerabilityName"))]
    pub title: Option<String>,
    /// Short description, as plain text.
    #[cfg_attr(feature = "schema", schemars(example = "/shortDescription"))]
    pub summary: Option<String>,
    /// Text of the content, of type `content_type`. Without it the content is the whole item as JSON.
    #[cfg_attr(feature = "schema", schemars(example = "/body_html"))]
    pub content: Option<String>,
    /// Media type of `content`, not a pointer. `text/html` by default.
    #[cfg_attr(feature = "schema", schemars(example = "text/plain"))]
    pub content_type: Option<String>,
    /// Name of the author, or array of names.
    #[cfg_attr(feature = "schema", schemars(example = "/vendorProject"))]
    pub authors: Option<String>,
    /// Tag, or array of tags.
    #[cfg_attr(feature = "schema", schemars(example = "/tags"))]
    pub tags: Option<String>,
    /// Time of publication: a date, date and time, or Unix seconds, also with a fraction. Text of up to eight digits is
    /// not taken for seconds: `20250124` is a day.
    #[cfg_attr(feature = "schema", schemars(example = "/dateAdded"))]
    pub published: Option<String>,
    /// Time of the last update, in the same forms.
    #[cfg_attr(feature = "schema", schemars(example = "/dateUpdated"))]
    pub updated: Option<String>,
}

impl Mapping {
    /// Checks that each value is a pointer (RFC 6901, section 3) or a template of pointers.
    pub fn check(&self) -> Result<(), FormatError> {
        if !is_pointer(&self.items) {
            // Checked before reading, so that a typo is not reported as an empty feed.
            return Err(mapping_error(&self.items, "items is not a pointer: it must begin with /".into()));
        }
        for (name, value) in self.fields() {
            let Some(value) = value else { continue };
            check_value(value).map_err(|reason| mapping_error(value, format!("{name} {reason}")))?;
        }
        Ok(())
    }

    /// Returns true if the mapping reads values that are no objects: it takes an item whole, or only its name.
    pub(super) fn takes_scalars(&self) -> bool {
        let mut pointers = Vec::new();
        for value in self.fields().into_iter().filter_map(|(_, value)| value) {
            if value.contains('{') {
                pointers.extend(parts(value).filter_map(|part| match part {
                    TemplatePart::Pointer(pointer) => Some(pointer),
                    TemplatePart::Text(_) | TemplatePart::Unclosed(_) => None,
                }));
            } else {
                pointers.push(value.as_str());
            }
        }
        pointers.contains(&"") || pointers.iter().all(|pointer| *pointer == KEY)
    }

    /// Returns the fields of an item, by name.
    fn fields(&self) -> [(&'static str, Option<&String>); 9] {
        [
            ("id", Some(&self.id)),
            ("url", self.url.as_ref()),
            ("title", self.title.as_ref()),
            ("summary", self.summary.as_ref()),
            ("content", self.content.as_ref()),
            ("authors", self.authors.as_ref()),
            ("tags", self.tags.as_ref()),
            ("published", self.published.as_ref()),
            ("updated", self.updated.as_ref()),
        ]
    }
}

/// Checks a pointer or template.
fn check_value(value: &str) -> Result<(), String> {
    if !value.contains('{') {
        return if is_pointer(value) || value == KEY {
            Ok(())
        } else {
            Err("is not a pointer: it must begin with /".into())
        };
    }
    for part in parts(value) {
        match part {
            TemplatePart::Unclosed(rest) => {
                return Err(format!(
                    "has a {{ without its }}: a pointer is written {{/id}}, here is {rest:?}"
                ));
            }
            TemplatePart::Pointer(pointer) if !is_pointer(pointer) && pointer != KEY => {
                return Err(format!("has {{{pointer}}}, which is not a pointer: it must begin with /"));
            }
            TemplatePart::Pointer(_) | TemplatePart::Text(_) => {}
        }
    }
    Ok(())
}

fn is_pointer(text: &str) -> bool {
    text.is_empty() || text.starts_with('/')
}

/// Makes the error of a pointer that does not fit.
pub(super) fn mapping_error(pointer: &str, reason: String) -> FormatError {
    FormatError::Mapping { place: format!("{pointer:?}"), reason }
}
