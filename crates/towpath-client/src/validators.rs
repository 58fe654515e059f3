//! Validators of cached documents, for conditional requests (RFC 9110, section 13).

use http::header::{IF_MODIFIED_SINCE, IF_NONE_MATCH};
use serde::{Deserialize, Serialize};
use towpath_proto::follow::{Request, ResponseHead};

/// `ETag` and `Last-Modified` of a response, to be stored with its document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validators {
    /// The `ETag` header, unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// The `Last-Modified` header, unchanged: some servers compare the text, not the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_modified: Option<String>,
}

impl Validators {
    /// Validators of a complete response (200). Store them only once its document has been processed.
    pub fn from_head(head: &ResponseHead) -> Self {
        let text = |name| head.header(name).map(str::to_owned);
        Self { etag: text("etag"), last_modified: text("last-modified") }
    }

    /// Makes a request conditional: the server responds 304 if the document is unchanged.
    #[must_use]
    pub fn condition(&self, mut request: Request) -> Request {
        // Both are sent: RFC 9110, section 13.1.3, lets servers prefer the ETag, and old ones know only the date.
        if let Some(etag) = &self.etag {
            request = request.with(IF_NONE_MATCH, etag);
        }
        if let Some(date) = &self.last_modified {
            request = request.with(IF_MODIFIED_SINCE, date);
        }
        request
    }
}
