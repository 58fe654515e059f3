//! The stop signal of a process: Ctrl-C or SIGTERM.

use std::sync::Arc;

use tokio::sync::watch;

pub use towpath_client::stop::{Stop, stopped};

/// Returns a stop signal that is set by Ctrl-C or SIGTERM.
pub fn on_signal() -> Stop {
    on_signal_or_request().1
}

/// Returns a stop signal that is set by Ctrl-C or SIGTERM, and its sender, which sets it for another reason.
pub fn on_signal_or_request() -> (Arc<watch::Sender<bool>>, Stop) {
    let (stop, stopped) = watch::channel(false);
    let stop = Arc::new(stop);
    let sender = stop.clone();
    tokio::spawn(async move {
        signal().await;
        // Fails only if nobody listens any more, and then everything has stopped already.
        let _ = stop.send(true);
    });
    (sender, stopped)
}

async fn signal() {
    let terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
    // Without a handler for SIGTERM, Ctrl-C still stops cleanly; the process need not refuse to start.
    let Ok(mut terminated) = terminated else {
        let _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
}
