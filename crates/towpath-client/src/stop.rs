//! The stop signal that ends a follow or a check from outside.

use tokio::sync::watch;

/// Receiver of the stop signal; its value becomes true when current work is to end.
pub type Stop = watch::Receiver<bool>;

/// Waits until the stop signal is set. Never returns if the sender is gone.
pub async fn stopped(stop: &Stop) {
    if stop.clone().wait_for(|stop| *stop).await.is_err() {
        // The sender was dropped without a signal: nothing can ask for a stop any more.
        std::future::pending::<()>().await;
    }
}

/// Runs work that the stop signal ends; `None` if it did.
pub async fn unless_stopped<T>(stop: &Stop, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        done = work => Some(done),
        () = stopped(stop) => None,
    }
}
