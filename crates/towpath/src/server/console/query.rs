//! Query of a page's address, and links that change a part of it.

use super::text::prefix;
use crate::document::route_error::RouteError;

/// Longest text that a page searches for, in bytes.
pub(super) const MAX_SEARCH: usize = 200;

/// Parameters of a page, decoded, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(query: Option<&str>) -> Self {
        let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        // A form sends its empty fields, too.
        let pairs = pairs.filter(|(_, value)| !value.trim().is_empty());
        Self(pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// Returns the value of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns a parameter that is a number.
    pub(super) fn number(&self, name: &'static str) -> Result<Option<u64>, RouteError> {
        let parse = |value: &str| {
            let shown: String = value.chars().take(40).collect();
            value
                .parse()
                .map_err(|_| RouteError::bad_request(format!("{name}={shown:?} is not a number")).about(name))
        };
        self.get(name).map(parse).transpose()
    }

    /// Returns the text to search for, cut to its limit; true if it was cut.
    pub(super) fn search(&self) -> (&str, bool) {
        let text = self.get("q").unwrap_or_default().trim();
        match text.len() {
            0..=MAX_SEARCH => (text, false),
            _ => (prefix(text, MAX_SEARCH), true),
        }
    }

    /// Returns the query with these parameters set, or removed with an empty value. It begins with a question mark.
    pub(super) fn with(&self, changes: &[(&str, &str)]) -> String {
        let kept = self.0.iter().filter(|(name, _)| !changes.iter().any(|(changed, _)| changed == name));
        let kept = kept.map(|(name, value)| (name.as_str(), value.as_str()));
        let set = changes.iter().copied().filter(|(_, value)| !value.is_empty());
        let mut query = url::form_urlencoded::Serializer::for_suffix(String::from("?"), 1);
        // Only what a page could have written itself: a link must not grow with a hostile address.
        query.extend_pairs(kept.chain(set).filter(|(_, value)| value.len() <= 2 * MAX_SEARCH));
        query.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_change_a_part() {
        let query = Query::parse(Some("q=a+b&sort=items&page=&tag=%3C"));
        assert_eq!((query.get("q"), query.get("page"), query.get("tag")), (Some("a b"), None, Some("<")));
        assert_eq!(query.with(&[("sort", "title"), ("page", "2")]), "?q=a+b&tag=%3C&sort=title&page=2");
        assert_eq!(query.with(&[("q", ""), ("tag", ""), ("sort", "")]), "?");
        assert!(query.number("q").is_err() && query.number("page").unwrap().is_none());
    }

    #[test]
    fn a_search_is_cut() {
        let long = format!("q={}", "ä".repeat(1 << 20));
        let query = Query::parse(Some(&long));
        let (text, is_cut) = query.search();
        assert!(is_cut && text.len() <= MAX_SEARCH);
        assert!(query.with(&[]).len() < 10);
    }
}
