//! Reading the configuration again while the server runs: on SIGHUP, on `towpath reload`, and when a file changes.
//!
//! A configuration with a mistake changes nothing. What cannot change while the server runs is named.

mod command;
mod message;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

use super::config_args::ConfigArgs;
use crate::alerts::AlertSettings;
use crate::blocking::blocking;
use crate::config::{Config, SettingChanges};
use crate::engine::tokens::TokenSet;
use crate::engine::{Engine, FeedPlan};
use crate::protocols::smart::Smart;
use crate::server::{DescriptorBudget, LoadedTls, TlsIdentity};
use crate::stop::{Stop, stopped};
use message::{Reloaded, changed_tokens};

pub(crate) use command::{ReloadArgs, reload};

/// Interval at which files are looked at.
const INTERVAL: Duration = Duration::from_secs(2);
/// File of the data folder with the result of the last reload, for `towpath reload`.
const RESULT: &str = "towpath.reload";

/// Size and time of a file; `None` if it is not there.
type FileStamp = Option<(u64, Option<SystemTime>)>;

/// Listens for SIGHUP. From then on the signal does not end the process.
pub(super) fn hangups() -> std::io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// Replaces the settings of a running server.
#[derive(Clone)]
pub(super) struct Reloader {
    pub(super) args: ConfigArgs,
    pub(super) engine: Arc<Engine>,
    pub(super) tls: Option<Arc<TlsIdentity>>,
    pub(super) budget: DescriptorBudget,
    pub(super) alerts: watch::Sender<Option<Arc<AlertSettings>>>,
    /// Configuration that is in effect, as its files have it: without the options of the command line.
    pub(super) current: Config,
    /// Number of reloads since the start.
    pub(super) count: u64,
}

/// Effects of a new configuration, read and checked before anything changes.
struct PreparedReload {
    new: Config,
    plan: FeedPlan,
    /// Certificate and key, if this server has TLS.
    tls: Option<LoadedTls>,
    /// `[alerts]`, if it differs.
    alerts: Option<Option<Arc<AlertSettings>>>,
}

impl Reloader {
    /// Reads the configuration again when it is asked to, until the server stops.
    pub(super) async fn run(mut self, mut hangup: Signal, stop: Stop) {
        let mut files = self.watched();
        let mut seen = stamps(&files).await;
        loop {
            let is_asked = tokio::select! {
                () = stopped(&stop) => return,
                _ = hangup.recv() => true,
                () = sleep(INTERVAL), if !files.is_empty() => {
                    if stamps(&files).await == seen {
                        continue;
                    }
                    false
                }
            };
            // Before the configuration is read: a change meanwhile is then seen as one.
            seen = stamps(&files).await;
            let result = self.reload().await;
            if is_asked {
                self.record(&result);
            }
            let new = self.watched();
            if new != files {
                seen = known_stamps(&new, &files, &seen);
                files = new;
            }
        }
    }

    /// Reads the configuration and applies it, whole or not at all. Returns the message about it.
    async fn reload(&mut self) -> Result<String, String> {
        let new = self.load().await.inspect_err(|e| {
            tracing::error!(error = %e, "nothing changes, and the tokens stay as they were");
        })?;
        // Read before anything changes: a certificate that does not fit its key refuses the whole configuration.
        let tls = self.read_tls(&new).await.inspect_err(|e| {
            tracing::error!(error = %e, "nothing changes, and the earlier certificate stays in use");
        })?;
        let alerts = self.changed_alerts(&new).inspect_err(|e| {
            tracing::error!(error = %e, "nothing changes, and alerts are told as before");
        })?;
        let plan = self.engine.plan_feeds(&new).await.map_err(|e| {
            let message = format!("nothing changes: the store cannot be read: {e}");
            tracing::error!(error = message, "the configuration was not read again");
            message
        })?;
        // From here on nothing fails.
        let reloaded = self.apply_apart(PreparedReload { new, plan, tls, alerts }).await?;
        for feed in reloaded.feeds.added.iter().filter_map(|id| self.engine.feed(id.as_str())) {
            if let Err(e) = self.engine.refresh_head(&feed).await {
                tracing::error!(feed = %feed.id(), error = %e, "cannot read the end of the log; the next change shows it");
            }
        }
        for change in &reloaded.left {
            tracing::warn!(change, "this needs a restart");
        }
        let message = reloaded.message();
        tracing::info!(result = message, "the configuration was read again");
        Ok(message)
    }

    /// Applies what was read and checked, apart from the threads that serve: ten thousand feeds take them milliseconds.
    async fn apply_apart(&mut self, prepared: PreparedReload) -> Result<Reloaded, String> {
        let mut applied = self.clone();
        let apply = move || {
            let reloaded = applied.apply(prepared);
            (applied, reloaded)
        };
        let (applied, reloaded) = blocking(apply).await.map_err(|e| format!("internal error: {e}"))?;
        *self = applied;
        Ok(reloaded)
    }

