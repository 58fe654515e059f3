//! Pages of a source: the URL of the next one.

use std::fmt;

use http::HeaderMap;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use url::Url;

use super::json::{scalar, without_mark};
use super::json_numbers::numbers_as_text;
use super::{link, sniff};

/// Location of the next page's address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Paging {
    /// Pointer (RFC 6901) to the next page's URL in a JSON body, such as `/next_url`.
    #[cfg_attr(feature = "schema", schemars(example = "/next_url"))]
    pub next: Option<String>,
    /// Pointer to a cursor in a JSON body. It becomes the query parameter `parameter`.
    #[cfg_attr(feature = "schema", schemars(example = "/meta/cursor"))]
    pub cursor: Option<String>,
    /// Query parameter that takes the cursor.
    #[cfg_attr(feature = "schema", schemars(example = &"cursor"))]
    pub parameter: Option<String>,
    /// Takes the next page's URL from a link with the relation `next`, in a `Link` header or in the feed itself.
    pub link: bool,
    /// Maximum number of pages of a poll.
    pub max_pages: usize,
}

impl Default for Paging {
    fn default() -> Self {
        Self { next: None, cursor: None, parameter: None, link: false, max_pages: 20 }
    }
}

/// The next page has no usable address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the next page: {0}")]
pub struct PagingError(String);

impl Paging {
    /// Checks the combination of members.
    ///
    /// # Errors
    ///
    /// Returns what is missing or wrong.
    pub fn check(&self) -> Result<(), PagingError> {
        let error = |reason: &str| Err(PagingError(reason.to_owned()));
        let is_pointer = |pointer: &Option<String>| pointer.as_ref().is_none_or(|p| p.starts_with('/'));
        if !is_pointer(&self.next) || !is_pointer(&self.cursor) {
            return error("next and cursor are pointers, which begin with /");
        }
        let ways = [self.next.is_some(), self.cursor.is_some(), self.link];
        if ways.iter().filter(|way| **way).count() != 1 {
            return error("exactly one of next, cursor and link is needed");
        }
        if self.cursor.is_some() != self.parameter.is_some() {
            return error("cursor and parameter belong together");
        }
        // A publisher whose last page leads to its first would otherwise be read for ever.
        if !(1..=10_000).contains(&self.max_pages) {
            return error("max_pages is not between 1 and 10000");
        }
        Ok(())
    }

    /// Returns the URL of the page behind the one at `url`; `None` behind the last.
    ///
    /// A link of the feed itself is not looked for: it comes with the feed's
    /// [`links`](super::FeedDocument::links).
    ///
    /// # Errors
    ///
    /// Fails if the body names a page that no request can ask for.
    pub fn next_page(&self, url: &Url, headers: &HeaderMap, body: &[u8]) -> Result<Option<Url>, PagingError> {
        if self.link {
            let links = link::from_headers(headers, Some(url));
            return link::target(&links, "next").map(|target| join(url, target)).transpose();
        }
        let pointer = self.next.as_deref().or(self.cursor.as_deref()).unwrap_or_default();
        let Some(found) = scalar_at(body, pointer)? else { return Ok(None) };
        match &self.parameter {
            Some(parameter) => Ok(Some(with_parameter(url, parameter, &found))),
            None => join(url, &found).map(Some),
        }
    }
}

fn join(url: &Url, target: &str) -> Result<Url, PagingError> {
    url.join(target.trim()).map_err(|e| PagingError(format!("{target:?} is not a URL: {e}")))
}

/// Replaces a query parameter.
fn with_parameter(url: &Url, name: &str, value: &str) -> Url {
    let mut next = url.clone();
    let others: Vec<(String, String)> =
        // Without the cursor of this page: of two of them, a server may take either.
        url.query_pairs().filter(|(n, _)| n != name).map(|(n, v)| (n.into_owned(), v.into_owned())).collect();
    next.query_pairs_mut().clear().extend_pairs(others).append_pair(name, value);
    next
}

