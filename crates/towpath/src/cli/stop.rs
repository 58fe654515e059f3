//! Ending when asked to.

use tokio::sync::watch;

use crate::client::Stop;

/// Becomes true with Ctrl-C or SIGTERM.
pub(super) fn on_signal() -> Stop {
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        signal().await;
        let _ = stop.send(true);
    });
    stopped
}

async fn signal() {
    let terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
    let Ok(mut terminated) = terminated else {
        let _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
}
