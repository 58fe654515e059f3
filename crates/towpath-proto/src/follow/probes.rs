//! Probes of a conformance check: requests that are sent one at a time, each with the rule it is to show.

use std::collections::VecDeque;

use super::single_request::{CollectedResponse, SingleRequest, SingleRequestExchange};
use super::{Monotonic, Now, Request};

/// Probes still to be sent, and the one in flight.
#[derive(Debug)]
pub(crate) struct ProbeQueue<P> {
    waiting: VecDeque<P>,
    in_flight: SingleRequest<P>,
}

impl<P> ProbeQueue<P> {
    /// A queue of these probes, in this order.
    pub(crate) fn new(probes: impl IntoIterator<Item = P>) -> Self {
        Self { waiting: probes.into_iter().collect(), in_flight: SingleRequest::default() }
    }

    /// Appends a probe.
    pub(crate) fn push_back(&mut self, probe: P) {
        self.waiting.push_back(probe);
    }

    /// Puts a probe before those that wait.
    pub(crate) fn push_front(&mut self, probe: P) {
        self.waiting.push_front(probe);
    }

    /// Appends probes.
    pub(crate) fn extend(&mut self, probes: impl IntoIterator<Item = P>) {
        self.waiting.extend(probes);
    }

    /// Returns whether nothing waits and nothing is in flight.
    pub(crate) fn is_done(&self) -> bool {
        self.waiting.is_empty() && !self.in_flight.is_in_flight()
    }
}

/// A check that sends probes until its queue is done. It is an [`Exchange`](super::Exchange) by its [`ProbeQueue`].
pub(crate) trait ProbeCheck: Send {
    /// A probe.
    type Probe;

    /// The check's queue.
    fn probes(&self) -> &ProbeQueue<Self::Probe>;

    /// The check's queue.
    fn probes_mut(&mut self) -> &mut ProbeQueue<Self::Probe>;

    /// URL of a probe.
    fn url(&self, probe: &Self::Probe) -> String;

    /// Adds headers and limits to the GET of a probe.
    fn prepare(&self, probe: &Self::Probe, request: Request) -> Request;

    /// Judges the response to a probe. It may push further probes.
    fn judge_response(&mut self, now: Now, response: CollectedResponse<Self::Probe>);
}

impl<C: ProbeCheck> SingleRequestExchange for C {
    type Purpose = C::Probe;

    fn single_request(&self) -> &SingleRequest<C::Probe> {
        &self.probes().in_flight
    }

    fn single_request_mut(&mut self) -> &mut SingleRequest<C::Probe> {
        &mut self.probes_mut().in_flight
    }

    fn next_request(&mut self, now: Now) -> Option<Request> {
        if self.single_request().is_in_flight() {
            return None;
        }
        // One at a time: a check must not load the publisher, and responses are judged in the text's order.
        let probe = self.probes_mut().waiting.pop_front()?;
        let url = self.url(&probe);
        let get = self.single_request_mut().get(url);
        let request = self.prepare(&probe, get);
        Some(self.single_request_mut().send(now, probe, request))
    }

    fn handle_response(&mut self, now: Now, response: CollectedResponse<C::Probe>) {
        self.judge_response(now, response);
    }

    fn next_timeout(&self) -> Option<Monotonic> {
        // A check sets no timer: with nothing in flight it has the next probe ready, or is done.
        None
    }

    fn is_over(&self) -> bool {
        self.probes().is_done()
    }
}