/// Returns the text or number at a pointer; `None` for nothing, null, false and empty text, which all mark the last
/// page.
fn scalar_at(body: &[u8], pointer: &str) -> Result<Option<String>, PagingError> {
    let (text, _) = sniff::decode(body, None);
    let path: Vec<String> =
        // RFC 6901, section 4: `~1` is decoded before `~0`, or `~01` would become a slash.
        pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect();
    let mut parser = serde_json::Deserializer::from_str(without_mark(&text));
    // What is no JSON gets its error, with a position, where its items are read.
    let Ok(found) = PointerSeed(&path).deserialize(&mut parser) else { return Ok(None) };
    let value = found.and_then(|raw| serde_json::from_str(&numbers_as_text(raw.get())).ok());
    match value {
        None | Some(serde_json::Value::Null | serde_json::Value::Bool(false)) => Ok(None),
        Some(value) => match scalar(&value) {
            Some(text) => Ok(Some(text).filter(|text| !text.is_empty())),
            None => Err(PagingError(format!("{pointer:?} leads to {}", super::json::kind(&value)))),
        },
    }
}

/// Finds the value at a path. Everything beside it is skipped, not stored.
struct PointerSeed<'a>(&'a [String]);

impl<'de> DeserializeSeed<'de> for PointerSeed<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if self.0.is_empty() {
            return <&RawValue>::deserialize(deserializer).map(Some);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PointerSeed<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let wanted: Option<usize> = self.0.first().and_then(|token| token.parse().ok());
        let mut found = None;
        for index in 0.. {
            if Some(index) == wanted {
                let Some(value) = elements.next_element_seed(PointerSeed(&self.0[1..]))? else { break };
                found = value;
            } else if elements.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
        }
        Ok(found)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let Some((token, rest)) = self.0.split_first() else { return Ok(None) };
        let mut found = None;
        // To the end, also behind the member that was found: the deserializer refuses an object that is left
        // early.
        while let Some(name) = members.next_key::<String>()? {
            match name == *token {
                true => found = members.next_value_seed(PointerSeed(rest))?,
                false => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(paging: &Paging, link: &str, body: &str) -> Result<Option<String>, PagingError> {
        let mut headers = HeaderMap::new();
        headers.insert("link", link.parse().unwrap());
        let url = Url::parse("https://a.example/v1/items?limit=2&cursor=old").unwrap();
        let next = paging.next_page(&url, &headers, body.as_bytes())?;
        Ok(next.map(String::from))
    }

    fn at(pointer: &str) -> Paging {
        Paging { next: Some(pointer.into()), ..Paging::default() }
    }

    #[test]
    fn the_next_page_is_named_by_body_or_header() {
        let page = |paging: &Paging, body: &str| next(paging, "<x>; rel=other", body).unwrap();
        let body =
            r#"{"items": [{"next": "no"}], "meta": {"next": "/v1/items?page=2", "n": 7, "a/b": ["x", "y"]}}"#;
        assert_eq!(page(&at("/meta/next"), body).as_deref(), Some("https://a.example/v1/items?page=2"));
        assert_eq!(page(&at("/meta/a~1b/1"), body).as_deref(), Some("https://a.example/v1/y"));
        let cursor =
            Paging { cursor: Some("/meta/n".into()), parameter: Some("cursor".into()), ..Paging::default() };
        assert_eq!(page(&cursor, body).as_deref(), Some("https://a.example/v1/items?limit=2&cursor=7"));
        for last in [
            "{}",
            "{\"meta\":{\"n\":null}}",
            "{\"meta\":{\"n\":\"\"}}",
            "{\"meta\":{\"n\":false}}",
            "[]",
            "{",
        ] {
            assert_eq!(page(&cursor, last), None, "{last}");
        }
        let linked = Paging { link: true, ..Paging::default() };
        let header = "<https://b.example/2>; rel=\"next\", <https://b.example/9>; rel=\"last\"";
        assert_eq!(next(&linked, header, "").unwrap().as_deref(), Some("https://b.example/2"));
        assert_eq!(next(&linked, "<x>; rel=last", "").unwrap(), None);
        assert!(next(&at("/meta"), "x", body).unwrap_err().to_string().contains("an object"));
        assert!(next(&at("/u"), "x", r#"{"u": "http://[/"}"#).is_err());
    }

    #[test]
    fn one_way_to_the_next_page_is_configured() {
        assert!(at("/a").check().is_ok());
        assert!(at("a").check().is_err() && Paging::default().check().is_err());
        assert!(Paging { link: true, ..at("/a") }.check().is_err());
        assert!(Paging { cursor: Some("/c".into()), ..Paging::default() }.check().is_err());
        assert!(Paging { max_pages: 0, ..at("/a") }.check().is_err());
    }
}
