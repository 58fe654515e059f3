//! Conditional requests (RFC 9110, section 13): ask for a document only if it is no longer the known one.

use http::header::{IF_MODIFIED_SINCE, IF_NONE_MATCH};
use serde::{Deserialize, Serialize};
use towpath_proto::follow::{Request, ResponseHead};

/// What a server said to recognise a document by, kept with the document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validators {
    /// The `ETag`, exactly as it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// The `Last-Modified`, exactly as it came: some servers compare the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_modified: Option<String>,
}

impl Validators {
    /// Those of a whole response (200); to be kept once its document has been taken in.
    pub fn of(head: &ResponseHead) -> Self {
        let text = |name| head.header(name).map(str::to_owned);
        Self { etag: text("etag"), last_modified: text("last-modified") }
    }

    /// The request, answered with 304 if the document is still the same.
    #[must_use]
    pub fn condition(&self, mut request: Request) -> Request {
        if let Some(etag) = &self.etag {
            request = request.with(IF_NONE_MATCH, etag);
        }
        if let Some(date) = &self.last_modified {
            request = request.with(IF_MODIFIED_SINCE, date);
        }
        request
    }
}
