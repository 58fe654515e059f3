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
