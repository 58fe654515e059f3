//! Bars of commands that take long, on a terminal only.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::task::JoinHandle;

use super::style::is_quiet;

/// Time after which a command shows how far it is.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval at which a bar moves while nothing is counted.
const TICK: Duration = Duration::from_millis(200);

/// Bar that is drawn on standard error once a command takes long. It is cleared when it is dropped.
pub(super) struct LateBar {
    bar: ProgressBar,
    drawing: JoinHandle<()>,
}

impl LateBar {
    /// Makes a bar of a template of `indicatif`. Its length may be set later.
    pub(super) fn new(template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        let late = bar.clone();
        let drawing = tokio::spawn(async move {
            tokio::time::sleep(PATIENCE).await;
            if !is_quiet() {
                // Stays hidden where standard error is no terminal.
                late.set_draw_target(ProgressDrawTarget::stderr());
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
