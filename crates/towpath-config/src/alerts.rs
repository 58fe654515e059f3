//! `[alerts]`: what operators are told of, and where.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use towpath_proto::FeedId;
use url::Url;

use super::durations::duration;
use super::feed::{FeedConfig, FeedOrigin, FeedVisibility};
use super::problems::Problems;
use super::schema::Mebibytes;
use super::secret::Secret;
use super::sizes::mebibytes;
use super::token::read_secret;

/// Id of the feed that carries alerts.
pub const EVENTS_FEED: &str = "_events";

/// Events that operators are told of, and where. Without this table nobody is told. A duration of zero turns an alert
/// off.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AlertsConfig {
    /// Time for which a source fails before an alert.
    #[serde(deserialize_with = "duration")]
    pub source_failing: Duration,
    /// Shortest silence of a feed before an alert. A feed that usually has longer pauses may be silent for twice its
    /// longest recent one.
    #[serde(deserialize_with = "duration")]
    pub feed_silent: Duration,
    /// Time for which a sink does not deliver what waits before an alert.
    #[serde(deserialize_with = "duration")]
    pub sink_behind: Duration,
    /// Free disk space below which there is an alert, in MiB. 0 turns it off.
    #[serde(deserialize_with = "mebibytes")]
    #[schemars(with = "Mebibytes")]
    pub disk_free_mib: u64,
    /// Remaining validity of the server's certificate below which there is an alert.
    #[serde(deserialize_with = "duration")]
    pub certificate: Duration,
    /// Time to wait for further events of a kind before the first one is told.
    #[serde(deserialize_with = "duration")]
    pub wait: Duration,
    /// Minimum time between two messages about events of one kind. Further events come together in the next one.
    #[serde(deserialize_with = "duration")]
    pub pause: Duration,
    /// Interval of reminders of an event that goes on.
    #[serde(deserialize_with = "duration")]
    pub repeat: Duration,
    /// Publishes alerts in the feed `_events`, which every protocol carries, XMPP only if it is public. It is private
    /// unless a `[[feed]]` with this id says otherwise.
    pub feed: bool,
    /// Webhook that is told.
    pub webhook: Option<AlertWebhookConfig>,
    /// E-mail addresses that are told.
    pub email: Option<AlertEmailConfig>,
}

impl Default for AlertsConfig {
    fn default() -> Self {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        Self {
            source_failing: hours(1),
            feed_silent: hours(6),
            sink_behind: Duration::from_secs(900),
            disk_free_mib: 1024,
            certificate: hours(14 * 24),
            wait: Duration::from_secs(15),
            pause: Duration::from_secs(300),
            repeat: hours(24),
            feed: false,
            webhook: None,
            email: None,
        }
    }
}

/// Webhook that is told of events, as Standard Webhooks 1.0 has it.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertWebhookConfig {
    /// URL of the receiver.
    #[schemars(example = "https://ops.example/hook")]
    pub url: Secret,
    /// Secrets that sign the messages; the receiver has one of them.
    #[serde(default)]
    #[schemars(example = ["${ALERT_SECRET}"], extend("x-default" = "none: messages are not signed"))]
    pub secrets: Vec<Secret>,
    /// Files with such secrets.
    #[serde(default)]
    #[schemars(example = ["/run/secrets/alert"], extend("x-default" = "none"))]
    pub secret_files: Vec<PathBuf>,
    /// Permits a private or loopback address.
    #[serde(default)]
    pub allow_private: bool,
}

/// E-mail addresses that are told of events.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertEmailConfig {
    /// URL of the mail server: `smtps://user:password@host` (TLS from the start), `smtp://host:587?tls=required`
    /// (STARTTLS) or `smtp://localhost` (no TLS).
    #[schemars(example = "smtps://towpath:${SMTP_PASSWORD}@mail.example.com")]
    pub server: Secret,
    /// Address of the sender.
    #[schemars(example = "towpath@example.com")]
    pub from: String,
    /// Addresses of the receivers.
    #[schemars(example = ["ops@example.com"])]
    pub to: Vec<String>,
}

impl AlertsConfig {
    /// Returns true if anybody is told.
    pub fn has_destination(&self) -> bool {
        self.feed || self.webhook.is_some() || self.email.is_some()
    }

