//! Tokens of a running server, read again on SIGHUP and when a file with a token changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use super::config_args::ConfigArgs;
use crate::config::Config;
use crate::engine::Engine;
use crate::engine::tokens::TokenSet;
use crate::stop::{Stop, stopped};

/// Interval at which the files with tokens are looked at.
const INTERVAL: Duration = Duration::from_secs(2);

/// Size and time of a file; `None` if it is not there.
type FileStamp = Option<(u64, Option<SystemTime>)>;

/// Replaces the engine's tokens on SIGHUP and when a `token_file` changes, until the server stops.
///
/// A configuration with an error changes nothing, and is logged once.
pub(super) async fn run(args: ConfigArgs, engine: Arc<Engine>, hangup: Signal, stop: Stop) {
    let mut hangup = hangup;
    let mut files = token_files(&engine.config);
    let mut seen = stamps(&files).await;
    loop {
        tokio::select! {
            () = stopped(&stop) => return,
            _ = hangup.recv() => {}
            () = sleep(INTERVAL), if !files.is_empty() => {
                if stamps(&files).await == seen {
                    continue;
                }
            }
        }
        // Before the configuration is read: a change meanwhile is then seen as one.
        seen = stamps(&files).await;
        if let Some(config) = load(&args).await {
            replace(&engine, &config);
            let new = token_files(&config);
            if new != files {
                files = new;
                seen = stamps(&files).await;
            }
        }
    }
}

/// Listens for SIGHUP. From then on the signal does not end the process.
pub(super) fn hangups() -> std::io::Result<Signal> {
    signal(SignalKind::hangup())
}

async fn load(args: &ConfigArgs) -> Option<Config> {
    let args = args.clone();
    let loaded = tokio::task::spawn_blocking(move || args.load()).await;
    match loaded {
        Ok(Ok(config)) => return Some(config),
        Ok(Err(e)) => {
            tracing::error!("the tokens stay as they were, because the configuration has an error: {e}");
        }
        Err(e) => tracing::error!("the tokens stay as they were: {e}"),
    }
    None
}

/// Replaces the tokens. Whoever waits with a token that is not valid any more gets nothing.
fn replace(engine: &Engine, config: &Config) {
    let (mut tokens, mut left) = TokenSet::reloaded(config, &engine.config);
    // A line that was lost while somebody edited the file must not open the server to all programs here.
    if tokens.is_open() && !engine.tokens.load().is_open() {
        tokens.close();
        left.push("no token may publish any more, and publishing without a token".into());
    }
    tracing::info!(tokens = tokens.len(), "the tokens were read again");
    engine.tokens.store(Arc::new(tokens));
    for change in left {
        tracing::warn!("{change}: this needs a restart");
    }
}

fn token_files(config: &Config) -> Vec<PathBuf> {
    config.tokens.iter().filter_map(|token| token.token_file.clone()).collect()
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
