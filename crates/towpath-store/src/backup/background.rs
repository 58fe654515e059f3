//! Work of a backup beside a server that publishes.

use std::io;
use std::thread;

use tokio::sync::oneshot;

/// The lowest priority of Linux's ordinary threads.
#[cfg(target_os = "linux")]
const LOWEST: i32 = 19;

/// Begins `work` on a thread of its own, with the processor time that other threads leave. Where the system knows
/// priorities of whole processes only, the thread has that of the process.
///
/// # Errors
///
/// If the system gives no thread, or `work` panics.
pub fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = io::Result<T>> + Send {
    let (sender, done) = oneshot::channel();
    // Not a thread of tokio's pool: its priority would stay low for the pool's next task.
    let begun = thread::Builder::new().name("backup".into()).spawn(move || {
        #[cfg(target_os = "linux")]
        if let Err(e) = rustix::process::nice(LOWEST) {
            tracing::debug!(error = %e, "a backup keeps the priority of the process");
        }
        drop(sender.send(work()));
    });
    async move {
        begun?;
        done.await.map_err(|_| io::Error::other("a thread of the backup panicked"))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_work_has_the_lowest_priority_and_its_caller_keeps_its_own() {
        let before = rustix::process::nice(0).unwrap();
        let within = in_background(|| rustix::process::nice(0).unwrap()).await.unwrap();
        assert_eq!(within, LOWEST);
        assert_eq!(rustix::process::nice(0).unwrap(), before);
        let panicked = in_background(move || assert!(before > LOWEST, "a fault of the work")).await;
        assert!(panicked.is_err());
    }
}
