//! Reader of a feed's changes: a thread with the follow, and the batches that it hands to Python.
//!
//! The thread never takes the interpreter's lock, so it cannot hinder or outlive the interpreter's end. It ends with
//! the reader. Each message also writes a byte to a socket, on which an event loop may wait.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use towpath_client::{ChangeBatch, Changes, Follow, FollowNotice};

use crate::change::Change;
use crate::errors::Failure;
use crate::options;
use crate::wait::{SHUTDOWN, SIGNAL_CHECK};

/// Batches that wait for Python, so that it does not wait for the thread.
const WAITING_BATCHES: usize = 2;
/// Largest batch.
const LARGEST_BATCH: usize = 1024;
/// Time for which a batch should suffice: the state is saved between batches.
const BATCH_TIME: Duration = Duration::from_millis(100);

/// Message of the thread.
enum Message {
    Batch(ChangeBatch),
    /// Kind and text of a message for the log.
    Notice(&'static str, String),
    /// The end: of a follow that ends by itself, or an error.
    End(Result<(), Failure>),
}

/// Request to the thread.
enum Command {
    /// The changes up to this number are finished.
    Acknowledge(u64),
    /// Python took a batch, and wants batches of this size.
    Taken {
        size: usize,
    },
    Close,
}

/// Reader of one feed's changes.
#[pyclass(frozen, module = "towpath._towpath")]
pub(crate) struct Reader {
    shared: Mutex<ReaderState>,
    /// Process of the thread: a fork has the reader, and no thread.
    process: u32,
    /// Separate from the state, so that a wait in one thread does not block the others.
    messages: Mutex<Receiver<Message>>,
    wake: UnixStream,
}

struct ReaderState {
    commands: UnboundedSender<Command>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
    /// Numbers of the changes of the last batch.
    numbers: VecDeque<u64>,
    handed_at: Instant,
    size: usize,
    /// State that covers the last batch, for a caller that saves it.
    state: Option<Vec<u8>>,
    has_more: bool,
    has_ended: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A batch, a notice for the log, or the end.
type Taken = (Option<Vec<Change>>, Option<(&'static str, String)>);

#[pymethods]
impl Reader {
    #[new]
    #[pyo3(signature = (url, *, protocol, start, once, token, headers, large_content, path, name, content))]
    #[expect(clippy::too_many_arguments, reason = "the package's own call, by keywords")]
    fn new(
        py: Python<'_>,
        url: String,
        protocol: &str,
        start: &str,
        once: bool,
        token: Option<&str>,
        headers: Vec<(String, String)>,
        large_content: Option<PathBuf>,
        path: Option<PathBuf>,
        name: Option<PathBuf>,
        content: Option<Vec<u8>>,
    ) -> PyResult<Self> {
        let follow = || {
            let mut follow = Follow::new(&url).start(options::start(start)?);
            if let Some(protocol) = options::protocol(protocol)? {
                follow = follow.protocol(protocol);
            }
            follow = if once { follow.once() } else { follow };
            follow = options::large_content(follow, large_content);
            follow = match (path, name) {
                (Some(path), _) => follow.state(path),
                (None, Some(name)) => follow.state_content(name, content),
                (None, None) => follow,
            };
            Ok(follow.fetcher(options::fetcher(&url, token, &headers)?))
        };
        let follow = follow().map_err(|failure: Failure| failure.into_exception(py))?;
        Self::start(follow).map_err(PyOSError::new_err)
    }

    /// Returns the next changes and `None`, or `None` and a message for the log, or twice `None` at the end. Waits.
    fn next(&self, py: Python<'_>) -> PyResult<Taken> {
        self.check_process()?;
        loop {
            match py.detach(|| lock(&self.messages).recv_timeout(SIGNAL_CHECK)) {
                Ok(message) => return self.take(py, message),
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => return self.disconnected(),
            }
        }
    }

    /// Like `next`, without waiting: `None` if nothing has arrived.
    fn try_next(&self, py: Python<'_>) -> PyResult<Option<Taken>> {
        self.check_process()?;
        // First: a message that comes after the bytes were read writes another byte.
        let mut bytes = [0; 64];
        while matches!((&self.wake).read(&mut bytes), Ok(1..)) {}
        let received = lock(&self.messages).try_recv();
        match received {
            Ok(message) => self.take(py, message).map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => self.disconnected().map(Some),
        }
    }

    /// Takes note that the first `count` changes of the last batch are finished.
    fn finished(&self, count: usize) {
        let mut state = lock(&self.shared);
        let Some(last) = count.checked_sub(1).and_then(|last| state.numbers.get(last).copied()) else {
            return;
        };
        // Fails only if the thread has ended.
        let _ = state.commands.send(Command::Acknowledge(last));
        state.numbers.drain(..count);
    }

    /// State that covers the last batch and all before it, if a unit ends there.
    #[getter]
    fn state(&self) -> Option<String> {
        let state = lock(&self.shared).state.clone()?;
        String::from_utf8(state).ok()
    }

    /// True if more changes have arrived already.
    #[getter]
    fn has_more(&self) -> bool {
        lock(&self.shared).has_more
    }

    /// File descriptor that is readable when something has arrived.
    fn fileno(&self) -> i32 {
        self.wake.as_raw_fd()
    }

    /// Ends the follow and saves what is finished.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.end()).map_err(|failure| failure.into_exception(py))
    }
}

impl Reader {
    fn start(follow: Follow) -> std::io::Result<Self> {
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let (sender, messages) = mpsc::channel();
        let (commands, received) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = move || {
            let output = MessageSender { sender, waker };
            let result = runtime.block_on(run(follow.changes(), &output, received));
            runtime.shutdown_timeout(SHUTDOWN);
            result
        };
        let thread = std::thread::Builder::new().name("towpath-follow".into()).spawn(run)?;
        let state = ReaderState {
            commands,
            thread: Some(thread),
            numbers: VecDeque::new(),
            handed_at: Instant::now(),
            size: 1,
            state: None,
            has_more: false,
            has_ended: false,
        };
        let process = std::process::id();
        Ok(Self { shared: Mutex::new(state), process, messages: Mutex::new(messages), wake })
    }

    /// Fails in a fork, which would wait for ever.
    fn check_process(&self) -> PyResult<()> {
        if std::process::id() == self.process {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(
            "a follow of the parent process cannot be used after a fork: start one here",
        ))
    }

    fn take(&self, py: Python<'_>, message: Message) -> PyResult<Taken> {
        let mut state = lock(&self.shared);
        match message {
            Message::Notice(kind, text) => Ok((None, Some((kind, text)))),
            Message::End(result) => {
                state.has_ended = true;
                result.map(|()| (None, None)).map_err(|failure| failure.into_exception(py))
            }
            Message::Batch(ChangeBatch { changes, state: content, has_more }) => {
                let size = state.next_size();
                let _ = state.commands.send(Command::Taken { size });
                (state.state, state.has_more) = (content, has_more);
                state.numbers = changes.iter().map(towpath_client::FeedChange::number).collect();
                Ok((Some(changes.into_iter().map(Change::from).collect()), None))
            }
        }
    }

    /// After the end there is nothing more. Without an end the thread has failed.
    fn disconnected(&self) -> PyResult<Taken> {
        if lock(&self.shared).has_ended {
            return Ok((None, None));
        }
        Err(PyRuntimeError::new_err("internal error: the follow's thread has ended"))
    }

    fn end(&self) -> Result<(), Failure> {
        if std::process::id() != self.process {
            // The thread and its state are the parent's.
            return Ok(());
        }
        let thread = {
            let mut state = lock(&self.shared);
            state.has_ended = true;
            let _ = state.commands.send(Command::Close);
            state.thread.take()
        };
        let ended = thread.map_or(Ok(Ok(())), JoinHandle::join);
        // A wait in another thread ends with the sender of its messages.
        ended.unwrap_or_else(|_| Err(Failure::usage("internal error: the follow's thread has failed")))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The thread needs no lock of the interpreter, so this may hold it meanwhile.
        let _ = self.end();
    }
}

impl ReaderState {
    /// Size of batches for which the loop takes about [`BATCH_TIME`].
    fn next_size(&mut self) -> usize {
        let took = self.handed_at.elapsed();
        self.handed_at = Instant::now();
        self.size = if took > BATCH_TIME { self.size / 2 } else { self.size * 2 };
        self.size = self.size.clamp(1, LARGEST_BATCH);
        self.size
    }
}

/// Sender of messages to Python.
struct MessageSender {
    sender: Sender<Message>,
    waker: UnixStream,
}

impl MessageSender {
    /// Fails never: the receiver lives as long as the thread.
    fn send(&self, message: Message) {
        let _ = self.sender.send(message);
        // A full socket wakes the event loop as well.
        let _ = (&self.waker).write(&[1]);
    }
}

/// Hands out batches until the end, or until Python closes the reader.
async fn run(
    changes: Changes,
    output: &MessageSender,
    mut commands: UnboundedReceiver<Command>,
) -> Result<(), Failure> {
    let (notices, mut noticed) = unbounded_channel();
    let mut changes = changes.on_notice(move |notice| {
        let _ = notices.send(kind_and_text(notice));
    });
    let (mut waiting, mut size) = (0, 1);
    let end = loop {
        tokio::select! {
            biased;
            command = commands.recv() => match command {
                Some(Command::Acknowledge(number)) => {
                    changes.acknowledge_through(number);
                    // Python may take long for the batches that wait, and nothing is read meanwhile.
                    if let Err(error) = changes.save_if_due().await {
                        break Err(error.into());
                    }
                }
                Some(Command::Taken { size: wanted }) => (waiting, size) = (waiting - 1, wanted),
                Some(Command::Close) | None => return changes.close().await.map_err(Failure::from),
            },
            Some((kind, text)) = noticed.recv() => output.send(Message::Notice(kind, text)),
            batch = changes.next_batch(size), if waiting < WAITING_BATCHES => match batch {
                Ok(Some(batch)) => {
                    waiting += 1;
                    output.send(Message::Batch(batch));
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.into()),
            },
        }
    };
    while let Ok((kind, text)) = noticed.try_recv() {
        output.send(Message::Notice(kind, text));
    }
    output.send(Message::End(end));
    // What is still to be finished is acknowledged until the reader is closed.
    loop {
        match commands.recv().await {
            Some(Command::Acknowledge(number)) => changes.acknowledge_through(number),
            Some(Command::Taken { .. }) => {}
            Some(Command::Close) | None => return changes.close().await.map_err(Failure::from),
        }
    }
}

fn kind_and_text(notice: &FollowNotice) -> (&'static str, String) {
    let kind = if matches!(notice, FollowNotice::Incomplete(_)) { "gap" } else { "warning" };
    (kind, towpath_client::redact::credentials(&notice.to_string()))
}
