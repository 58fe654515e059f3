//! State of XMPP outside of its task: the signal that a log has new changes, or that a feed was removed.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::engine::{Append, Engine, Feed};

/// Wakes the component's task after an append, and after a feed was removed.
#[derive(Default)]
pub(super) struct LogChanged(pub(super) Notify);

impl LogChanged {
    pub(super) fn of(engine: &Engine) -> &Self {
        engine.extensions.get_or_insert_with(Self::default)
    }
}

/// Wakes the component's task. It looks at the heads of the feeds that have subscribers.
pub(crate) fn on_append(engine: &Arc<Engine>, _: &Arc<Feed>, _: Append) {
    LogChanged::of(engine).0.notify_one();
}

/// Wakes the component's task, which ends the subscriptions to feeds that are not there any more.
pub(crate) fn on_removed(engine: &Engine, _: &Arc<Feed>) {
    LogChanged::of(engine).0.notify_one();
}
