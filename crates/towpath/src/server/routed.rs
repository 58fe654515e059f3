//! Results of routing a request.

use http::Response;

use crate::document::prebuilt::Answer;
use crate::server::long_poll::poll::LongPoll;
use crate::server::response::{ResponseBody, respond};
use crate::stop::Stop;

/// Result of routing a request.
pub(crate) enum Routed {
    /// An answer.
    Answer(Answer),
    /// A response whose body is produced while it is sent.
    Streamed(Response<ResponseBody>),
    /// A request that waits for an append.
    LongPoll(LongPoll),
}

impl Routed {
    /// Changes an answer that is whole already.
    pub(super) fn map_answer(self, change: impl FnOnce(Answer) -> Answer) -> Self {
        match self {
            Self::Answer(answer) => Self::Answer(change(answer)),
            other => other,
        }
    }
}

impl From<Answer> for Routed {
    fn from(answer: Answer) -> Self {
        Self::Answer(answer)
    }
}

impl Routed {
    /// Returns hyper's response, after waiting for it if need be.
    pub(crate) async fn respond(self, stop: &Stop) -> Response<ResponseBody> {
        match self {
            Self::Answer(answer) => respond(answer),
            Self::Streamed(response) => response,
            Self::LongPoll(poll) => respond(poll.respond(stop).await),
        }
    }
}