    /// Applies what was read and checked.
    fn apply(&mut self, prepared: PreparedReload) -> Reloaded {
        let PreparedReload { new, plan, tls: new_tls, alerts } = prepared;
        let SettingChanges { mut taken_over, need_restart: mut left } = self.current.setting_changes(&new);
        taken_over.extend(changed_tokens(&self.current, &new));
        // Before new feeds are there: their readers must be known.
        left.extend(self.replace_tokens(&new, &plan));
        // Before the feeds: where publishing creates none any more, none must come after those that go.
        self.engine.apply_server(&new.server);
        let feeds = self.engine.apply_feeds(plan);
        left.extend(feeds.left.iter().cloned());
        let sinks = self.engine.sinks.replace(&new.sinks);
        if let (Some(tls), Some(loaded)) = (&self.tls, new_tls) {
            tls.replace(loaded);
        }
        Smart::of(&self.engine).set_waiters(new.server.waiters);
        if self.current.server.longest_wait != new.server.longest_wait {
            self.engine.renew_feed_limits();
        }
        if let Some(alerts) = alerts {
            self.engine.alerts.store(new.alerts.clone().map(Arc::new));
            self.alerts.send_replace(alerts);
        }
        if self.current.server.max_connections != new.server.max_connections {
            self.budget.check_connections(new.server.max_connections);
        }
        // What needs a restart stays different from the running server, and is told each time.
        self.current.take_over(new);
        left.sort_unstable();
        left.dedup();
        Reloaded { feeds, sinks, taken_over, left }
    }

    /// Replaces the tokens by those of the feeds as they will be served. Returns what needs a restart.
    fn replace_tokens(&self, new: &Config, plan: &FeedPlan) -> Vec<String> {
        let (mut tokens, mut left) = TokenSet::reloaded(new, &self.engine.config.server, plan.configs());
        // A line that was lost while somebody edited the file must not open the server to all programs here.
        if tokens.is_open() && !self.engine.tokens.load().is_open() {
            tokens.close();
            left.push("no token may publish any more, and publishing without a token".into());
        }
        tracing::info!(tokens = tokens.len(), "the tokens were read again");
        self.engine.tokens.store(Arc::new(tokens));
        left
    }

    /// Reads the certificate and the key, if this server has TLS. Files of the same name may have other contents.
    async fn read_tls(&self, new: &Config) -> Result<Option<LoadedTls>, String> {
        // Whether it serves TLS at all is decided once, like the addresses that it listens on.
        let files = new.server.tls.clone().filter(|_| self.current.server.tls.is_some());
        let Some(files) = files else { return Ok(None) };
        let read = tokio::task::spawn_blocking(move || TlsIdentity::read(files)).await;
        let loaded = read.map_err(|e| e.to_string())?;
        loaded.map(Some).map_err(|e| format!("nothing changes: {e}"))
    }

    /// Prepares the destinations of another `[alerts]`.
    fn changed_alerts(&self, new: &Config) -> Result<Option<Option<Arc<AlertSettings>>>, String> {
        if self.current.alerts == new.alerts {
            return Ok(None);
        }
        let prepared = AlertSettings::of(new, &self.engine.base_url);
        prepared.map(Some).map_err(|e| format!("nothing changes: {e}"))
    }

    async fn load(&self) -> Result<Config, String> {
        let args = self.args.clone();
        let loaded = tokio::task::spawn_blocking(move || args.load()).await;
        loaded.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
    }

    /// Files at whose change the configuration is read again: those of tokens, and its own if that is configured.
    fn watched(&self) -> Vec<PathBuf> {
        let tokens = self.current.tokens.iter().filter_map(|token| token.token_file.clone());
        let mut files: Vec<PathBuf> = tokens.collect();
        if self.current.server.reload_on_change {
            files.extend(self.current.files.iter().cloned());
            // A folder changes when a file is added to it.
            let included = self.current.files.iter().skip(1).filter_map(|file| file.parent());
            files.extend(included.map(Path::to_owned));
            files.sort_unstable();
            files.dedup();
        }
        files
    }

    /// Leaves the result for the command that asked.
    fn record(&mut self, result: &Result<String, String>) {
        self.count += 1;
        let (status, message) = match result {
            Ok(message) => ("ok", message),
            Err(message) => ("failed", message),
        };
        let folder = &self.engine.config.server.data;
        let text = format!("{} {}\n{status}\n{message}\n", self.engine.instance, self.count);
        let new = folder.join(format!("{RESULT}.new"));
        // In one step: the command must not read half of it.
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(new, folder.join(RESULT)));
        if let Err(e) = written {
            tracing::warn!(error = %e, "cannot leave the result for `towpath reload`");
        }
    }
}

/// Returns the stamps of files as they were before the reload. A file that is new has none: it may have changed since it was
/// read, and is read once more.
fn known_stamps(files: &[PathBuf], before: &[PathBuf], seen: &[FileStamp]) -> Vec<FileStamp> {
    let known: HashMap<&PathBuf, FileStamp> = before.iter().zip(seen.iter().copied()).collect();
    files.iter().map(|file| known.get(file).copied().flatten()).collect()
}

async fn stamps(files: &[PathBuf]) -> Vec<FileStamp> {
    let mut stamps = Vec::with_capacity(files.len());
    for file in files {
        // Follows links: mounted secrets are replaced by changing a link.
        let facts = tokio::fs::metadata(file).await.ok();
        stamps.push(facts.map(|facts| (facts.len(), facts.modified().ok())));
    }
    stamps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_new_is_read_once_more() {
        let [old, new, gone] = ["old", "new", "gone"].map(PathBuf::from);
        let stamps = [Some((1, None)), Some((2, None))];
        assert_eq!(known_stamps(&[new, old.clone()], &[gone, old], &stamps), [None, Some((2, None))]);
    }
}
