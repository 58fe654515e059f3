//! Credentials in URLs that the user named, for further URLs of the same origin.
//!
//! A feed at `https://user:pass@host/feed` links to `https://host/page` as a rule: an absolute link without them. A
//! relative link keeps them by RFC 3986, section 5.2.2. Both get the same.

use url::Url;

/// Returns `url` with the credentials of a named URL of the same origin, unless it has its own.
pub(crate) fn with_credentials(url: &Url, named: &[Url]) -> Url {
    let mut url = url.clone();
    if has_credentials(&url) {
        return url;
    }
    let of_same_origin = |named: &&Url| has_credentials(named) && named.origin() == url.origin();
    if let Some(named) = named.iter().find(of_same_origin) {
        // Neither can fail: the URL has a host, because its origin is that of a URL with credentials.
        let _ = url.set_username(named.username());
        let _ = url.set_password(named.password());
    }
    url
}

fn has_credentials(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_of_the_same_origin_get_credentials() {
        let parsed = |text: &str| Url::parse(text).unwrap();
        let named = [parsed("http://other/"), parsed("https://us%40er:pa%3Ass@host/feed")];
        for (url, expected) in [
            ("https://host/page?a=b", "https://us%40er:pa%3Ass@host/page?a=b"),
            ("https://host:443/", "https://us%40er:pa%3Ass@host/"),
            ("https://me@host/", "https://me@host/"),
            ("http://host/", "http://host/"),
            ("https://host:8443/", "https://host:8443/"),
            ("https://other/", "https://other/"),
        ] {
            assert_eq!(with_credentials(&parsed(url), &named).as_str(), expected);
        }
    }
}
