//! Configuration of a feed as JSON, as requests over HTTP give it.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use towpath_proto::FeedId;

use super::local_path::local_path;
use super::{Config, ConfigError, FeedConfig, FeedOrigin};

/// Keys that only the file has, with the reasons.
const OF_FILE: [(&str, &str); 3] = [
    ("filter", "views of filters are made at the start: add the filter to the configuration file"),
    ("readers", "use visibility = \"private\", and a [[token]] with the right to read the feed"),
    ("hubs", "name hubs of others in the configuration file"),
];

impl FeedConfig {
    /// Reads the configuration of a feed from JSON with the keys of `[[feed]]`.
    ///
    /// The words are a publisher's, not the operator's. So files of this machine and environment variables are not
    /// read, and the source gets no access to private networks.
    ///
    /// # Errors
    ///
    /// All mistakes, in one text.
    pub fn from_json(id: &FeedId, keys: &Map<String, Value>) -> Result<Self, String> {
        if let Some((key, why)) = OF_FILE.iter().find(|(key, _)| keys.contains_key(*key)) {
            return Err(format!("{key} cannot be set over HTTP: {why}"));
        }
        if keys.get("id").is_some_and(|given| given != id.as_str()) {
            return Err(format!("id is not {:?}, which the address has", id.as_str()));
        }
        let mut text = format!("[[feed]]\nid = \"{id}\"\n");
        for (key, value) in keys.iter().filter(|(key, value)| *key != "id" && !value.is_null()) {
            text.push_str(&format!("{} = {}\n", quoted(key), toml(value)));
        }
        let no_environment = |_: &str| Err(std::env::VarError::NotPresent);
        let config = Config::parse_with(&text, Path::new("feed"), &no_environment);
        let config = config.map_err(|e| match e {
            ConfigError::Invalid(problems) => {
                problems.into_iter().map(|problem| problem.message).collect::<Vec<_>>().join("; ")
            }
            error @ ConfigError::Read { .. } => error.to_string(),
        })?;
        let feed = config.feeds.into_iter().next().ok_or("there is no feed")?;
        let mut feed = Arc::unwrap_or_clone(feed);
        if let Some(source) = &mut feed.source {
            if source.url.as_deref().is_some_and(|url| local_path(url).is_some()) {
                return Err("source.url: a file of the server's machine cannot be named over HTTP".into());
            }
            source.is_from_http = true;
        }
        feed.origin = FeedOrigin::Http;
        Ok(feed)
    }
}

/// Writes a value as TOML. Null members are left out: they are keys that are not set.
fn toml(value: &Value) -> String {
    match value {
        Value::Array(values) => {
            format!("[{}]", values.iter().map(toml).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let members = members.iter().filter(|(_, value)| !value.is_null());
            let members = members.map(|(key, value)| format!("{} = {}", quoted(key), toml(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// Writes a string. JSON's escapes are TOML's, which also wants DEL escaped.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn feed(keys: &Value) -> Result<FeedConfig, String> {
        FeedConfig::from_json(&FeedId::new("orders").unwrap(), keys.as_object().unwrap())
    }

    #[test]
    fn keys_are_those_of_the_file() {
        let made = feed(&json!({
            "title": "Or\"ders\u{7f}\n", "ttl": "1m", "tags": ["a"], "lang": null,
            "source": { "url": "https://a.example/x", "format": "json", "json": { "items": "/i", "id": "/id" } },
        }));
        let made = made.unwrap();
        assert_eq!(
            (made.title(), made.ttl.as_secs(), made.origin),
            ("Or\"ders\u{7f}\n", 60, FeedOrigin::Http)
        );
        assert!(made.source.unwrap().is_from_http);
    }

    #[test]
    fn publishers_words_open_nothing() {
        for (keys, error) in [
            (json!({ "source": { "url": "/etc/passwd" } }), "a file of the server's machine"),
            (json!({ "source": { "url": "https://a.example/${HOME}" } }), "HOME"),
            (json!({ "title": "${HOME}" }), "HOME"),
            (json!({ "readers": ["x"] }), "[[token]]"),
            (json!({ "filter": { "of": "aa" } }), "configuration file"),
            (json!({ "id": "other" }), "which the address has"),
            (json!({ "ttl": "0s", "lang": "?" }), "; "),
            (json!({ "nonsense": 1 }), "nonsense"),
            (json!({ "x\"\n[server]\n\"": 1 }), "unknown"),
        ] {
            let refused = feed(&keys).unwrap_err();
            assert!(refused.contains(error), "{keys}: {refused}");
        }
    }
}
