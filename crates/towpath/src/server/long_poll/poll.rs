//! A pull request that waits for its feed's log to grow.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, StatusCode};
use tokio::time::{Instant, sleep_until};
use towpath_proto::change::Seq;
use towpath_proto::smart::accept::PageFormat;

use crate::document::prebuilt::Answer;
use crate::document::route_error::RouteError;
use crate::protocols::smart::serve::{WaitingPull, render};
use crate::protocols::smart::{PullRequest, PullWaiter, SharedResponse};
use crate::server::problem::Problem;
use crate::stop::{Stop, stopped};

/// A pull request that waits for its feed's log to grow.
pub(in crate::server) struct LongPoll {
    pub(super) waiter: PullWaiter,
    /// Head of the log when the request was run.
    pub(super) after: Seq,
    pub(super) deadline: Instant,
    pub(super) format: PageFormat,
    pub(super) request: Arc<PullRequest>,
    /// Origin of the page that asks, if its response needs a header of its own.
    pub(in crate::server) origin: Option<Box<HeaderValue>>,
}

impl LongPoll {
    /// Returns the time at which the request is answered in any case.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Polls for the response that all waiters of the shared poll get after an append.
    pub(super) fn poll_shared(&self, context: &Context<'_>) -> Poll<Arc<SharedResponse>> {
        self.waiter.poll_response(context)
    }

    /// Returns true unless the reader's token was withdrawn while the request waited.
    pub(super) fn is_still_allowed(&self) -> bool {
        self.request.is_still_allowed()
    }

    /// Waits for the response: with items after an append, without at the deadline and when the server stops.
    ///
    /// For a request whose connection cannot be parked.
    pub(in crate::server) async fn respond(self, stop: &Stop) -> Answer {
        tokio::select! {
            biased;
            // First, as `biased` says: a response that came with the deadline must not be lost.
            shared = self.waiter.response() => {
                if !self.is_still_allowed() {
                    return withdrawn();
                }
                if let Some(error) = &shared.error {
                    return self.error_response(error);
                }
                self.request.engine.metrics.deliveries.long_polls.inc();
                let mut answer = shared.answer();
                self.request.engine.cors.load().add_for(self.origin.as_deref(), &mut answer.headers);
                return answer;
            }
            () = sleep_until(self.deadline) => {}
            () = stopped(stop) => {}
        }
        self.respond_now().await
    }

    /// Answers with an error of the shared poll.
    pub(super) fn error_response(self, error: &RouteError) -> Answer {
        let mut answer = Problem::from(error.clone()).response();
        let cors = self.request.engine.cors.load();
        cors.add_to(&mut answer.headers);
        cors.add_for(self.origin.as_deref(), &mut answer.headers);
        answer
    }

    /// Answers this request alone, without further waiting.
    pub(super) async fn respond_now(self) -> Answer {
        let Self { waiter, format, request, origin, .. } = self;
        // A place in the registry is free for others while this page is made.
        drop(waiter);
        if !request.is_still_allowed() {
            return withdrawn();
        }
        // Run again, not answered as empty: an append may have come between the deadline and here.
        let mut answer = match PullRequest::clone(&request).run_without_waiting().await {
            Ok(page) => {
                let (headers, body) = render(&request, request.settings(), &page, format);
                Answer { status: StatusCode::OK, headers, body }
            }
            // The request was valid when it began to wait, but the store can fail since.
            Err(error) => Problem::from(error).response(),
        };
        request.engine.sup_links.add_to(request.feed.id(), &mut answer.headers);
        let cors = request.engine.cors.load();
        cors.add_to(&mut answer.headers);
        cors.add_for(origin.as_deref(), &mut answer.headers);
        answer
    }
}

/// Answers a reader whose token was withdrawn while the request waited.
fn withdrawn() -> Answer {
    Problem::from(RouteError::unauthorized("this token was withdrawn")).response()
}

impl From<WaitingPull> for LongPoll {
    fn from(waiting: WaitingPull) -> Self {
        let WaitingPull { waiter, after, deadline, format, request } = waiting;
        Self { waiter, after, deadline, format, request, origin: None }
    }
}
