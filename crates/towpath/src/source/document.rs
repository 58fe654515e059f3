//! Reads the pages of a loaded source as one document.

use bytes::Bytes;
use sha2::{Digest, Sha256};
use towpath_client::BodyShare;
use towpath_proto::format::json_pointers::Mapping;
use towpath_proto::format::{
    self, DocumentLimits, FeedDocument, Format, FormatError, HtmlMapping, ReadOptions,
};

use crate::blocking::blocking;
use crate::config::SourceConfig;

/// A page of a source.
#[derive(Debug)]
pub struct LoadedPage {
    /// Decompressed content.
    pub bytes: Bytes,
    /// The `Content-Type` header.
    pub content_type: Option<String>,
    /// Base of relative URLs in it; `None` for a file.
    pub base_url: Option<String>,
    /// Memory of the content, to be held as long as it.
    pub share: Option<BodyShare>,
}

/// Configuration of reading a source's pages.
#[derive(Clone)]
pub(super) struct PageReader {
    format: Option<Format>,
    json: Option<Mapping>,
    html: Option<HtmlMapping>,
    limits: DocumentLimits,
}

/// A page as a task of its own needs it.
struct PageText {
    bytes: Bytes,
    content_type: Option<String>,
    base_url: Option<String>,
}

impl PageReader {
    pub(super) fn new(source: &SourceConfig) -> Self {
        Self {
            format: source.format.known(),
            json: source.json.clone(),
            html: source.html.clone(),
            limits: source.limits.into(),
        }
    }

    /// Parses a page on the blocking pool, so that it does not delay serving and fetching.
    pub(super) async fn read(
        &self,
        page: &LoadedPage,
    ) -> Result<Result<FeedDocument, FormatError>, tokio::task::JoinError> {
        let (reader, text) = (self.clone(), PageText::of(page));
        blocking(move || reader.parse(&text)).await
    }

    fn parse(&self, page: &PageText) -> Result<FeedDocument, FormatError> {
        let options = ReadOptions {
            format: self.format,
            content_type: page.content_type.as_deref(),
            base_url: page.base_url.as_deref(),
            mapping: self.json.as_ref(),
            html: self.html.as_ref(),
            repair: true,
            fill: true,
            limits: self.limits,
        };
        format::read(&page.bytes, &options)
    }
}

impl PageText {
    fn of(page: &LoadedPage) -> Self {
        Self {
            bytes: page.bytes.clone(),
            content_type: page.content_type.clone(),
            base_url: page.base_url.clone(),
        }
    }
}

/// Adds the items of page `number` (from 2) to the document of the pages before it.
pub(super) fn add_page(document: &mut FeedDocument, number: usize, page: FeedDocument) {
    document.items.extend(page.items);
    document.deleted.extend(page.deleted);
    document.problems.extend(page.problems.into_iter().map(|problem| format!("page {number}: {problem}")));
    document.counts.left_out += page.counts.left_out;
    document.counts.warnings += page.counts.warnings;
}

/// Digest of all pages; of a single one it is that of its bytes.
pub(super) fn digest(pages: &[LoadedPage]) -> impl AsRef<[u8]> + use<> {
    let mut hasher = Sha256::new();
    pages.iter().for_each(|page| hasher.update(&page.bytes));
    hasher.finalize()
}
