//! Fields of a form, as an item.

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use towpath_proto::Content;

use super::attachments::{UploadedFile, url};
use super::line::{BodyPlace, PublishedLine, line, with_json};
use super::urls::UrlRule;
use crate::document::route_error::RouteError;
use crate::engine::attachments::NewFile;
use crate::engine::{Engine, Feed};

/// Limit of files in a form.
const MAX_FILES: usize = 20;
/// Limit of other fields in a form.
const MAX_FIELDS: usize = 1000;

/// Fields of a form, in its order, and its files.
#[derive(Debug, Default)]
pub(super) struct Fields {
    fields: Vec<(String, String)>,
    files: Vec<(String, UploadedFile)>,
}

impl Fields {
    /// Parses a form in one text.
    pub(super) fn of_text(body: &[u8]) -> Result<Self, RouteError> {
        // One more than there may be, so that too many are seen without parsing them all.
        let pairs = url::form_urlencoded::parse(body).take(MAX_FIELDS + 1);
        let fields = pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
        Self { fields, files: Vec::new() }.checked()
    }

    /// Parses a form with files.
    pub(super) async fn of_parts(boundary: &str, body: Bytes) -> Result<Self, RouteError> {
        let bad = |e: multer::Error| RouteError::bad_request(format!("multipart/form-data: {e}"));
        // The body is in memory already, within its limit, but the parser takes streams only.
        let body = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(body)]);
        let mut parts = multer::Multipart::new(body, boundary);
        let mut read = Self::default();
        while let Some(part) = parts.next_field().await.map_err(bad)? {
            let name = part.name().unwrap_or_default().to_owned();
            let file_name = part.file_name().map(str::to_owned);
            let media_type = part.content_type().map(ToString::to_string);
            let bytes = part.bytes().await.map_err(bad)?;
            match file_name {
                // A form's empty file field.
                Some(file_name) if file_name.is_empty() && bytes.is_empty() => {}
                Some(file_name) => {
                    read.files.push((name, UploadedFile { name: file_name, media_type, bytes }));
                }
                None => {
                    let text = String::from_utf8(bytes.into())
                        .map_err(|_| RouteError::bad_request(format!("field {name:?} is not UTF-8")))?;
                    read.fields.push((name, text));
                }
            }
            if read.files.len() > MAX_FILES {
                return Err(RouteError::too_large(format!(
                    "more than {MAX_FILES} files; publish several items"
                )));
            }
        }
        read.checked()
    }

    fn checked(self) -> Result<Self, RouteError> {
        if self.fields.len() > MAX_FIELDS {
            return Err(RouteError::too_large(format!("more than {MAX_FIELDS} fields")));
        }
        Ok(self)
    }

    /// Returns the item of the fields, without files.
    pub(super) fn into_line(self, urls: UrlRule) -> Result<PublishedLine, RouteError> {
        self.line(&self.json()?, urls)
    }

    /// Returns the item, and what is to be stored beside it: a file named `content` is its content, `image` its image,
    /// and each other file an attachment.
    pub(super) fn into_line_and_files(
        mut self,
        engine: &Engine,
        feed: &Feed,
        urls: UrlRule,
    ) -> Result<(PublishedLine, Vec<NewFile>), RouteError> {
        let files = std::mem::take(&mut self.files);
        let id =
            self.fields.iter().find(|(name, _)| name == "id").map(|(_, id)| id.clone()).unwrap_or_default();
        let mut json = self.json()?;
        let (mut content, mut stored) = (None, Vec::new());
        for (name, file) in files {
            if name == "content" {
                let media_type = file.media_type.as_deref().unwrap_or("application/octet-stream");
                content = Some(Content::new(media_type, file.bytes));
                continue;
            }
            let file = file.store(feed, &id)?;
            let url = url(engine, feed, &file.file);
            if name == "image" {
                json["item"]["image"] = url.into();
            } else {
                let attachment = json!({ "url": url, "media_type": file.media_type, "size": file.bytes.len(), "title": file.file.name, "sha256": file.file.sha256() });
                match &mut json["item"]["attachments"] {
                    Value::Array(list) => list.push(attachment),
                    empty => *empty = json!([attachment]),
                }
            }
            stored.push(file);
        }
        let mut line = self.line(&json, urls)?;
        if let Some(content) = content {
            if line.change.item.content.is_some() {
                return Err(RouteError::bad_request("the form has content both as a field and as a file"));
            }
            content.check_type().map_err(|e| RouteError::bad_request(format!("the file content: {e}")))?;
            line.change.item.content = Some(content);
        }
        Ok((line, stored))
    }

    /// Reads the line of the fields, which is `json` without its content.
    fn line(&self, json: &Value, urls: UrlRule) -> Result<PublishedLine, RouteError> {
        let content = self.fields.iter().rfind(|(name, value)| name == "json" && !value.is_empty());
        let content = content.map(|(_, content)| serde_json::from_str::<&RawValue>(content)).transpose();
        let content = content.map_err(|e| RouteError::bad_request(format!("field json is not JSON: {e}")))?;
        let text = with_json(json, content.map(RawValue::get));
        line(text.as_bytes(), BodyPlace::Only("the form"), urls)
    }

    /// Returns the fields as a line, but for `json`. Empty fields are absent: forms send every field that they show.
    fn json(&self) -> Result<Value, RouteError> {
        let (mut line, mut item) = (Map::new(), Map::new());
        let push = |item: &mut Map<String, Value>, list: &str, value: Value| {
            if let Value::Array(list) = item.entry(list).or_insert_with(|| json!([])) {
                list.push(value);
            }
        };
        for (name, value) in self.fields.iter().filter(|(_, value)| !value.is_empty()) {
            let text = || Value::from(value.as_str());
            match name.as_str() {
                "id" | "op" | "content" | "content_type" | "content_base64" | "publish_at" => {
                    line.insert(name.clone(), text());
                }
                // Added to the text of the line.
                "json" => {}
                "title" | "url" | "summary" | "published" | "updated" | "image" => {
                    item.insert(name.clone(), text());
                }
                "author" => push(&mut item, "authors", text()),
                "tag" => push(&mut item, "tags", text()),
                "attachment" => push(&mut item, "attachments", json!({ "url": value })),
                // Refused rather than kept: a misspelt name would lose its value without a word.
                other => {
                    let name: String = other.chars().take(60).collect();
                    return Err(RouteError::bad_request(format!(
                        "unknown field {name:?}; see docs/publishing.md"
                    )));
                }
            }
        }
        line.insert("item".into(), Value::Object(item));
        Ok(Value::Object(line))
    }
}
