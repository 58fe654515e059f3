//! The stop signal of a process: Ctrl-C or SIGTERM.

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

pub use towpath_client::stop::{Stop, stopped, unless_stopped};

/// Returns a stop signal that is set by Ctrl-C or SIGTERM.
pub fn on_signal() -> Stop {
    on_signal_or_request().1
}

/// Returns a stop signal that is set by Ctrl-C or SIGTERM, and its sender, which sets it for another reason.
///
/// From here on, neither signal ends the process by itself.
pub fn on_signal_or_request() -> (Arc<watch::Sender<bool>>, Stop) {
    let (stop, stopped) = watch::channel(false);
    let stop = Arc::new(stop);
    let sender = stop.clone();
    let interrupted = handler(SignalKind::interrupt());
    let terminated = handler(SignalKind::terminate());
    tokio::spawn(async move {
        tokio::select! {
            () = received(interrupted) => {}
            () = received(terminated) => {}
        }
        // Fails only if nobody listens any more, and then everything has stopped already.
        let _ = stop.send(true);
    });
    (sender, stopped)
}

/// Handler of a signal. Without one the signal still ends the process, so it need not refuse to start.
fn handler(kind: SignalKind) -> Option<Signal> {
    signal(kind).inspect_err(|e| tracing::warn!(error = %e, "a signal will end the process uncleanly")).ok()
}

async fn received(handler: Option<Signal>) {
    match handler {
        Some(mut handler) => drop(handler.recv().await),
        None => std::future::pending().await,
    }
}
