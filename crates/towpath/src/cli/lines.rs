//! Output of one feed: lines of JSON, and the state file that covers them.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde_json::Value;
use towpath_client::progress::FollowProgress;
use towpath_client::sink::acks::{change_digest, reset_digest};
use towpath_client::state_file::{StateError, StateFile};
use towpath_client::{FollowNotice, FollowRoute, Output, redact};
use towpath_proto::follow::{FeedReset, Followed};

use super::terminal::{message, plain, visible_json};

/// Longest time for which lines of an unfinished unit stay unsaved while more arrive.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// Failure of the output.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinesError {
    /// The reader of standard output has exited.
    #[error("standard output is closed")]
    Closed,
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Write(io::Error),
    /// The lines were written, but their state was not.
    #[error(transparent)]
    State(#[from] StateError),
    /// The writer has ended.
    #[error("internal error: cannot write to standard output: {0}")]
    Broken(String),
}

/// Prints each change as one line, and saves each checkpoint after the lines it covers are flushed.
///
/// A publisher may tell many changes as one unit, with one checkpoint. A unit that comes again after a failed attempt or a
/// restart is printed from where it broke off.
pub(super) struct Lines<W: Write> {
    /// `None` while a batch is being written.
    writer: Option<LineWriter<W>>,
}

struct LineWriter<W: Write> {
    out: W,
    state: Option<StateFile>,
    progress: FollowProgress,
    saved_at: Instant,
}

impl<W: Write + Send + 'static> Lines<W> {
    pub(super) fn new(out: W, state: Option<StateFile>, progress: FollowProgress) -> Self {
        Self { writer: Some(LineWriter { out, state, progress, saved_at: Instant::now() }) }
    }

    /// Writes in a thread for blocking work: a slow reader of standard output must not block signal handling.
    async fn write(
        &mut self,
        write: impl FnOnce(&mut LineWriter<W>) -> Result<(), LinesError> + Send + 'static,
    ) -> Result<(), LinesError> {
        let broken = || LinesError::Broken("an earlier batch was abandoned".into());
        let mut writer = self.writer.take().ok_or_else(broken)?;
        let written = tokio::task::spawn_blocking(move || {
            let written = write(&mut writer);
            (writer, written)
        });
        let (writer, written) = written.await.map_err(|e| LinesError::Broken(e.to_string()))?;
        // Cancelled before this line, the writer is gone: the lines of that batch may be written or not.
        self.writer = Some(writer);
        written
    }
}

impl<W: Write + Send + 'static> Output for Lines<W> {
    type Error = LinesError;

    async fn deliver(&mut self, changes: Vec<Followed>, checkpoint: Option<Value>) -> Result<(), LinesError> {
        self.write(move |writer| writer.write(changes, checkpoint)).await
    }

    async fn reset(&mut self, reset: FeedReset) -> Result<(), LinesError> {
        self.write(move |writer| writer.write_reset(&reset)).await
    }

    fn notice(&mut self, notice: FollowNotice) {
        if let (FollowNotice::Failed(_), Some(writer)) = (&notice, &mut self.writer) {
            writer.progress.unit_restarts();
        }
        eprintln!("towpath: {}", plain(&notice_text(&notice)));
    }

    fn located(&mut self, route: &FollowRoute, page: &str) {
        // Nothing was written yet, so no batch has the writer.
        if let Some(LineWriter { state: Some(file), .. }) = &mut self.writer {
            file.relocate(&route.url);
        }
        eprintln!("towpath: {}", message(&located_text(route, page)));
    }
}

/// Returns the message that a page named the feed.
pub(super) fn located_text(route: &FollowRoute, page: &str) -> String {
    format!("following {} by {}, which {page} names", route.url, route.protocol)
}

/// Formats a notice for standard error.
pub(super) fn notice_text(notice: &FollowNotice) -> String {
    redact::credentials(&notice.to_string())
}

impl<W: Write> LineWriter<W> {
    fn write(&mut self, mut changes: Vec<Followed>, checkpoint: Option<Value>) -> Result<(), LinesError> {
        let mut last = None;
        changes.retain(|change| {
            let number = self.progress.give(change_digest(change));
            last = number.or(last);
            number.is_some()
        });
        write_lines(&mut self.out, &changes)?;
        self.printed(last);
        match checkpoint {
            Some(checkpoint) => {
                self.progress.end_unit(checkpoint);
                self.save()
            }
            None if self.saved_at.elapsed() >= SAVE_EVERY => self.save(),
            None => Ok(()),
        }
    }

    fn write_reset(&mut self, reset: &FeedReset) -> Result<(), LinesError> {
        let Some(number) = self.progress.give(reset_digest()) else { return Ok(()) };
        write_reset(&mut self.out, reset)?;
        self.printed(Some(number));
        Ok(())
    }

    /// Takes note that lines are flushed.
    fn printed(&mut self, through: Option<u64>) {
        through.into_iter().for_each(|number| self.progress.acknowledge(number));
    }

    fn save(&mut self) -> Result<(), LinesError> {
        self.saved_at = Instant::now();
        match (&self.state, self.progress.take_unsaved()) {
            (Some(file), Some((state, acknowledged))) => Ok(file.save_with(state.as_ref(), acknowledged)?),
            _ => Ok(()),
        }
    }
}

