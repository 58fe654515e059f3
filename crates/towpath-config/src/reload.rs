//! Keys that differ between two configurations, and what a reload does about each.
//!
//! Each type is taken apart field by field, so a new key does not compile until it is classified here.

use super::{
    AccessLogConfig, AlertEmailConfig, AlertWebhookConfig, AlertsConfig, ClusterConfig,
    ClusterSnapshotsConfig, Config, ExportConfig, FeedConfig, HubConfig, RateLimitConfig, RiskConfig,
    ServerConfig, TlsConfig, XmppConfig,
};

/// Effect of a reload on a changed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtReload {
    /// The running server takes it over.
    TakenOver,
    /// It has its effect after a restart, and the reload says so.
    NeedsRestart,
}

/// Changed keys of a configuration, such as `server.listen`, in the order of its types.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettingChanges {
    /// Keys that a running server takes over.
    pub taken_over: Vec<String>,
    /// Keys and tables that need a restart.
    pub need_restart: Vec<String>,
}

impl SettingChanges {
    fn add(&mut self, key: String, effect: AtReload) {
        match effect {
            AtReload::TakenOver => self.taken_over.push(key),
            AtReload::NeedsRestart => self.need_restart.push(key),
        }
    }
}

/// Keys of a feed that readers' cursors, addresses and views depend on.
const FIXED_FEED_KEYS: [&str; 3] = ["filter", "cursor", "visibility"];

/// Returns what a reload does about a key, by its path in the file.
pub(super) fn at_reload(path: &str) -> AtReload {
    match path.split_once('.') {
        Some(("feed", key)) if FIXED_FEED_KEYS.contains(&key.split('.').next().unwrap_or(key)) => {
            AtReload::NeedsRestart
        }
        // These are lists, which a reload replaces whole.
        Some(("feed" | "token" | "sink", _)) | None => AtReload::TakenOver,
        _ => {
            let keys = classified();
            // A test finds each key of the schema in the list.
            keys.into_iter().find(|(key, _)| key == path).map_or(AtReload::NeedsRestart, |(_, effect)| effect)
        }
    }
}

/// Returns the keys of the tables that are there once.
fn classified() -> Vec<(String, AtReload)> {
    let mut keys = Vec::new();
    ServerConfig::classify("server", &mut keys);
    ClusterConfig::classify("cluster", &mut keys);
    RiskConfig::classify("risk", &mut keys);
    HubConfig::classify("hub", &mut keys);
    XmppConfig::classify("xmpp", &mut keys);
    ExportConfig::classify("export", &mut keys);
    AlertsConfig::classify("alerts", &mut keys);
    keys
}

impl Config {
    /// Returns the keys that differ from those of a new configuration, without those of feeds, tokens and sinks.
    pub fn setting_changes(&self, new: &Self) -> SettingChanges {
        // Without `..`: a new table must be compared here, or be told of elsewhere.
        let Self {
            server,
            cluster,
            risk,
            hub,
            xmpp,
            export,
            alerts,
            feeds: _,
            tokens: _,
            sinks: _,
            include: _,
            folder: _,
            files: _,
        } = self;
        let mut changes = SettingChanges::default();
        server.compare(&new.server, "server", &mut changes);
        cluster.compare(&new.cluster, "cluster", &mut changes);
        risk.compare(&new.risk, "risk", &mut changes);
        hub.compare(&new.hub, "hub", &mut changes);
        xmpp.compare(&new.xmpp, "xmpp", &mut changes);
        export.compare(&new.export, "export", &mut changes);
        alerts.compare(&new.alerts, "alerts", &mut changes);
        changes
    }

    /// Takes over what a reload takes over. What needs a restart stays as it was.
    pub fn take_over(&mut self, new: Self) {
        self.server.take_over(&new.server);
        self.alerts.take_over(&new.alerts);
        let Self { include, feeds, tokens, sinks, files, .. } = new;
        (self.include, self.feeds, self.tokens, self.sinks, self.files) =
            (include, feeds, tokens, sinks, files);
    }
}

impl ServerConfig {
    /// Returns these settings with those of `new` that a reload takes over.
    #[must_use]
    pub fn reloaded(&self, new: &Self) -> Self {
        let mut server = self.clone();
        server.take_over(new);
        server
    }
}

impl FeedConfig {
    /// Returns the keys that differ from those of `new` and need a restart.
    pub fn fixed_changes(&self, new: &Self) -> impl Iterator<Item = &'static str> {
        let is_equal =
            [self.filter == new.filter, self.cursor == new.cursor, self.is_public() == new.is_public()];
        FIXED_FEED_KEYS.into_iter().zip(is_equal).filter(|(_, is_equal)| !is_equal).map(|(key, _)| key)
    }
}

/// A table of the configuration.
trait Table: Clone {
    /// Effect of a reload when the table comes or goes, for one that may be absent.
    const PRESENCE: AtReload;

    /// Adds the keys that differ. `path` is the table's.
    fn compare(&self, new: &Self, path: &str, changes: &mut SettingChanges);

    /// Copies what a reload takes over.
    fn take_over(&mut self, new: &Self);

    /// Adds all keys with their effects.
    fn classify(path: &str, keys: &mut Vec<(String, AtReload)>);
}

