//! WebSub: the hub, to which every feed in every order can be subscribed (Smart Feeds, "HTTP Push").
//!
//! The store holds each subscription and its position. Deliveries are built from the log after appends, once for all
//! subscribers at the same position. [`run`] is the one task that delivers; requests to the hub change its state
//! ([`subscribe`]). `pings` tells hubs of others of changes.

mod calls;
mod confirm;
mod deliver;
mod ended;
mod jobs;
mod load;
mod order;
mod page;
pub(crate) mod pings;
mod remote;
mod request;
pub(crate) mod serve;
mod state;
mod stored;
mod subscriber;
mod topic;
mod verifier;
mod verify;

pub use calls::{Inbox, inbox, open_inbox};
pub use deliver::run;
pub use request::{SubscribeError, SubscribeRequest, SubscribeResult};
pub use state::HubState;
pub use topic::{Topic, TopicError};
pub use verify::subscribe;

pub(crate) use ended::on_removed;
pub(crate) use remote::{apply_remote, on_subscription_written, recover};
pub(crate) use state::{SubscriberInfo, on_append};
pub(crate) use verifier::finish_verifications;
