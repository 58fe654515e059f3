//! Bodies of a batch: lines, a JSON array of them, another's JSON, or a form with files.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request};
use serde_json::value::RawValue;

use super::fields::Fields;
use super::foreign;
use super::limits::MAX_LINES;
use super::line::{BodyPlace, PublishedLine, line};
use super::urls::UrlRule;
use crate::document::route_error::RouteError;
use crate::engine::attachments::NewFile;
use crate::engine::request::asks_for_line;
use crate::engine::{Engine, Feed};
use towpath_proto::format::media_type;

/// U+FEFF in UTF-8, which is no part of a text that it begins.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Form of a body.
#[derive(Debug)]
pub(super) enum BodyForm {
    /// Lines, a JSON array of lines, or one line as a document.
    Lines,
    /// Lines in a body that is said to be JSON: one of them, or an array.
    Json,
    /// JSON of another program, mapped by `[feed.publish.json]`.
    Foreign,
    /// Fields of a form in one text (`application/x-www-form-urlencoded`).
    Form,
    /// Fields and files of a form, with the boundary between them (`multipart/form-data`).
    Multipart(String),
}

impl BodyForm {
    /// Returns the form by the request's media type.
    pub(super) fn of<B>(request: &Request<B>, feed: &Feed) -> Result<Self, RouteError> {
        let media_type = request.headers().get(CONTENT_TYPE).map(HeaderValue::to_str).transpose();
        let media_type = media_type.map_err(|_| RouteError::bad_request("Content-Type is not text"))?;
        let media_type = media_type.unwrap_or_default();
        let essence = media_type::essence(media_type).to_ascii_lowercase();
        let is_line = asks_for_line(request.uri().query())?;
        let is_mapped = feed.config.publish.is_some() && !is_line;
        Ok(match essence.as_str() {
            "multipart/form-data" => {
                let boundary = multer::parse_boundary(media_type);
                Self::Multipart(boundary.map_err(|e| RouteError::bad_request(format!("Content-Type: {e}")))?)
            }
            "application/x-www-form-urlencoded" => Self::Form,
            "application/json" if is_mapped => Self::Foreign,
            essence if essence.ends_with("+json") && is_mapped => Self::Foreign,
            "application/json" => Self::Json,
            _ => Self::Lines,
        })
    }

    /// Reads the changes, and the files that come with them.
    pub(super) async fn read(
        self,
        engine: &Engine,
        feed: &Arc<Feed>,
        body: Bytes,
        urls: UrlRule,
    ) -> Result<(Vec<PublishedLine>, Vec<NewFile>), RouteError> {
        // Editors on Windows write a byte order mark.
        let body = if body.starts_with(BYTE_ORDER_MARK) { body.slice(BYTE_ORDER_MARK.len()..) } else { body };
        let start = body.iter().find(|byte| !byte.is_ascii_whitespace());
        match self {
            // What many tools send as a form by default is JSON after all. No form begins so.
            Self::Form if !matches!(start, Some(b'{' | b'[')) => {
                let line = Fields::of_text(&body)?.into_line(urls)?;
                Ok((vec![line], Vec::new()))
            }
            Self::Multipart(boundary) => {
                let fields = Fields::of_parts(&boundary, body).await?;
                let (line, files) = fields.into_line_and_files(engine, feed, urls)?;
                Ok((vec![line], files))
            }
            Self::Foreign => match &feed.config.publish {
                Some(publish) => Ok((foreign::read(&body, publish, urls)?, Vec::new())),
                None => Ok((lines(&body, urls)?, Vec::new())),
            },
            // An empty text is no JSON: whatever made it failed. Of lines there may be none.
            Self::Json if start.is_none() => Err(RouteError::bad_request(
                "the body is empty, and application/json is a change or an array of them",
            )),
            Self::Form | Self::Lines | Self::Json if start == Some(&b'[') => {
                Ok((array(&body, urls)?, Vec::new()))
            }
            Self::Form | Self::Lines | Self::Json => Ok((lines(&body, urls)?, Vec::new())),
        }
    }
}

/// Reads lines (NDJSON), or one line that is written over several.
fn lines(text: &[u8], urls: UrlRule) -> Result<Vec<PublishedLine>, RouteError> {
    let mut read = Vec::new();
    for (index, text_line) in text.split(|b| *b == b'\n').enumerate() {
        if text_line.trim_ascii().is_empty() {
            continue;
        }
        if read.len() == MAX_LINES {
            return Err(too_many());
        }
        match line(text_line, BodyPlace::Line(index + 1), urls) {
            Ok(line) => read.push(line),
            // A document that a person wrote: its first line is no JSON, the whole is.
            Err(_)
                if read.is_empty()
                    && text.trim_ascii().contains(&b'\n')
                    && serde_json::from_slice::<&RawValue>(text).is_ok() =>
            {
                return Ok(vec![line(text, BodyPlace::Only("the item"), urls)?]);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// Reads a JSON array of lines.
fn array(text: &[u8], urls: UrlRule) -> Result<Vec<PublishedLine>, RouteError> {
    let items: Vec<&RawValue> = serde_json::from_slice(text)
        .map_err(|e| RouteError::bad_request(format!("not a JSON array of changes: {e}")))?;
    if items.len() > MAX_LINES {
        return Err(too_many());
    }
    let read = |(index, text): (usize, &&RawValue)| line(text.get().as_bytes(), BodyPlace::Item(index), urls);
    items.iter().enumerate().map(read).collect()
}

fn too_many() -> RouteError {
    RouteError::too_large(format!("more than {MAX_LINES} lines; split the batch"))
}
