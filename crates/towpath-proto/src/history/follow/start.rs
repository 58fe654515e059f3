//! Starts at a position within a log: its document is read before the others.

use super::HistoryFollower;
use super::document::DocumentContents;
use super::response::{DocumentRequest, RequestOutcome};
use super::state::PendingStart;
use crate::diff::Listing;
use crate::follow::{FollowError, Now};

impl HistoryFollower {
    /// Returns the URL of the document to read first: that of a start position in a log, unless it is the newest.
    ///
    /// A log may be divided otherwise by now, and the entry may have a later version. Its permanent document still shows
    /// what came before it.
    pub(super) fn document_of_position(&self, document: &DocumentContents) -> Option<String> {
        let url = match &self.state.start {
            Some(PendingStart::After(position)) => &position.document,
            Some(PendingStart::Document(url)) => url,
            _ => return None,
        };
        let is_newest = *url == self.url || document.this.as_ref() == Some(url);
        let is_web = url.starts_with("http://") || url.starts_with("https://");
        (document.may_be_log() && !is_newest && is_web).then(|| url.clone())
    }

    /// Reads the document of the start position.
    pub(super) fn handle_position(&mut self, now: Now, request: &DocumentRequest, outcome: RequestOutcome) {
        let read = match outcome {
            RequestOutcome::Document(fetched, _) => {
                self.pass.bytes += fetched.body.len() as u64;
                self.read(&fetched).ok()
            }
            // Retention removed it.
            RequestOutcome::Gone
            | RequestOutcome::NotModified
            | RequestOutcome::Failed { error: FollowError::Status { status: 404, .. }, .. } => None,
            RequestOutcome::Failed { error, retry_after } => {
                if !self.retry(now, request, retry_after) {
                    self.fail(now, error, retry_after);
                }
                return;
            }
        };
        let has_start = |document: &DocumentContents| match &self.state.start {
            Some(PendingStart::After(position)) => position.find(document).is_some(),
            _ => document.is_log,
        };
        if let Some(document) = read.filter(has_start) {
            let seq = self.state.next_seq();
            self.apply(document, &request.url, seq, Listing::Window);
            self.state.add_read(&request.url);
            // From here on everything is new, and the documents show where it begins.
            self.state.start = Some(PendingStart::Beginning);
            self.pass.by_head = false;
        }
        let newest = self.pass.newest.as_ref().and_then(|fetched| self.read(fetched).ok());
        if let Some(document) = newest {
            self.walk_back_from_newest(now, &document);
        }
    }
}
