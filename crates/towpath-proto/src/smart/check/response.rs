//! A complete response to a probe.

use bytes::Bytes;
use jiff::SignedDuration;

use crate::format::DocumentLimits;

/// A complete response to a probe.
pub(super) struct SmartResponse {
    pub(super) url: String,
    pub(super) status: u16,
    pub(super) media_type: String,
    pub(super) body: Bytes,
    /// Limits of reading the body.
    pub(super) limits: DocumentLimits,
    /// Time from the request to the end of the body.
    pub(super) elapsed: SignedDuration,
}

impl SmartResponse {
    /// Describes the response for a report.
    pub(super) fn describe(&self) -> String {
        format!("{}: status {}, {} bytes of {:?}", self.url, self.status, self.body.len(), self.media_type)
    }
}
