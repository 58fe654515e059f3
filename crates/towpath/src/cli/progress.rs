//! Bars of commands that take long, on a terminal only.

use std::future::Future;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::task::JoinHandle;

use super::style::is_quiet;

/// Time after which a command shows how far it is.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval at which a bar moves while nothing is counted.
const TICK: Duration = Duration::from_millis(200);
/// Template of a bar that counts nothing.
const WAITING: &str = "{spinner} {msg}";

/// Work that [`patiently`] shows while a data folder is opened: a journal of some GiB is read first.
pub(super) const OPENING: &str = "opening the data folder";

/// Work that [`patiently`] shows while documents are made of changes that no server has published yet.
pub(super) const PUBLISHING: &str = "publishing documents";

/// Bar that is drawn on standard error once a command takes long. It is cleared when it is dropped.
pub(super) struct LateBar {
    bar: ProgressBar,
    drawing: JoinHandle<()>,
}

impl LateBar {
    /// Makes a bar of a template of `indicatif`. Its length may be set later.
    pub(super) fn new(template: &str) -> Self {
        // Stays hidden where standard error is no terminal.
        Self::drawn_on(template, ProgressDrawTarget::stderr)
    }

    fn drawn_on(template: &str, target: impl FnOnce() -> ProgressDrawTarget + Send + 'static) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        let late = bar.clone();
        let drawing = tokio::spawn(async move {
            tokio::time::sleep(PATIENCE).await;
            if !is_quiet() {
                late.set_draw_target(target());
                late.enable_steady_tick(TICK);
            }
        });
        Self { bar, drawing }
    }

    /// Returns the counter behind the bar.
    pub(super) fn counter(&self) -> ProgressBar {
        self.bar.clone()
    }
}

impl Drop for LateBar {
    fn drop(&mut self) {
        self.drawing.abort();
        self.bar.finish_and_clear();
    }
}

/// Waits for a result, and shows on a terminal what is waited for if it takes long.
pub(super) async fn patiently<T>(what: &str, work: impl Future<Output = T>) -> T {
    patiently_beside(LateBar::new(WAITING), what, work).await
}

async fn patiently_beside<T>(late: LateBar, what: &str, work: impl Future<Output = T>) -> T {
    late.counter().set_message(what.to_owned());
    work.await
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::time::Instant;

    use indicatif::TermLike;
    use parking_lot::Mutex;

    use super::*;

    /// A terminal that keeps its only line, and every text that was written.
    #[derive(Debug, Default, Clone)]
    struct FakeTerminal {
        line: Arc<Mutex<String>>,
        written: Arc<Mutex<Vec<String>>>,
    }

    impl TermLike for FakeTerminal {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.line.lock().push_str(text);
            self.written.lock().push(text.to_owned());
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            self.line.lock().clear();
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    impl FakeTerminal {
        fn bar(&self, template: &str) -> LateBar {
            let terminal = self.clone();
            LateBar::drawn_on(template, || ProgressDrawTarget::term_like(Box::new(terminal)))
        }

        /// Waits for a line with these words. A thread of its own draws.
        fn wait_for(&self, words: &str) {
            let end = Instant::now() + Duration::from_secs(30);
            while !self.line.lock().contains(words) {
                assert!(Instant::now() < end, "{words:?} is not shown: {:?}", self.written.lock());
                std::thread::sleep(Duration::from_millis(5));
            }
        }

        fn is_untouched(&self) -> bool {
            self.written.lock().is_empty()
        }
    }

    /// Lets time pass on the paused clock, and what is due then happen.
    async fn pass(milliseconds: u64) {
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        tokio::task::yield_now().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_bar_is_drawn_after_two_seconds_and_cleared() {
        let terminal = FakeTerminal::default();
        let late = terminal.bar("{pos} of {len} changes");
        let counter = late.counter();
        counter.set_length(10);
        counter.inc(3);
        pass(1990).await;
        assert!(terminal.is_untouched(), "{terminal:?}");
        pass(20).await;
        terminal.wait_for("3 of 10 changes");
        counter.inc(4);
        terminal.wait_for("7 of 10 changes");
        drop(late);
        assert_eq!(*terminal.line.lock(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn quick_work_draws_nothing() {
        let terminal = FakeTerminal::default();
        let work = async {
            pass(1990).await;
            "done"
        };
        assert_eq!(patiently_beside(terminal.bar(WAITING), OPENING, work).await, "done");
        // The bar does not come after its work.
        pass(60_000).await;
        assert!(terminal.is_untouched(), "{terminal:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_work_is_named() {
        let terminal = FakeTerminal::default();
        let work = async {
            pass(2010).await;
            terminal.wait_for(OPENING);
            "done"
        };
        assert_eq!(patiently_beside(terminal.bar(WAITING), OPENING, work).await, "done");
        assert_eq!(*terminal.line.lock(), "");
    }
}
