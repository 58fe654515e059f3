//! Makes the sink of a configured destination.

use std::path::{Path, PathBuf};
use std::time::Duration;

use towpath_client::{Fetcher, Sink};
use towpath_config::{Config, Secret, SinkConfig, ValueError};
use towpath_sinks::webhook::{WebhookOptions, WebhookSecret};
use towpath_sinks::{Destination, DestinationOptions};

/// Checks the destinations of all sinks, as a part of reading the configuration.
pub(crate) fn check(config: &Config) -> Vec<ValueError> {
    // An empty one was told already.
    let sinks = config.sinks.iter().enumerate().filter(|(_, sink)| !sink.into.is_blank());
    let error = |(index, sink): (usize, &SinkConfig)| {
        let message = destination(config, sink, Duration::ZERO).err()?;
        Some(ValueError {
            table: "sink",
            index,
            subject: format!("sink {:?}: ", sink.name),
            key: "into",
            message,
        })
    };
    sinks.filter_map(error).collect()
}

/// Creates the sink of a destination, which has taken nothing for the time `failing_for`. Its requests go where those of
/// `fetcher` go.
pub(super) fn open(
    config: &Config,
    sink: &SinkConfig,
    failing_for: Duration,
    fetcher: &Fetcher,
) -> Result<Box<dyn Sink>, String> {
    let destination = destination(config, sink, failing_for)?;
    Ok(towpath_sinks::open_over(&destination, fetcher.transport()))
}

fn destination(config: &Config, sink: &SinkConfig, failing_for: Duration) -> Result<Destination, String> {
    let secret = |(index, secret): (usize, &Secret)| {
        secret.expose().parse::<WebhookSecret>().map_err(|e| format!("its secret {}: {e}", index + 1))
    };
    let webhook = WebhookOptions::default()
        .with_secrets(sink.secrets.iter().enumerate().map(secret).collect::<Result<_, _>>()?)
        .with_batch(sink.batch)
        .with_timeout(sink.timeout)
        .with_give_up(sink.give_up)
        .with_allow_private(sink.allow_private)
        .with_failing_for(failing_for);
    // Read each time, so that a changed password needs no restart.
    let password = sink.password().map(|password| password.expose().to_owned());
    let options = DestinationOptions::default().with_password(password).with_webhook(webhook);
    let into = resolved(sink.into.expose(), &config.folder);
    Destination::parse(&into, &options).map_err(|e| e.to_string())
}

/// Makes a path of a file or folder relative to the configuration's folder: the service manager chooses the working one.
fn resolved(into: &str, folder: &Path) -> String {
    match into.split_once(':') {
        Some((kind @ ("sqlite" | "dir"), path)) if !path.is_empty() && !path.starts_with(':') => {
            format!("{kind}:{}", folder.join(PathBuf::from(path)).display())
        }
        _ => into.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(sink: &str) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("towpath.toml");
        std::fs::write(&file, format!("[[sink]]\nname = 'a'\nfeeds = ['*']\n{sink}\n")).unwrap();
        Config::load_checked(Some(&file), &check).map(drop).map_err(|e| e.to_string())
    }

    #[test]
    fn destinations_are_checked_before_anything_is_opened() {
        checked("into = 'sqlite:copy.db?table=x'").unwrap();
        checked("into = 'webhook:https://a.example/'\nsecrets = ['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw']")
            .unwrap();
        for (sink, needle) in [
            ("into = 'copy.db'", "destination"),
            ("into = 'webhook:https://a.example/'\nsecrets = ['hush']", "secret 1"),
            ("into = 'postgres://me:hush@db/x?tabel=a'", "option"),
        ] {
            let error = checked(sink).unwrap_err();
            assert!(error.contains(needle) && error.contains("\"a\"") && !error.contains("hush"), "{error}");
            assert!(error.contains("towpath.toml: line 4, column 8: "), "{error}");
        }
    }

    #[test]
    fn paths_are_relative_to_the_configuration() {
        let folder = Path::new("/etc/towpath");
        assert_eq!(resolved("sqlite:a.db?table=x", folder), "sqlite:/etc/towpath/a.db?table=x");
        assert_eq!(resolved("dir:/b", folder), "dir:/b");
        assert_eq!(resolved("webhook:https://a.example/", folder), "webhook:https://a.example/");
        assert_eq!(resolved("sqlite::memory:", folder), "sqlite::memory:");
    }
}