/// A table that may be absent.
impl<T: Table> Table for Option<T> {
    const PRESENCE: AtReload = T::PRESENCE;

    fn compare(&self, new: &Self, path: &str, changes: &mut SettingChanges) {
        match (self, new) {
            (Some(old), Some(new)) => old.compare(new, path, changes),
            (None, None) => {}
            _ => changes.add(format!("[{path}]"), T::PRESENCE),
        }
    }

    fn take_over(&mut self, new: &Self) {
        match (self, new) {
            (Some(old), Some(new)) => old.take_over(new),
            // Only where the running server can begin or end with such a table. Elsewhere the old state stays,
            // and is reported.
            (old, new) if T::PRESENCE == AtReload::TakenOver => old.clone_from(new),
            _ => {}
        }
    }

    fn classify(path: &str, keys: &mut Vec<(String, AtReload)>) {
        T::classify(path, keys);
    }
}

macro_rules! table {
    ($type:ident { presence: $presence:ident, taken_over: [$($taken:ident),*], restart: [$($fixed:ident),*], tables: [$($table:ident: $of:ty),*] }) => {
        impl Table for $type {
            const PRESENCE: AtReload = AtReload::$presence;

            fn compare(&self, new: &Self, path: &str, changes: &mut SettingChanges) {
                // Without `..`: a new key does not compile until it stands in one of the lists.
                let Self { $($taken,)* $($fixed,)* $($table,)* } = self;
                $(if *$taken != new.$taken {
                    changes.add(format!("{path}.{}", stringify!($taken)), AtReload::TakenOver);
                })*
                $(if *$fixed != new.$fixed {
                    changes.add(format!("{path}.{}", stringify!($fixed)), AtReload::NeedsRestart);
                })*
                $(<$of as Table>::compare($table, &new.$table, &format!("{path}.{}", stringify!($table)), changes);)*
            }

            #[allow(unused_variables, reason = "a table may have no such key")]
            fn take_over(&mut self, new: &Self) {
                $(self.$taken = new.$taken.clone();)*
                $(<$of as Table>::take_over(&mut self.$table, &new.$table);)*
            }

            fn classify(path: &str, keys: &mut Vec<(String, AtReload)>) {
                $(keys.push((format!("{path}.{}", stringify!($taken)), AtReload::TakenOver));)*
                $(keys.push((format!("{path}.{}", stringify!($fixed)), AtReload::NeedsRestart));)*
                $(<$of as Table>::classify(&format!("{path}.{}", stringify!($table)), keys);)*
            }
        }
    };
}

table!(ServerConfig {
    presence: NeedsRestart,
    taken_over: [
        tokens, trusted_proxies, cors_origins, publish_origins, create_feeds, http_feeds, reload_on_change,
        large_content_mib, cache_mib, max_connections, max_connections_per_address, waiters, longest_wait, min_rate, rate_grace,
        response_mib, heartbeat, metrics_feeds
    ],
    restart: [
        listen, base_url, data, cluster, threads, reserve_mib, fetches, fetch_mib, body_mib, private_fetches,
        hubs, allow_private_callbacks
    ],
    tables: [rate_limit: RateLimitConfig, tls: Option<TlsConfig>, access_log: Option<AccessLogConfig>]
});
table!(RateLimitConfig { presence: NeedsRestart, taken_over: [per_second, burst], restart: [], tables: [] });
table!(TlsConfig { presence: NeedsRestart, taken_over: [cert, key, http2], restart: [], tables: [] });
table!(AccessLogConfig { presence: TakenOver, taken_over: [sample, slow], restart: [], tables: [] });
table!(ClusterConfig {
    presence: NeedsRestart,
    taken_over: [],
    restart: [max_level],
    tables: [snapshots: Option<ClusterSnapshotsConfig>]
});
table!(ClusterSnapshotsConfig {
    presence: NeedsRestart,
    taken_over: [],
    restart: [to, every, keep, max_stream_bytes],
    tables: []
});
table!(RiskConfig { presence: NeedsRestart, taken_over: [], restart: [rules], tables: [] });
table!(HubConfig {
    presence: NeedsRestart,
    taken_over: [],
    restart: [
        connections,
        host_connections,
        slow_connections,
        subscribers,
        topic_subscribers,
        host_subscribers,
        verifications,
        client_verifications,
        host_verifications,
        host_requests,
        push_bytes
    ],
    tables: []
});
table!(XmppConfig {
    presence: NeedsRestart,
    taken_over: [],
    restart: [server, jid, secret, stanza_bytes, subscriptions, account_subscriptions],
    tables: []
});
table!(ExportConfig {
    presence: NeedsRestart,
    taken_over: [],
    restart: [to, base_url, every, hubs],
    tables: []
});
table!(AlertsConfig {
    presence: TakenOver,
    taken_over: [
        source_failing, feed_silent, sink_behind, disk_free_mib, certificate, wait, pause, repeat, feed
    ],
    restart: [],
    tables: [webhook: Option<AlertWebhookConfig>, email: Option<AlertEmailConfig>]
});
table!(AlertWebhookConfig {
    presence: TakenOver,
    taken_over: [url, secrets, secret_files, allow_private],
    restart: [],
    tables: []
});
table!(AlertEmailConfig { presence: TakenOver, taken_over: [server, from, to], restart: [], tables: [] });

#[cfg(test)]
mod tests;
