//! Order of the requests for one subscription.
//!
//! Verifications end in any order: one is retried for minutes, another is confirmed at once. "Each subsequent request
//! […] MUST override the previous subscription state […] but only once the action is verified" (WebSub 5.1).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::MutexGuard;
use towpath_proto::push::websub::dispatch::SubscriptionId;

/// Requests that are being verified, by their subscription.
#[derive(Debug, Default)]
pub(super) struct RequestOrder(Arc<Mutex<OpenRequests>>);

#[derive(Debug, Default)]
struct OpenRequests {
    last: u64,
    subscriptions: HashMap<SubscriptionId, OpenSubscription>,
}

#[derive(Debug, Default)]
struct OpenSubscription {
    tickets: usize,
    applied: Arc<AppliedRequest>,
}

/// The latest request that was applied while others for its subscription were open.
#[derive(Debug, Default)]
struct AppliedRequest {
    number: AtomicU64,
    /// Held while a request is applied: writes to the store may overtake each other.
    turn: tokio::sync::Mutex<()>,
}

/// Place of a request among those for its subscription, until it is dropped.
#[derive(Debug)]
pub(super) struct RequestTicket {
    open: Arc<Mutex<OpenRequests>>,
    id: SubscriptionId,
    number: u64,
    applied: Arc<AppliedRequest>,
}

/// Exclusive right to change a subscription.
pub(super) struct RequestTurn<'a> {
    ticket: &'a RequestTicket,
    _turn: MutexGuard<'a, ()>,
}

impl RequestOrder {
    /// Returns the place of a new request.
    pub(super) fn request(&self, id: SubscriptionId) -> RequestTicket {
        self.ticket(id, |open, _| {
            open.last += 1;
            open.last
        })
    }

    /// Returns the place of a renewal by the hub itself. Any request that is applied meanwhile overrides it.
    pub(super) fn renewal(&self, id: SubscriptionId) -> RequestTicket {
        self.ticket(id, |_, applied| applied.number.load(Ordering::Acquire))
    }

    fn ticket(
        &self,
        id: SubscriptionId,
        number: impl FnOnce(&mut OpenRequests, &AppliedRequest) -> u64,
    ) -> RequestTicket {
        let mut open = self.0.lock();
        let subscription = open.subscriptions.entry(id).or_default();
        subscription.tickets += 1;
        let applied = subscription.applied.clone();
        let number = number(&mut open, &applied);
        RequestTicket { open: self.0.clone(), id, number, applied }
    }
}

impl RequestTicket {
    /// Waits until no other request changes the subscription. Returns `None` if a later one did.
    pub(super) async fn turn(&self) -> Option<RequestTurn<'_>> {
        let turn = self.applied.turn.lock().await;
        let is_latest = self.number >= self.applied.number.load(Ordering::Acquire);
        is_latest.then_some(RequestTurn { ticket: self, _turn: turn })
    }
}

impl RequestTurn<'_> {
    /// Ends the turn of a request that was applied. Earlier ones do nothing from now on.
    pub(super) fn finish(self) {
        self.ticket.applied.number.store(self.ticket.number, Ordering::Release);
    }
}

impl Drop for RequestTicket {
    fn drop(&mut self) {
        let subscriptions = &mut self.open.lock().subscriptions;
        let Some(subscription) = subscriptions.get_mut(&self.id) else { return };
        subscription.tickets -= 1;
        // Nothing is open that the number could be compared with, and strangers choose the ids.
        if subscription.tickets == 0 {
            subscriptions.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_later_request_overrides_and_nothing_is_remembered_for_ever() {
        let order = RequestOrder::default();
        let (first, other, second) = (order.request(1), order.request(2), order.request(1));
        second.turn().await.unwrap().finish();
        assert!(first.turn().await.is_none());
        assert!(other.turn().await.is_some());
        // One that was not applied, because it failed, overrides nothing.
        let third = order.request(1);
        drop(third.turn().await.unwrap());
        assert!(second.turn().await.is_some());
        drop((first, second));
        assert_eq!(order.0.lock().subscriptions.len(), 2);
        drop((third, other));
        assert!(order.0.lock().subscriptions.is_empty());
    }

    #[tokio::test]
    async fn every_request_overrides_a_renewal() {
        let order = RequestOrder::default();
        let before = order.request(1);
        let renewal = order.renewal(1);
        before.turn().await.unwrap().finish();
        assert!(renewal.turn().await.is_none());
        let renewal = order.renewal(1);
        renewal.turn().await.unwrap().finish();
        assert!(order.renewal(1).turn().await.is_some());
    }

    /// Two that confirm at once: the earlier one may be slow to store what it is for.
    #[tokio::test]
    async fn one_request_at_a_time_is_applied() {
        let order = RequestOrder::default();
        let (first, second) = (order.request(1), order.request(1));
        let turn = first.turn().await.unwrap();
        assert!(futures_util::FutureExt::now_or_never(second.turn()).is_none());
        turn.finish();
        assert!(second.turn().await.is_some());
    }
}
