//! Ending when asked to.

use tokio::sync::watch;

/// Becomes true when what is under way is to end.
pub type Stop = watch::Receiver<bool>;

/// Becomes true with Ctrl-C or SIGTERM.
pub fn on_signal() -> Stop {
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        signal().await;
        let _ = stop.send(true);
    });
    stopped
}

/// Returns once it is time to end.
pub async fn stopped(stop: &Stop) {
    if stop.clone().wait_for(|stop| *stop).await.is_err() {
        // Nobody is left who could stop it.
        std::future::pending::<()>().await;
    }
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
