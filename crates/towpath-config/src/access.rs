//! Readers of a feed, and filters on another feed.

use serde::Deserialize;
use serde::de::Error as _;
use towpath_proto::FeedId;
use towpath_proto::smart::filter::Filter;

use super::secret::Secret;

/// `filter` of a `[[feed]]`: `{ of = "other", tags = ["x"], … }`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "toml::Table")]
pub struct FilterConfig {
    /// Feed whose items are filtered.
    pub of: FeedId,
    /// Condition that the items meet.
    pub filter: Filter,
}

impl TryFrom<toml::Table> for FilterConfig {
    type Error = toml::de::Error;

    fn try_from(mut table: toml::Table) -> Result<Self, Self::Error> {
        let of = table.remove("of").ok_or_else(|| Self::Error::custom("filter.of is missing"))?;
        Ok(Self { of: of.try_into()?, filter: table.try_into()? })
    }
}

/// An entry of `readers`: a token for the whole feed, or `{ token = "…", filter = { … } }` for a part of it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct ReaderConfig {
    /// Token that the reader sends as `Authorization: Bearer …`, as it is or as `sha256:…`.
    pub token: Secret,
    /// Condition on the items that this reader sees; without it all of them.
    pub filter: Option<Filter>,
}

impl TryFrom<toml::Value> for ReaderConfig {
    type Error = toml::de::Error;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct ReaderTable {
            token: Secret,
            filter: Filter,
        }
        match value {
            toml::Value::String(token) => Ok(Self { token: token.into(), filter: None }),
            table @ toml::Value::Table(_) => {
                let ReaderTable { token, filter } = table.try_into()?;
                Ok(Self { token, filter: Some(filter) })
            }
            _ => Err(Self::Error::custom("a reader is a token, or { token = …, filter = { … } }")),
        }
    }
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
        assert!(!config.feeds[0].is_public() && !config.feeds[1].is_public());
        assert_eq!(config.feeds[0].readers[1].filter.as_ref().unwrap().tags, ["public"]);
        assert_eq!(config.feeds[1].filter.as_ref().unwrap().of.as_str(), "all");
        assert!(!format!("{:?}", config.feeds[0]).contains("\"b\""));
    }
}
