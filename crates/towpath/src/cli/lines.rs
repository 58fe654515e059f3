//! Changes as lines of JSON, and the state that covers them.

use std::io::{self, Write};

use serde_json::Value;
use towpath_proto::follow::{FollowError, Followed};

use super::state_file::{StateError, StateFile};
use super::terminal::plain;
use crate::client::{Notice, Output};

/// Why no more lines can be delivered.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinesError {
    /// Whoever reads them has gone.
    #[error("standard output is closed")]
    Closed,
    /// They cannot be written.
    #[error("cannot write to standard output: {0}")]
    Write(io::Error),
    /// They are written, but not how far.
    #[error(transparent)]
    State(#[from] StateError),
    /// The thread that writes has died.
    #[error("writing broke off: {0}")]
    Broken(String),
}

/// Prints each change as one line, and keeps each checkpoint once the lines it covers are flushed.
pub(super) struct Lines<W> {
    /// Away while a batch is being written.
    sink: Option<Sink<W>>,
}

struct Sink<W> {
    out: W,
    state: Option<StateFile>,
}

impl<W: Write + Send + 'static> Lines<W> {
    pub(super) fn new(out: W, state: Option<StateFile>) -> Self {
        Self { sink: Some(Sink { out, state }) }
    }
}

impl<W: Write + Send + 'static> Output for Lines<W> {
    type Error = LinesError;

    async fn deliver(&mut self, changes: Vec<Followed>, checkpoint: Option<Value>) -> Result<(), LinesError> {
        let broken = || LinesError::Broken("an earlier batch was given up".into());
        let mut sink = self.sink.take().ok_or_else(broken)?;
        // A reader that is slow must not hold up the signals that end the program.
        let written = tokio::task::spawn_blocking(move || {
            let written = sink.write(&changes, checkpoint);
            (sink, written)
        });
        let (sink, written) = written.await.map_err(|e| LinesError::Broken(e.to_string()))?;
        self.sink = Some(sink);
        written
    }

    fn notice(&mut self, notice: Notice) {
        eprintln!("towpath: {}", plain(&notice_text(notice)));
    }
}

/// A notice as a person reads it.
pub(super) fn notice_text(notice: Notice) -> String {
    match notice {
        Notice::Warning(text) => format!("warning: {text}"),
        Notice::Incomplete(text) => format!("incomplete: {text}"),
        Notice::Failed(FollowError::Usage(text)) => text,
        Notice::Failed(error) => format!("failed: {error}"),
    }
}

impl<W: Write> Sink<W> {
    fn write(&mut self, changes: &[Followed], checkpoint: Option<Value>) -> Result<(), LinesError> {
        write_lines(&mut self.out, changes)?;
        match (&self.state, checkpoint) {
            (Some(file), Some(state)) => Ok(file.save(state)?),
            _ => Ok(()),
        }
    }
}

/// Writes each change as one line, and flushes them.
pub(super) fn write_lines<'a>(
    out: &mut impl Write,
    changes: impl IntoIterator<Item = &'a Followed>,
) -> Result<(), LinesError> {
    let mut text = Vec::new();
    for change in changes {
        serde_json::to_writer(&mut text, &change.line()).map_err(|e| LinesError::Write(e.into()))?;
        text.push(b'\n');
    }
    if text.is_empty() {
        return Ok(());
    }
    out.write_all(&text).and_then(|()| out.flush()).map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => LinesError::Closed,
        _ => LinesError::Write(e),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use serde_json::json;
    use towpath_proto::{Item, Op};
    use url::Url;

    use super::*;
    use crate::client::Protocol;

    /// A reader that remembers what it read and whether a state was there by then, and goes away after `room`
    /// bytes.
    #[derive(Clone)]
    struct Reader {
        seen: Arc<Mutex<Vec<u8>>>,
        room: usize,
        fault: io::ErrorKind,
    }

    impl Reader {
        fn with_room(room: usize) -> Self {
            Self { seen: Arc::default(), room, fault: io::ErrorKind::BrokenPipe }
        }
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut seen = self.seen.lock().unwrap();
            let fits = bytes.len().min(self.room - seen.len());
            seen.extend_from_slice(&bytes[..fits]);
            if fits == 0 { Err(self.fault.into()) } else { Ok(fits) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn change(id: &str) -> Followed {
        Followed {
            feed: "f".into(),
            op: Op::Delete,
            item: Item::new(id),
            patch: None,
            modified: None,
            position: "7".into(),
            entry_id: None,
        }
    }

    fn state_file(path: &Path) -> StateFile {
        let url = Url::parse("http://x/").unwrap();
        StateFile::open(path, &url, Protocol::Smart, url.as_str()).unwrap()
    }

    #[tokio::test]
    async fn each_change_is_a_line_and_the_state_comes_after() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let reader = Reader::with_room(1 << 20);
        let mut lines = Lines::new(reader.clone(), Some(state_file(&path)));
        lines.deliver(vec![change("a\n"), change("b")], None).await.unwrap();
        assert!(!path.exists());
        lines.deliver(vec![], Some(json!("here"))).await.unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains(r#""state":"here""#));
        let seen = String::from_utf8(reader.seen.lock().unwrap().clone()).unwrap();
        let expected = "{\"feed\":\"f\",\"op\":\"delete\",\"id\":\"a\\n\",\"position\":\"7\"}\n\
                        {\"feed\":\"f\",\"op\":\"delete\",\"id\":\"b\",\"position\":\"7\"}\n";
        assert_eq!(seen, expected);
    }

    #[tokio::test]
    async fn no_state_is_kept_of_lines_that_nobody_took() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut lines = Lines::new(Reader::with_room(10), Some(state_file(&path)));
        let closed = lines.deliver(vec![change("a")], Some(json!(1))).await;
        assert!(matches!(closed, Err(LinesError::Closed)));
        let full = Reader { fault: io::ErrorKind::StorageFull, ..Reader::with_room(10) };
        let mut lines = Lines::new(full, Some(state_file(&path)));
        let full = lines.deliver(vec![change("a")], Some(json!(1))).await;
        assert!(matches!(full, Err(LinesError::Write(_))));
        assert!(!path.exists());
    }
}
