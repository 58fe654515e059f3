//! Files that were uploaded with an item: kept beside the log, and served at an address of their feed.
//!
//! A file's address has digests of the item's id and of its bytes, so its content never changes. Files go with their
//! item: when it is deleted.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, ETAG};
use http::{HeaderMap, HeaderValue, Request};
use towpath_proto::Content;

use crate::document::prebuilt::{Document, Valid};
use crate::document::route_error::RouteError;
use crate::engine::attachments::{self, Attachment, KeptFile, NewFile, file_name};
use crate::engine::request::known_feed;
use crate::engine::{Engine, Feed};
use crate::server::file_response;
use crate::server::item_response::{insert, raw, raw_headers};
use crate::server::routed::Routed;

/// Largest file, in bytes.
const MAX_FILE: usize = 16 << 20;

/// File as it was uploaded.
#[derive(Debug)]
pub(super) struct UploadedFile {
    pub(super) name: String,
    pub(super) media_type: Option<String>,
    pub(super) bytes: Bytes,
}

impl UploadedFile {
    /// Checks the file, and names it by its item and its bytes.
    pub(super) fn store(self, feed: &Feed, id: &str) -> Result<NewFile, RouteError> {
        let Self { name, media_type, bytes } = self;
        if bytes.len() > MAX_FILE {
            let shown: String = name.chars().take(60).collect();
            return Err(RouteError::too_large(format!(
                "file {shown:?} of feed {} has more than {MAX_FILE} bytes: keep it elsewhere, and give its address as \
                 attachment",
                feed.id()
            )));
        }
        let name = file_name(&name);
        let media_type = media_type.unwrap_or_else(|| "application/octet-stream".to_owned());
        Content::new(media_type.as_str(), Bytes::new())
            .check_type()
            .map_err(|e| RouteError::bad_request(format!("file {name:?}: {e}")))?;
        Ok(NewFile { item: id.to_owned(), file: Attachment::new(id, name, &bytes), media_type, bytes })
    }
}

/// Returns the address of a file.
pub(super) fn url(engine: &Engine, feed: &Feed, file: &Attachment) -> String {
    format!("{}{}", engine.base_url, file.path(feed.id()))
}

/// Answers `GET /feeds/{feed}/attachments/{key}/{name}`.
pub(in crate::server) async fn get<B>(
    engine: &Engine,
    feed: &str,
    key: &str,
    request: &Request<B>,
) -> Result<Routed, RouteError> {
    let feed = known_feed(engine, feed)?;
    let file = attachments::load(engine.store.as_ref(), feed.id(), key).await?;
    let file = file.ok_or_else(|| RouteError::not_found("there is no such file, or its item was deleted"))?;
    let with_tag = |mut headers: HeaderMap| {
        insert(&mut headers, ETAG, &format!("\"{key}\""));
        // Its address has its digest.
        let cached = HeaderValue::from_static("public, max-age=31536000, immutable");
        headers.insert(CACHE_CONTROL, cached);
        headers
    };
    match file {
        KeptFile::Whole(content) => {
            let answer = raw(&content);
            let document = Document::new(answer.body, with_tag(answer.headers), Valid::UntilReplaced);
            Ok(document.respond_compressing(request.headers()).into())
        }
        KeptFile::Chunked(file) => {
            let headers = with_tag(raw_headers(&file.media_type));
            file_response::respond(engine, feed.id(), file, headers, request)
        }
    }
}
