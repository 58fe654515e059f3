//! Validation of values beyond their TOML types.

use std::num::NonZeroUsize;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use towpath_cluster::ClusterAddress;
use towpath_proto::format::is_language_tag;
use towpath_proto::history::publish::MIN_PART;

use super::check_access::check_readers;
use super::cors::{check_origins, check_publish_origins};
use super::feed::{FeedConfig, RetentionConfig};
use super::local_path::local_path;
use super::problems::{Problems, all_of};
use super::secret::Secret;
use super::server::ServerConfig;
use super::source::{LimitsConfig, SourceConfig, SourceFormat};
use super::token::TokenDigest;

/// Shortest interval that the program keeps.
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Validates a base URL and removes trailing slashes.
pub fn check_base_url(base: &mut String) -> Result<(), String> {
    let url =
        url::Url::parse(base).map_err(|e| format!("base_url {:?} is not a URL: {e}", redacted(base)))?;
    let plain = url.query().is_none() && url.fragment().is_none();
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() || !plain {
        let shown = redacted(base);
        return Err(format!("base_url {shown:?} is not an http(s) URL without query and fragment"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(format!(
            "base_url {:?} has credentials, and every document would show them",
            redacted(base)
        ));
    }
    // Paths are appended with their slash; a double slash would be another URL.
    while base.ends_with('/') {
        base.pop();
    }
    Ok(())
}

/// Most hubs of others that a feed may name: each gets a request after a change.
const MAX_HUBS: usize = 10;

/// Validates the URLs of hubs, which are published in documents.
pub(super) fn check_hubs(hubs: &[String]) -> Result<(), String> {
    if hubs.len() > MAX_HUBS {
        return Err(format!("hubs has more than {MAX_HUBS} URLs"));
    }
    let check = |(index, hub): (usize, &String)| {
        let url = url::Url::parse(hub).ok().filter(|url| begins_like_http(hub) && url.has_host());
        let shown = redacted(hub);
        let Some(url) = url else { return Err(format!("hubs: {shown:?} is not an http or https URL")) };
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(format!(
                "hubs: {shown:?} has credentials or a fragment, and documents would show them"
            ));
        }
        if hubs[..index].contains(hub) {
            return Err(format!("hubs: {shown:?} is named twice"));
        }
        Ok(())
    };
    all_of(hubs.iter().enumerate().map(check)).map(drop)
}

impl ServerConfig {
    pub(super) fn check(&mut self, problems: &mut Problems) {
        if let Some(base) = &mut self.base_url {
            problems.check("base_url", check_base_url(base));
        }
        let has_address = self.base_url.is_some() || self.listen.local_authority().is_some();
        let message = "listen has no HOST:PORT, so base_url is needed: links in feeds begin with it";
        problems.ensure(has_address, "listen", message);
        if let Some(cluster) = &self.cluster {
            let parsed = ClusterAddress::parse(cluster.expose()).map(drop);
            problems.check("cluster", parsed.map_err(|e| format!("cluster: {e}")));
        }
        // `Authorization: Bearer ` without a token would match.
        let is_open = self.tokens.iter().any(Secret::is_blank);
        problems.ensure(!is_open, "tokens", "tokens: an empty token would let everybody publish");
        let hashes = self.tokens.iter().map(TokenDigest::check_configured);
        let hashes = hashes
            .enumerate()
            .map(|(index, checked)| checked.map_err(|e| format!("tokens: number {}: {e}", index + 1)));
        problems.check("tokens", all_of(hashes).map(drop));
        if let Some(access_log) = &self.access_log {
            access_log.check(problems);
        }
        self.rate_limit.check(problems);
        problems.check("hubs", check_hubs(&self.hubs));
        problems.check("cors_origins", self.cors_origins.as_deref().map_or(Ok(()), check_origins));
        problems.check("publish_origins", check_publish_origins(&self.publish_origins));
        for (key, is_zero) in [
            ("threads", self.threads == Some(0)),
            ("fetches", self.fetches == 0),
            ("max_connections", self.max_connections == Some(0)),
            ("max_connections_per_address", self.max_connections_per_address == 0),
            ("response_mib", self.response_mib == 0),
        ] {
            problems.ensure(!is_zero, key, format!("{key} must be at least 1"));
        }
        let message = "min_rate must be at least 1: with 0, a client could hold a response for ever";
        problems.ensure(self.min_rate > 0, "min_rate", message);
        let fits = (16..=1 << 20).contains(&self.fetch_mib);
        problems.ensure(fits, "fetch_mib", "fetch_mib is not between 16 and 1048576");
        // The largest body has 64 MiB.
        let fits = (64..=1 << 20).contains(&self.body_mib);
        problems.ensure(fits, "body_mib", "body_mib is not between 64 and 1048576");
        for (key, time) in [("rate_grace", self.rate_grace), ("heartbeat", self.heartbeat)] {
            problems.ensure(time >= SECOND, key, format!("{key} is below one second"));
        }
    }
}

impl FeedConfig {
    pub(super) fn check(&self, problems: &mut Problems) {
        problems.ensure(self.ttl >= SECOND, "ttl", "ttl is below one second");
        let message = "complete: a feed with a filter has no documents of its own";
        problems.ensure(!self.complete || self.filter.is_none(), "complete", message);
        if let Some(publish) = &self.publish {
            problems.check("publish", publish.check());
        }
        if let Some(lang) = self.lang.as_deref().filter(|lang| !is_language_tag(lang)) {
            let message = format!("lang {lang:?} is not a language tag (BCP 47), such as en or pt-BR");
            problems.add("lang", message);
        }
        for (name, url) in [("home", &self.home), ("image", &self.image)] {
            if let Some(url) = url.as_deref().filter(|url| !begins_like_http(url)) {
                problems.add(name, format!("{name} {url:?} is not an http or https URL"));
            }
        }
        if let Some(hubs) = &self.hubs {
            problems.check("hubs", check_hubs(hubs));
            let message = "hubs: a hub of others reads the feed's documents without a token, so the feed must be public and \
                           have no filter";
            let is_read = self.is_public() && self.filter.is_none();
            problems.ensure(hubs.is_empty() || is_read, "hubs", message);
        }
        self.check_pages(problems);
        check_readers(self, problems);
        if let Some(source) = &self.source {
            source.check(problems);
        }
    }

    fn check_pages(&self, problems: &mut Problems) {
        // A page is held in memory while it is built.
        let items = self.page_items.map_or(1, NonZeroUsize::get);
        problems.ensure(items <= 100_000, "page_items", "page_items is above 100000");
        let bytes = self.page_bytes.map_or(1, NonZeroUsize::get);
        problems.ensure(bytes <= 1 << 30, "page_bytes", "page_bytes is above 1073741824");
        let recent = (MIN_PART..=100_000).contains(&self.recent_items);
        problems.ensure(recent, "recent_items", "recent_items must be from 8 to 100000");
        problems.ensure(self.snapshots.keep > 0, "snapshots.keep", "snapshots.keep must be at least 1");
        let every = self.snapshots.every.unwrap_or(SECOND);
        problems.ensure(every >= SECOND, "snapshots.every", "snapshots.every is below one second");
        let is_empty = matches!(&self.retention, Some(RetentionConfig { age: None, bytes: None, .. }));
        // With a bounded log, pages go with what they are made of.
        problems.ensure(
            !is_empty || self.log.is_bounded(),
            "retention",
            "retention has neither age nor bytes",
        );
        problems.ensure(
            self.log.keep.is_none_or(|keep| keep >= SECOND),
            "log.keep",
            "log.keep is below one second",
        );
        let message = "log: a feed with a filter has no log of its own; set it on the feed that it filters";
        problems.ensure(!self.log.is_bounded() || self.filter.is_none(), "log", message);
    }
}

impl SourceConfig {
    fn check(&self, problems: &mut Problems) {
        problems.check("source", self.check_address());
        for (key, time) in [("every", self.every()), ("timeout", self.timeout)] {
            problems.ensure(
                time >= SECOND,
                &format!("source.{key}"),
                format!("source.{key} is below one second"),
            );
        }
        let fits = (0.0..=1.0).contains(&self.guard.max_removed);
        let message = "source.guard.max_removed is not between 0 and 1";
        problems.ensure(fits, "source.guard.max_removed", message);
        self.limits.check(self.max_mib, "source.", problems);
        problems.check("source.headers", self.check_headers());
        problems.check("source.format", self.check_mappings());
        if let Some(paging) = &self.paging {
            problems.check("source.paging", paging.check().map_err(|e| format!("source.paging: {e}")));
        }
    }

    fn check_mappings(&self) -> Result<(), String> {
        if let Some(mapping) = &self.json {
            mapping.check().map_err(|e| format!("source.json: {e}"))?;
        }
        if let Some(mapping) = &self.html {
            mapping.check().map_err(|e| format!("source.html: {e}"))?;
        }
        match self.format {
            SourceFormat::Json if self.json.is_none() => {
                let why = "source.format is json, which needs [feed.source.json] with id, and with items unless the \
                           document itself is the list";
                Err(why.into())
            }
            SourceFormat::Ndjson if self.json.as_ref().is_none_or(|mapping| !mapping.items.is_empty()) => {
                Err("source.format is ndjson, which needs [feed.source.json] with id and without items"
                    .into())
            }
            SourceFormat::Html if self.html.is_none() => {
                Err("source.format is html, which needs [feed.source.html] with items".into())
            }
            format if self.html.is_some() && format != SourceFormat::Html => {
                Err("source.html needs source.format = \"html\"".into())
            }
            _ => Ok(()),
        }
    }

    fn check_address(&self) -> Result<(), String> {
        match (&self.url, &self.follow) {
            (Some(_), Some(_)) => Err("source has both url and follow; use one of them".into()),
            (None, None) => Err("source has neither url nor follow".into()),
            (Some(_), None) if self.large_content => {
                Err("source.large_content is for a source that is followed".into())
            }
            (Some(url), None) if self.push && (local_path(url).is_some() || self.body.is_some()) => {
                Err("source.push needs a source that is read by GET over HTTP".into())
            }
            (Some(url), None)
                if local_path(url).is_some() && (self.body.is_some() || self.paging.is_some()) =>
            {
                Err("source.body and source.paging are for documents over HTTP".into())
            }
            // A mistyped http URL must not be taken for the path of a file.
            (Some(url), None) if !begins_like_http(url) && local_path(url).is_some() => Ok(()),
            (Some(url), None) => check_http("url", url),
            (None, Some(url)) => self.check_follow().and_then(|()| check_http("follow", url)),
        }
    }

    /// Rejects keys that only apply to polled sources.
    fn check_follow(&self) -> Result<(), String> {
        let defaults = SourceConfig::default();
        let polled_only = [
            ("format", self.format != defaults.format),
            ("json", self.json.is_some()),
            ("html", self.html.is_some()),
            ("paging", self.paging.is_some()),
            ("body", self.body.is_some()),
            ("complete", self.complete),
            ("guard", self.guard != defaults.guard),
            ("timeout", self.timeout != defaults.timeout),
        ];
        let misplaced = polled_only.iter().find_map(|(key, is_set)| is_set.then_some(key));
        misplaced.map_or(Ok(()), |key| {
            Err(format!("source.{key} is for a source that is polled (url), not followed"))
        })
    }

    fn check_headers(&self) -> Result<(), String> {
        for (name, value) in &self.headers {
            if name.parse::<HeaderName>().is_err() || value.expose().parse::<HeaderValue>().is_err() {
                return Err(format!("source.headers: {name:?} or its value cannot be sent"));
            }
        }
        Ok(())
    }
}

impl LimitsConfig {
    /// Validates the limits, and the size of a document, which are in a table whose keys begin with `table`.
    pub(super) fn check(self, max_mib: u64, table: &str, problems: &mut Problems) {
        let LimitsConfig { items, depth, members, string_mib, memory_mib, entity_mib } = self;
        let max_mib = usize::try_from(max_mib).unwrap_or(usize::MAX);
        for (key, value, most) in [
            ("max_mib", max_mib, 4096),
            ("limits.items", items, 100_000_000),
            // Deeper documents would need a larger stack.
            ("limits.depth", depth, 256),
            ("limits.members", members, 1_000_000),
            ("limits.string_mib", string_mib, 4096),
            ("limits.memory_mib", memory_mib, 65_536),
            ("limits.entity_mib", entity_mib, 4096),
        ] {
            let key = format!("{table}{key}");
            problems.ensure((1..=most).contains(&value), &key, format!("{key} is not between 1 and {most}"));
        }
    }
}

fn check_http(key: &str, address: &str) -> Result<(), String> {
    let shown = redacted(address);
    let url = url::Url::parse(address).map_err(|e| format!("source.{key} {shown:?} is not a URL: {e}"))?;
    let reachable = matches!(url.scheme(), "http" | "https") && url.host().is_some();
    // The URL parser also accepts http:x and http:/x/y, which are typing errors.
    let has_slashes = address.trim_start().split_once(':').is_some_and(|(_, rest)| rest.starts_with("//"));
    if reachable && has_slashes {
        return Ok(());
    }
    Err(format!("source.{key} {shown:?} is not an http(s) URL: it must begin with http:// or https://"))
}

/// Returns an invalid URL without what may be a password or a key.
///
/// In a mistyped URL the password may be anywhere: the `@` may be missing, or a `#` may be too many. So it is shown only
/// if its host has nothing like a user and a password.
fn redacted(address: &str) -> String {
    let (address, query) = address.split_once('?').map_or((address, ""), |(address, _)| (address, "?…"));
    let (scheme, rest) = address.split_once(':').unwrap_or(("", address));
    let authority = rest.trim_start_matches('/').split('/').next().unwrap_or_default();
    let is_port = |port: &str| port.bytes().all(|b| b.is_ascii_digit());
    let has_user = address.contains('@') || authority.split_once(':').is_some_and(|(_, port)| !is_port(port));
    if has_user { format!("{scheme}:…") } else { format!("{address}{query}") }
}

fn begins_like_http(address: &str) -> bool {
    let scheme = address.trim_start().split_once(':').map_or("", |(scheme, _)| scheme);
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}
