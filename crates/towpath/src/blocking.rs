//! Work that takes milliseconds of a core: parsing, comparing, making documents, compressing.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Semaphore;
use tokio::task::JoinError;

/// True where such work runs on the thread that asks for it.
static INLINE: AtomicBool = AtomicBool::new(false);

/// Has all such work of this process run on the thread that asks for it, as simulations need: they have one thread, so
/// that a run can be repeated.
pub fn run_inline() {
    INLINE.store(true, Ordering::Relaxed);
}

/// Runs such work apart from the threads that serve and fetch, as much at a time as there are cores. More would
/// finish nothing sooner, and each piece holds a whole document in memory.
///
/// # Errors
///
/// The work's panic.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    if INLINE.load(Ordering::Relaxed) {
        return Ok(work());
    }
    // Process-wide, not per engine: an export's engine and the server's share the same cores.
    static CORES: OnceLock<Semaphore> = OnceLock::new();
    let cores =
        CORES.get_or_init(|| Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from)));
    // The semaphore is never closed; without a place the work is done all the same.
    let _place = cores.acquire().await;
    // One task type for each result: the runtime's code is generated for every type that it runs.
    let work: Box<dyn FnOnce() -> T + Send> = Box::new(work);
    tokio::task::spawn_blocking(work).await
}