impl<W: Write> Drop for LineWriter<W> {
    fn drop(&mut self) {
        // Stopped in the middle of a unit: the next start goes on there.
        if let Err(error) = self.save() {
            eprintln!("towpath: {}", plain(&error.to_string()));
        }
    }
}

/// Writes each change as one line, then flushes.
pub(super) fn write_lines<'a>(
    out: &mut impl Write,
    changes: impl IntoIterator<Item = &'a Followed>,
) -> Result<(), LinesError> {
    // One write for the batch: a write per line costs a system call each.
    let mut text = Vec::new();
    for change in changes {
        serde_json::to_writer(&mut text, &change.line()).map_err(|e| LinesError::Write(e.into()))?;
        text.push(b'\n');
    }
    if text.is_empty() {
        return Ok(());
    }
    flush_lines(out, text)
}

/// Writes the line of a reset, then flushes.
pub(super) fn write_reset(out: &mut impl Write, reset: &FeedReset) -> Result<(), LinesError> {
    let mut text = serde_json::to_vec(&reset.line()).map_err(|e| LinesError::Write(e.into()))?;
    text.push(b'\n');
    flush_lines(out, text)
}

fn flush_lines(out: &mut impl Write, text: Vec<u8>) -> Result<(), LinesError> {
    let text = visible_json(text);
    out.write_all(&text).and_then(|()| out.flush()).map_err(|e| match e.kind() {
        // Closed pipes end the program quietly, as with other filters.
        io::ErrorKind::BrokenPipe => LinesError::Closed,
        _ => LinesError::Write(e),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use serde_json::json;
    use towpath_client::Protocol;
    use towpath_proto::{Item, Op};
    use url::Url;

    use super::*;

    /// A pipe whose reader exits after `room` bytes.
    #[derive(Clone)]
    struct LimitedPipe {
        seen: Arc<Mutex<Vec<u8>>>,
        room: usize,
        fault: io::ErrorKind,
    }

    impl LimitedPipe {
        fn with_room(room: usize) -> Self {
            Self { seen: Arc::default(), room, fault: io::ErrorKind::BrokenPipe }
        }
    }

    impl Write for LimitedPipe {
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
    async fn each_change_is_a_line_and_the_state_is_saved_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let reader = LimitedPipe::with_room(1 << 20);
        let mut lines = Lines::new(reader.clone(), Some(state_file(&path)), FollowProgress::default());
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
    async fn a_reset_is_a_line_among_the_changes() {
        let reader = LimitedPipe::with_room(1 << 20);
        let mut lines = Lines::new(reader.clone(), None, FollowProgress::default());
        lines.deliver(vec![change("a")], None).await.unwrap();
        lines.reset(FeedReset { feed: "f".into(), reason: "r".into() }).await.unwrap();
        let seen = String::from_utf8(reader.seen.lock().unwrap().clone()).unwrap();
        assert_eq!(seen.lines().nth(1), Some("{\"feed\":\"f\",\"op\":\"reset\"}"));
    }

    #[tokio::test]
    async fn no_state_is_saved_for_lines_that_were_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut lines =
            Lines::new(LimitedPipe::with_room(10), Some(state_file(&path)), FollowProgress::default());
        let closed = lines.deliver(vec![change("a")], Some(json!(1))).await;
        assert!(matches!(closed, Err(LinesError::Closed)));
        drop(lines);
        let full = LimitedPipe { fault: io::ErrorKind::StorageFull, ..LimitedPipe::with_room(10) };
        let mut lines = Lines::new(full, Some(state_file(&path)), FollowProgress::default());
        let full = lines.deliver(vec![change("a")], Some(json!(1))).await;
        assert!(matches!(full, Err(LinesError::Write(_))));
        assert!(!path.exists());
    }

    /// What was printed of an unfinished unit is saved, in the form that programs continue from.
    #[tokio::test]
    async fn a_unit_that_comes_again_is_printed_from_where_it_broke_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let reader = LimitedPipe::with_room(1 << 20);
        let unit = |ids: [&str; 4]| ids.map(change).to_vec();
        let mut lines = Lines::new(reader.clone(), Some(state_file(&path)), FollowProgress::default());
        lines.deliver(unit(["a", "b", "c", "d"])[..2].to_vec(), None).await.unwrap();
        // A failed attempt, after which the follower sends all again.
        lines.notice(FollowNotice::Failed(towpath_proto::follow::FollowError::Usage("no answer".into())));
        lines.deliver(unit(["a", "b", "c", "d"])[..3].to_vec(), None).await.unwrap();
        drop(lines);
        let url = Url::parse("http://x/").unwrap();
        let saved = towpath_client::state_file::load(&path, &url, None).unwrap().unwrap();
        assert_eq!((&saved.state, saved.acknowledged.len()), (&None, 3));
        let progress = FollowProgress::resume(saved.state, &saved.acknowledged);
        let mut lines = Lines::new(reader.clone(), Some(state_file(&path)), progress);
        lines.deliver(unit(["a", "b", "c", "d"]), Some(json!("here"))).await.unwrap();
        lines.deliver(vec![change("a")], None).await.unwrap();
        let seen = String::from_utf8(reader.seen.lock().unwrap().clone()).unwrap();
        let ids: Vec<String> = seen
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(ids, ["a", "b", "c", "d", "a"]);
    }
}
