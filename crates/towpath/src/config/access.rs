//! Who may read a feed, and which items of another one it shows.

use serde::Deserialize;
use serde::de::Error as _;
use towpath_proto::FeedId;
use towpath_proto::smart::filter::Filter;

use super::FeedConfig;

/// `filter` of a `[[feed]]`: `{ of = "other", tags = ["x"], … }`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "toml::Table")]
pub struct FilterConfig {
    /// The feed whose items they are.
    pub of: FeedId,
    /// Which of them.
    pub filter: Filter,
}

impl TryFrom<toml::Table> for FilterConfig {
    type Error = toml::de::Error;

    fn try_from(mut table: toml::Table) -> Result<Self, Self::Error> {
        let of = table.remove("of").ok_or_else(|| Self::Error::custom("filter.of is missing"))?;
        Ok(Self { of: of.try_into()?, filter: table.try_into()? })
    }
}

/// One of `readers`: a token that shows the whole feed, or `{ token = "…", filter = { … } }`, one that shows a
/// part of it.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct ReaderConfig {
    /// What the reader sends as `Authorization: Bearer …`.
    pub token: String,
    /// Which items this reader sees; all of them where absent.
    pub filter: Option<Filter>,
}

impl std::fmt::Debug for ReaderConfig {
    /// Without the token, which is nobody's business.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReaderConfig").field("filter", &self.filter).finish_non_exhaustive()
    }
}

impl TryFrom<toml::Value> for ReaderConfig {
    type Error = toml::de::Error;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Form {
            token: String,
            filter: Filter,
        }
        match value {
            toml::Value::String(token) => Ok(Self { token, filter: None }),
            table @ toml::Value::Table(_) => {
                let Form { token, filter } = table.try_into()?;
                Ok(Self { token, filter: Some(filter) })
            }
            _ => Err(Self::Error::custom("a reader is a token, or { token = …, filter = { … } }")),
        }
    }
}

/// What one feed says of its readers.
pub(super) fn check_readers(feed: &FeedConfig) -> Result<(), String> {
    for (index, reader) in feed.readers.iter().enumerate() {
        if reader.token.trim().is_empty() {
            return Err("readers: an empty token would let everybody read".into());
        }
        if feed.readers[..index].iter().any(|earlier| earlier.token == reader.token) {
            return Err(format!("readers: number {} has the token of an earlier one", index + 1));
        }
        if reader.filter.is_some() && feed.filter.is_some() {
            return Err("readers: a feed with a filter has no readers with filters of their own".into());
        }
    }
    let filters = feed.readers.iter().filter_map(|reader| reader.filter.as_ref());
    filters.chain(feed.filter.as_ref().map(|filter| &filter.filter)).try_for_each(check_risk)
}

fn check_risk(filter: &Filter) -> Result<(), String> {
    let bounds = [filter.min_risk, filter.max_risk];
    let fits = bounds.into_iter().flatten().all(|risk| (0.0..=1.0).contains(&risk));
    if fits { Ok(()) } else { Err("filter: min_risk and max_risk are between 0 and 1".into()) }
}

/// What feeds say of each other; the error names the feed at fault.
pub(super) fn check_filters(feeds: &[FeedConfig]) -> Result<(), (FeedId, String)> {
    for feed in feeds {
        let Some(FilterConfig { of, .. }) = feed.filter.as_deref() else { continue };
        let fault = |message: String| Err((feed.id().clone(), message));
        match feeds.iter().find(|other| other.id() == of) {
            None => return fault(format!("filter.of is {of}, and there is no such [[feed]]")),
            Some(other) if other.filter.is_some() => {
                return fault(format!(
                    "filter.of is {of}, which is a filter itself; name what that one filters"
                ));
            }
            Some(_) => {}
        }
        if feed.source.is_some() {
            return fault("a feed has a source or a filter, not both".into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("towpath.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn filters_and_readers() {
        let config = parse(
            r#"
            [[feed]]
            id = "all"
            cursor = "toc"
            readers = ["a", { token = "b", filter = { tags = ["public"] } }]
            [[feed]]
            id = "rust"
            filter = { of = "all", tags = ["rust"], max_risk = 0.3 }
            "#,
        )
        .unwrap();
        assert!(!config.feeds[0].is_public() && config.feeds[1].is_public());
        assert_eq!(config.feeds[0].readers[1].filter.as_ref().unwrap().tags, ["public"]);
        assert_eq!(config.feeds[1].filter.as_ref().unwrap().of.as_str(), "all");
        assert!(!format!("{:?}", config.feeds[0]).contains("\"b\""));
    }

    #[test]
    fn what_does_not_make_sense_is_named() {
        let all = "[[feed]]\nid = \"all\"\n";
        for (text, needle) in [
            ("filter = { tags = ['a'] }", "filter.of"),
            ("filter = { of = 'all', tag = 'a' }", "tag"),
            ("filter = { of = 'none' }", "no such"),
            ("filter = { of = 'xx' }", "filter itself"),
            ("filter = { of = 'all', min_risk = 2.0 }", "min_risk"),
            ("filter = { of = 'all' }\nreaders = [{ token = 'a', filter = {} }]", "of their own"),
            ("filter = { of = 'all' }\n[feed.source]\nurl = 'x'", "not both"),
            ("readers = ['']", "empty token"),
            ("readers = ['a', 'a']", "number 2"),
            ("readers = [5]", "a reader is"),
            ("cursor = 'version'", "version"),
        ] {
            let error = parse(&format!("{all}[[feed]]\nid = \"xx\"\n{text}\n")).unwrap_err();
            assert!(error.contains(needle), "{text}: {error}");
        }
    }
}
