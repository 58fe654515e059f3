//! Values that TOML allows and that make no sense.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use towpath_cluster::Address;

use super::{FeedConfig, HubConfig, RetentionConfig, ServerConfig, SourceConfig, SourceFormat, access};
use crate::client::local_path;

/// Checks a base URL and takes the slashes off its end.
pub fn check_base_url(base: &mut String) -> Result<(), String> {
    let url = url::Url::parse(base).map_err(|e| format!("base_url {base:?} is not an address: {e}"))?;
    let plain = url.query().is_none() && url.fragment().is_none();
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() || !plain {
        return Err(format!("base_url {base:?} is not a plain http(s) address"));
    }
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
            Address::parse(cluster).map_err(|e| format!("cluster: {e}"))?;
        }
        if self.tokens.iter().any(|t| t.trim().is_empty()) {
            return Err("tokens: an empty token would let everybody publish".into());
        }
        if self.threads == Some(0) {
            return Err("threads is 0; without threads nothing is served".into());
        }
        if self.fetches == 0 {
            return Err("fetches is 0; without fetches no source is polled".into());
        }
        if self.heartbeat < Duration::from_secs(1) {
            return Err("heartbeat is below a second".into());
        }
        Ok(())
    }
}

impl HubConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.connections == 0 || self.host_connections == 0 {
            return Err(
                "nothing can be pushed over 0 connections ([hub] connections, host_connections)".into()
            );
        }
        if self.push_bytes < 1000 {
            return Err("[hub] push_bytes is below 1000".into());
        }
        Ok(())
    }
}

impl FeedConfig {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.ttl < Duration::from_secs(1) {
            return Err("ttl is below a second".into());
        }
        if self.complete && self.filter.is_some() {
            return Err("complete: a feed with a filter has no documents of its own that could be".into());
        }
        if let Some(lang) = self.lang.as_deref().filter(|lang| !is_language_tag(lang)) {
            return Err(format!("lang {lang:?} is not a language tag (BCP 47), as en or pt-BR is"));
        }
        self.check_pages()?;
        access::check_readers(self)?;
        self.source.as_ref().map_or(Ok(()), |source| source.check())
    }

    fn check_pages(&self) -> Result<(), String> {
        // A page is in memory while it is made.
        if self.page_items.is_some_and(|items| items.get() > 100_000) {
            return Err("page_items is above 100000".into());
        }
        if self.page_bytes.is_some_and(|bytes| bytes.get() > 1 << 30) {
            return Err("page_bytes is above 1073741824".into());
        }
        if self.snapshots.keep == 0 {
            return Err("snapshots.keep is 0; at least the newest is kept".into());
        }
        if self.snapshots.every.is_some_and(|every| every < Duration::from_secs(1)) {
            return Err("snapshots.every is below a second".into());
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
            return Err("source.every is below a second".into());
        }
        if self.timeout < Duration::from_secs(1) {
            return Err("source.timeout is below a second".into());
        }
        if !(0.0..=1.0).contains(&self.guard.max_removed) {
            return Err("source.guard.max_removed is not between 0 and 1".into());
        }
        if self.max_mib == 0 || self.max_mib > 4096 {
            return Err("source.max_mib is not between 1 and 4096".into());
        }
        self.check_headers()?;
        match &self.json {
            Some(mapping) => mapping.check().map_err(|e| format!("source.json: {e}")),
            None if self.format == SourceFormat::Json => {
                let why = "source.format is json, which needs [feed.source.json] with id, and items where the \
                           list is not the whole document";
                Err(why.into())
            }
            None => Ok(()),
        }
    }

    fn check_address(&self) -> Result<(), String> {
        match (&self.url, &self.follow) {
            (Some(_), Some(_)) => Err("source has both url and follow; one of them".into()),
            (None, None) => Err("source has neither url nor follow".into()),
            (Some(_), None) if self.push => Err("source.push is for a feed that is followed".into()),
            // What begins like an address is meant as one, also where it is none.
            (Some(url), None) if !begins_like_http(url) && local_path(url).is_some() => Ok(()),
            (Some(url), None) => check_http("url", url),
            (None, Some(url)) => self.check_follow().and_then(|()| check_http("follow", url)),
        }
    }

    /// What is said of documents that are polled means nothing for a feed that is followed.
    fn check_follow(&self) -> Result<(), String> {
        let usual = SourceConfig::default();
        let idle = [
            ("format", self.format != usual.format),
            ("json", self.json.is_some()),
            ("complete", self.complete),
            ("guard", self.guard != usual.guard),
            ("max_mib", self.max_mib != usual.max_mib),
            ("timeout", self.timeout != usual.timeout),
        ];
        let unheeded = idle.iter().find_map(|(key, is_set)| is_set.then_some(key));
        unheeded.map_or(Ok(()), |key| {
            Err(format!("source.{key} is for a source that is polled (url), not followed"))
        })
    }

    fn check_headers(&self) -> Result<(), String> {
        for (name, value) in &self.headers {
            if name.parse::<HeaderName>().is_err() || value.parse::<HeaderValue>().is_err() {
                return Err(format!("source.headers: {name:?} or its value cannot be sent"));
            }
        }
        Ok(())
    }
}

fn check_http(key: &str, address: &str) -> Result<(), String> {
    let url =
        url::Url::parse(address).map_err(|e| format!("source.{key} {address:?} is not an address: {e}"))?;
    let reachable = matches!(url.scheme(), "http" | "https") && url.host().is_some();
    // A parser of addresses makes something of http:x and http:/x/y, too.
    let has_slashes = address.trim_start().split_once(':').is_some_and(|(_, rest)| rest.starts_with("//"));
    if reachable && has_slashes {
        return Ok(());
    }
    Err(format!("source.{key} {address:?} is not an http(s) address: it must begin with http:// or https://"))
}

fn begins_like_http(address: &str) -> bool {
    let scheme = address.trim_start().split_once(':').map_or("", |(scheme, _)| scheme);
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

/// Whether a text has the form of a language tag (BCP 47: RFC 5646, section 2.1): subtags of 1 to 8 letters and
/// digits, joined by hyphens, the first of letters and not alone if it is a single one (`x-klingon`).
fn is_language_tag(tag: &str) -> bool {
    let mut subtags = tag.split('-');
    let first = subtags.next().unwrap_or_default();
    let is_subtag = |s: &str| (1..=8).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_alphanumeric());
    let is_alone = tag.len() == first.len();
    first.bytes().all(|b| b.is_ascii_alphabetic())
        && is_subtag(first)
        && !(is_alone && first.len() == 1)
        && subtags.all(is_subtag)
}
