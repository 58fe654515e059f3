//! Check of the addresses that an item names: readers follow them, so they must be absolute and of the web.

use towpath_proto::Item;
use towpath_proto::attachment::{attachments, image};
use url::Url;

use crate::document::route_error::RouteError;
use crate::engine::request::parameters;

/// Rule for an item's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UrlRule {
    /// Absolute, `http` or `https`, without spaces and control characters.
    Web,
    /// Any text (`?urls=any`): a copy of another's feed keeps what that feed has.
    Any,
}

impl UrlRule {
    /// Returns the rule of a request.
    pub(in crate::server) fn of(query: Option<&str>) -> Result<Self, RouteError> {
        let mut given = parameters(query).filter(|(name, _)| name == "urls").map(|(_, value)| value);
        match given.next().as_deref() {
            None => Ok(Self::Web),
            Some("any") => Ok(Self::Any),
            Some(other) => {
                Err(RouteError::bad_request(format!("urls={other:?} is unknown; any is known")).about("urls"))
            }
        }
    }

    /// Checks an item's `url`, `image` and `attachments`. Returns the pointer below the line and the reason.
    pub(crate) fn check(self, item: &Item) -> Result<(), (String, String)> {
        if self == Self::Any {
            return Ok(());
        }
        let named = item.url.iter().map(|url| ("/item/url".to_owned(), url.clone()));
        let image = image(item).map(|url| ("/item/image".to_owned(), url));
        let files = attachments(item).into_iter().enumerate();
        let files = files.map(|(index, file)| (format!("/item/attachments/{index}/url"), file.url));
        for (pointer, url) in named.chain(image).chain(files) {
            check(&url).map_err(|reason| (pointer, reason))?;
        }
        Ok(())
    }
}

/// Checks an address.
fn check(url: &str) -> Result<(), String> {
    let shown: String = url.chars().take(80).collect();
    // The parser trims and drops these, so readers of the text as it is would get another address.
    if let Some(bad) = url.chars().find(|c| c.is_control() || c.is_whitespace()) {
        let name = u32::from(bad);
        return Err(format!("{shown:?} has the character U+{name:04X}, which no URL has: percent-encode it"));
    }
    match Url::parse(url) {
        Ok(parsed) if matches!(parsed.scheme(), "http" | "https") => Ok(()),
        Ok(parsed) => Err(format!("{shown:?} is an address of {}, not of http or https", parsed.scheme())),
        Err(e) => Err(format!("{shown:?} is not an absolute http or https address: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_absolute_and_of_the_web() {
        for good in [
            "http://a.example",
            "https://a.example/%20?q#f",
            "http://a.example/\u{e9}?a|b",
            "HTTP://[::1]:8080/",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "/a",
            "a.example/b",
            "//a.example",
            "javascript:alert(1)",
            "ftp://a.example/",
            "mailto:a@b",
            "http://",
            " http://a.example/",
            "http://a.example/b c",
            "http://a.example/\u{a0}",
            "http://a.example/b\tc",
            "http://a.example/\n",
            "http://a.example/\u{7f}",
            "http://a.example/\0",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
