//! Socket in the data folder by which a running server gives a copy of its store: `towpath.sock`.
//!
//! The folder's permissions guard it: a user who may open the folder may read all of it.

use std::io::{BufReader, BufWriter, Write as _};
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use towpath_store::backup::{CopyError, LocalCopy, in_background};

use super::pace::PacedCopy;
use super::stream::{ReceivedCopy, send};
use crate::engine::Engine;
use crate::stop::{Stop, stopped};

const SOCKET: &str = "towpath.sock";
/// The request.
const COPY: &[u8; 5] = b"copy\n";
/// Time for the request to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a reader may take nothing. Its copy keeps replaced data on disk.
const WRITE_TIMEOUT: Duration = Duration::from_secs(300);
/// Pause after a failed accept, such as one without free descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// Gives copies of the store until the server stops, one at a time.
pub(crate) async fn serve(engine: Arc<Engine>, stop: Stop) {
    // A node of a cluster has no copy to give.
    if engine.is_shared() {
        return;
    }
    let path = engine.config.server.data.join(SOCKET);
    // The folder is locked, so a socket in it is a dead process's.
    drop(std::fs::remove_file(&path));
    let listener = match UnixListener::bind(&path) {
        Ok(listener) => listener,
        Err(e) => {
            tracing::warn!(
                socket = %path.display(),
                error = %e,
                "`towpath backup` works only while this server is stopped"
            );
            return;
        }
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&stop) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::warn!(error = %e, "cannot accept a backup");
                sleep(PAUSE).await;
                continue;
            }
        };
        tokio::select! {
            sent = send_copy(&engine, stream) => match sent {
                Ok(()) => tracing::info!("gave a copy of the store to a backup"),
                Err(e) => tracing::warn!(error = %e, "a backup did not get its copy of the store"),
            },
            // The reader finds its copy cut off.
            () = stopped(&stop) => break,
        }
    }
    drop(std::fs::remove_file(&path));
}

async fn send_copy(engine: &Engine, mut stream: UnixStream) -> std::io::Result<()> {
    let mut request = [0; COPY.len()];
    timeout(REQUEST_TIMEOUT, stream.read_exact(&mut request)).await??;
    if &request != COPY {
        return Err(std::io::Error::other("its request is unknown"));
    }
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let copy = engine.store.copy().map_err(std::io::Error::other)?;
    let copy = LocalCopy::new(copy.ok_or_else(|| std::io::Error::other("this store has no copy"))?);
    let store = Arc::clone(&engine.store);
    let mut copy = PacedCopy::new(copy, move || store.stats().map_or(0, |stats| stats.requests));
    // Reading a large store takes minutes of disk time.
    in_background(move || send(&mut copy, &mut BufWriter::new(stream))).await?
}

/// Asks the server that has a data folder open for a copy of its store.
pub(super) fn request(folder: &Path) -> Result<ReceivedCopy<BufReader<StdStream>>, CopyError> {
    let mut stream = StdStream::connect(folder.join(SOCKET))?;
    stream.write_all(COPY)?;
    ReceivedCopy::begin(BufReader::with_capacity(1 << 20, stream))
}
