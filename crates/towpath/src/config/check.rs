//! Validation of values beyond their TOML types.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use towpath_cluster::ClusterAddress;
use towpath_proto::format::is_language_tag;

use super::check_access::check_readers;
use super::cors::check_origins;
use super::feed::{FeedConfig, RetentionConfig};
use super::local_path::local_path;
use super::secret::Secret;
use super::server::ServerConfig;
use super::source::{LimitsConfig, SourceConfig, SourceFormat};

/// Validates a base URL and removes trailing slashes.
pub fn check_base_url(base: &mut String) -> Result<(), String> {
    let url =
        url::Url::parse(base).map_err(|e| format!("base_url {:?} is not a URL: {e}", redacted(base)))?;
    let plain = url.query().is_none() && url.fragment().is_none();
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() || !plain {
        let shown = redacted(base);
        return Err(format!("base_url {shown:?} is not an http(s) URL without query and fragment"));
    }
    // Paths are appended with their slash; a double slash would be another URL.
    while base.ends_with('/') {
        base.pop();
    }
    Ok(())
}

impl ServerConfig {
    pub(super) fn check(&mut self) -> Result<(), String> {
        if let Some(base) = &mut self.base_url {
            check_base_url(base)?;
        }
        if let Some(cluster) = &self.cluster {
            ClusterAddress::parse(cluster.expose()).map_err(|e| format!("cluster: {e}"))?;
        }
        // `Authorization: Bearer ` without a token would match.
        if self.tokens.iter().any(Secret::is_blank) {
            return Err("tokens: an empty token would let everybody publish".into());
        }
        self.rate_limit.check()?;
        self.cors_origins.as_deref().map_or(Ok(()), check_origins)?;
        if self.threads == Some(0) {
            return Err("threads must be at least 1".into());
        }
        if self.fetches == 0 {
            return Err("fetches must be at least 1".into());
        }
        if self.max_connections == Some(0) || self.max_connections_per_address == 0 {
            return Err("max_connections and max_connections_per_address must be at least 1".into());
        }
        if self.min_rate == 0 {
            return Err("min_rate must be at least 1: with 0, a client could hold a response for ever".into());
        }
        if self.rate_grace < Duration::from_secs(1) {
            return Err("rate_grace is below one second".into());
        }
        if self.response_mib == 0 {
            return Err("response_mib must be at least 1".into());
        }
        if !(16..=1 << 20).contains(&self.fetch_mib) {
            return Err("fetch_mib is not between 16 and 1048576".into());
        }
        if self.heartbeat < Duration::from_secs(1) {
            return Err("heartbeat is below one second".into());
        }
        Ok(())
    }
}

impl FeedConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.ttl < Duration::from_secs(1) {
            return Err("ttl is below one second".into());
        }
        if self.complete && self.filter.is_some() {
            return Err("complete: a feed with a filter has no documents of its own".into());
        }
        if let Some(lang) = self.lang.as_deref().filter(|lang| !is_language_tag(lang)) {
            return Err(format!("lang {lang:?} is not a language tag (BCP 47), such as en or pt-BR"));
        }
        for (name, url) in [("home", &self.home), ("image", &self.image)] {
            if let Some(url) = url.as_deref().filter(|url| !begins_like_http(url)) {
                return Err(format!("{name} {url:?} is not an http or https URL"));
            }
        }
        self.check_pages()?;
        check_readers(self)?;
        self.source.as_ref().map_or(Ok(()), |source| source.check())
    }

    fn check_pages(&self) -> Result<(), String> {
        // A page is held in memory while it is built.
        if self.page_items.is_some_and(|items| items.get() > 100_000) {
            return Err("page_items is above 100000".into());
        }
        if self.page_bytes.is_some_and(|bytes| bytes.get() > 1 << 30) {
            return Err("page_bytes is above 1073741824".into());
        }
        if self.snapshots.keep == 0 {
            return Err("snapshots.keep must be at least 1".into());
        }
        if self.snapshots.every.is_some_and(|every| every < Duration::from_secs(1)) {
            return Err("snapshots.every is below one second".into());
        }
        match &self.retention {
            Some(RetentionConfig { age: None, bytes: None, .. }) => {
                Err("retention has neither age nor bytes".into())
            }
            _ => Ok(()),
        }
    }
}

impl SourceConfig {
    fn check(&self) -> Result<(), String> {
        self.check_address()?;
        if self.every() < Duration::from_secs(1) {
            return Err("source.every is below one second".into());
        }
        if self.timeout < Duration::from_secs(1) {
            return Err("source.timeout is below one second".into());
        }
        if !(0.0..=1.0).contains(&self.guard.max_removed) {
            return Err("source.guard.max_removed is not between 0 and 1".into());
        }
        if self.max_mib == 0 || self.max_mib > 4096 {
            return Err("source.max_mib is not between 1 and 4096".into());
        }
        self.check_limits()?;
        self.check_headers()?;
        self.check_mappings()?;
        let Some(paging) = &self.paging else { return Ok(()) };
        paging.check().map_err(|e| format!("source.paging: {e}"))
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
            (Some(_), None) if self.push => Err("source.push needs follow".into()),
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
            ("max_mib", self.max_mib != defaults.max_mib),
            ("limits", self.limits != defaults.limits),
            ("timeout", self.timeout != defaults.timeout),
        ];
        let misplaced = polled_only.iter().find_map(|(key, is_set)| is_set.then_some(key));
        misplaced.map_or(Ok(()), |key| {
            Err(format!("source.{key} is for a source that is polled (url), not followed"))
        })
    }

    fn check_limits(&self) -> Result<(), String> {
        let LimitsConfig { items, depth, members, string_mib, memory_mib } = self.limits;
        for (key, value, most) in [
            ("items", items, 100_000_000),
            // Deeper documents would need a larger stack.
            ("depth", depth, 256),
            ("members", members, 1_000_000),
            ("string_mib", string_mib, 4096),
            ("memory_mib", memory_mib, 65_536),
        ] {
            if !(1..=most).contains(&value) {
                return Err(format!("source.limits.{key} is not between 1 and {most}"));
            }
        }
        Ok(())
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
