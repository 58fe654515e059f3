//! Progress bar and messages of a follow into a sink.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use towpath_client::SinkBatch;
use towpath_client::sink::{SinkNotice, SinkObserver};

use crate::cli::style::is_quiet;
use crate::cli::terminal::message;

/// Interval at which the bar moves while nothing arrives.
const TICK: Duration = Duration::from_millis(200);

/// Counts applied changes on standard error, if that is a terminal, until the follow has caught up.
pub(super) struct SinkProgress {
    bar: ProgressBar,
    /// True once the destination has refused an item.
    has_refused: AtomicBool,
}

impl SinkProgress {
    /// Starts the bar. Hidden where lines are printed beside it, and after `--quiet`.
    pub(super) fn start(is_shown: bool) -> Self {
        if !is_shown || is_quiet() {
            return Self { bar: ProgressBar::hidden(), has_refused: AtomicBool::new(false) };
        }
        // Draws nothing where standard error is not a terminal.
        let bar = ProgressBar::new_spinner();
        let style =
            ProgressStyle::with_template("{spinner} {human_pos} changes applied, {per_sec}, {elapsed}{msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.enable_steady_tick(TICK);
        Self { bar, has_refused: AtomicBool::new(false) }
    }

    /// Returns true if the destination lacks items that it has refused.
    pub(super) fn has_refused(&self) -> bool {
        self.has_refused.load(Ordering::Relaxed)
    }

    /// Shows how far the follow is, behind the count.
    pub(super) fn describe(&self, text: &str) {
        self.bar.set_message(format!("; {}", message(text)));
    }

    /// Prints a message on standard error.
    pub(super) fn print(&self, text: &str) {
        self.bar.suspend(|| eprintln!("towpath: {}", message(text)));
    }

    /// Removes the bar: from here on, changes are few.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl SinkObserver for SinkProgress {
    fn notice(&self, _source: &str, notice: SinkNotice) {
        if matches!(notice, SinkNotice::SetAside { .. }) {
            self.has_refused.store(true, Ordering::Relaxed);
        }
        self.print(&notice.to_string());
    }

    fn applied(&self, batch: &SinkBatch) {
        self.bar.inc(batch.events.len() as u64);
    }
}
