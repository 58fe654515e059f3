//! Where the callers' requests go in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use towpath_store::StoreError;
use towpath_store::embedded::command::Command;

use crate::health::Health;
use crate::publish::{RETRY_AFTER, Reply, Request};

/// The queue to the publisher.
pub(crate) struct Requests {
    /// `None` once closed.
    queue: Mutex<Option<mpsc::Sender<Request>>>,
    health: Arc<Health>,
    patience: Duration,
}

impl Requests {
    pub(crate) fn new(queue: mpsc::Sender<Request>, health: Arc<Health>, patience: Duration) -> Self {
        Self { queue: Mutex::new(Some(queue)), health, patience }
    }

    /// Takes no more requests.
    pub(crate) fn close(&self) {
        self.queue.lock().take();
    }

    /// Hands a command to the publisher and waits until this node has applied it.
    pub(crate) async fn ask<T>(
        &self,
        command: &Command,
        reply: impl FnOnce(oneshot::Sender<T>) -> Reply,
    ) -> Result<T, StoreError> {
        let queue = self.queue.lock().clone().ok_or(StoreError::Closed)?;
        let unavailable = |reason: String| StoreError::Unavailable { reason, retry_after: RETRY_AFTER };
        if let Some(reason) = self.health.stopped() {
            return Err(unavailable(reason));
        }
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        let (answer, answered) = oneshot::channel();
        let deadline = Instant::now() + self.patience;
        let request = Request { command: bytes, deadline, reply: reply(answer) };
        let gone = || unavailable("this node follows the log no more".into());
        match tokio::time::timeout(self.patience, queue.send(request)).await {
            Ok(sent) => sent.map_err(|_| gone())?,
            Err(_) => return Err(unavailable("too many requests wait; it was not published".into())),
        }
        drop(queue);
        answered.await.map_err(|_| gone())
    }
}
