//! A verified subscriber.

use std::sync::Arc;

use towpath_proto::follow::Monotonic;
use towpath_proto::push::websub::subscription::HubSubscription;

use crate::engine::access::Access;
use crate::protocols::websub::topic::Topic;

/// A verified subscriber.
#[derive(Debug)]
pub(crate) struct VerifiedSubscriber {
    pub(super) subscription: HubSubscription,
    pub(super) topic: Arc<Topic>,
    pub(super) access: Access,
    /// End of the lease.
    pub(super) ends: Monotonic,
}