    /// Validates the table, and reads the files with secrets.
    pub(super) fn check(&mut self, folder: &Path, feeds: &[Arc<FeedConfig>], problems: &mut Problems) {
        let nobody = "nobody would be told: set feed = true, or add [alerts.webhook] or [alerts.email]";
        problems.ensure(self.has_destination(), "", nobody);
        if let Some(webhook) = &mut self.webhook {
            let is_http =
                Url::parse(webhook.url.expose()).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
            problems.ensure(is_http, "webhook.url", "webhook.url is not an http or https URL");
            // Taken out: the secrets are in one list now, and a second check must not add them again.
            for file in std::mem::take(&mut webhook.secret_files) {
                let path = folder.join(file);
                match read_secret(&path) {
                    Ok(secret) => webhook.secrets.push(secret),
                    Err(e) => {
                        let message = format!("webhook.secret_files: {}: {e}", path.display());
                        problems.add("webhook.secret_files", message);
                    }
                }
            }
        }
        if let Some(email) = &self.email {
            let is_smtp = Url::parse(email.server.expose())
                .is_ok_and(|url| matches!(url.scheme(), "smtp" | "smtps") && url.has_host());
            problems.ensure(is_smtp, "email.server", "email.server is not an smtp or smtps URL");
            problems.ensure(!email.to.is_empty(), "email.to", "email.to names nobody");
            for (key, address) in
                email.to.iter().map(|to| ("email.to", to)).chain([("email.from", &email.from)])
            {
                let is_address =
                    address.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty());
                problems.ensure(is_address, key, format!("{key}: {address:?} is not an address"));
            }
        }
        let events = feeds.iter().find(|feed| feed.id().as_str() == EVENTS_FEED);
        let is_plain = events.is_none_or(|feed| feed.source.is_none() && feed.filter.is_none());
        problems.ensure(is_plain, "feed", format!("the feed {EVENTS_FEED} can have no source and no filter"));
    }

    /// Adds the feed of the alerts, unless the file has it.
    pub(super) fn add_feed(&self, feeds: &mut Vec<Arc<FeedConfig>>) {
        // A feed of this id in the file has its own title and visibility, which the operator meant.
        if !self.feed || feeds.iter().any(|feed| feed.id().as_str() == EVENTS_FEED) {
            return;
        }
        let Ok(id) = FeedId::new(EVENTS_FEED) else { return };
        let mut feed = FeedConfig { origin: FeedOrigin::File, ..FeedConfig::unnamed(id) };
        feed.title = Some("Events of this server".into());
        // It names private feeds, and what is wrong with them.
        feed.visibility = Some(FeedVisibility::Private);
        feeds.push(feed.into());
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("towpath.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn the_feed_of_events_is_private_unless_it_is_configured() {
        let config = parse("[alerts]\nfeed = true\n").unwrap();
        assert_eq!(config.feeds[0].id().as_str(), EVENTS_FEED);
        assert!(!config.feeds[0].is_public());
        let config =
            parse("[alerts]\nfeed = true\n[[feed]]\nid = '_events'\nvisibility = 'public'\n").unwrap();
        assert_eq!(config.feeds.len(), 1);
        assert!(config.feeds[0].is_public());
    }

    #[test]
    fn mistakes_are_named() {
        let email = "[alerts.email]\nserver = 'smtp://localhost'\nfrom = 'a@b'\nto = ['c@d']\n";
        assert!(parse(email).is_ok());
        for (text, needle) in [
            ("[alerts]\n".to_owned(), "nobody would be told"),
            ("[alerts.webhook]\nurl = 'ftp://x'\n".to_owned(), "webhook.url"),
            ("[alerts.webhook]\nurl = 'http://x'\nsecret_files = ['no/such']\n".to_owned(), "no/such"),
            (email.replace("smtp://", "http://"), "email.server"),
            (email.replace("'c@d'", ""), "names nobody"),
            (email.replace("c@d", "c"), "is not an address"),
            (
                "[alerts]\nfeed = true\n[[feed]]\nid = '_events'\nsource = { url = 'x' }\n".to_owned(),
                "no source",
            ),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(needle), "{text}: {error}");
        }
    }
}
