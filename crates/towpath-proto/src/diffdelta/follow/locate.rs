//! From the address that a user has to the addresses of a feed's documents.

use url::Url;

use crate::diffdelta::wire::GLOBAL;

/// What an address leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::diffdelta) enum Place {
    /// A discovery manifest (section 8), which names the global feed.
    Manifest(Url),
    /// A feed's documents.
    Feed(Feed),
}

/// The addresses of one feed's documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::diffdelta) struct Feed {
    /// `head.json`; `None` once it turned out that there is none.
    pub(in crate::diffdelta) head: Option<Url>,
    /// `latest.json`.
    pub(in crate::diffdelta) latest: Url,
}

/// Reads an address: a site's root, its manifest, a feed's folder, `head.json`, `latest.json`, in both forms
/// (`/diff/{source}/…` and `/diff/source/{source}/…`). Anything else is taken for a `latest.json`.
pub(in crate::diffdelta) fn locate(address: &str) -> Result<Place, String> {
    let url = Url::parse(address).map_err(|e| format!("{address:?} is not an address: {e}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("{address:?} is not an address of http or https"));
    }
    let path = url.path().trim_end_matches('/');
    if path.is_empty() {
        return Ok(Place::Manifest(with_path(&url, "/.well-known/diffdelta.json")));
    }
    if path.ends_with("/.well-known/diffdelta.json") {
        return Ok(Place::Manifest(url));
    }
    let folder = match path.rsplit_once('/') {
        Some((folder, "head.json" | "latest.json")) => folder,
        // A document of some other name: it has no head beside it.
        Some((_, name)) if name.ends_with(".json") => {
            return Ok(Place::Feed(Feed { head: None, latest: url }));
        }
        _ => path,
    };
    let beside = |name: &str| with_path(&url, &format!("{folder}/{name}"));
    Ok(Place::Feed(Feed { head: Some(beside("head.json")), latest: beside("latest.json") }))
}

/// Another path on the same site; a query stays.
pub(in crate::diffdelta) fn with_path(url: &Url, path: &str) -> Url {
    let mut url = url.clone();
    url.set_path(path);
    url.set_fragment(None);
    url
}

/// Where a feed's archive index is: `/archive/{source}/index.json` beside the `/diff/` of its documents.
pub(in crate::diffdelta) fn archive_index(latest: &Url, source: Option<&str>) -> Url {
    let above = latest.path().rfind("/diff/").map_or("", |at| &latest.path()[..at]);
    with_path(latest, &format!("{above}/archive/{}/index.json", source.unwrap_or(GLOBAL)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(address: &str) -> (String, String) {
        match locate(address) {
            Ok(Place::Feed(feed)) => {
                (feed.head.map(String::from).unwrap_or_default(), feed.latest.to_string())
            }
            other => panic!("{address}: {other:?}"),
        }
    }

    #[test]
    fn every_address_of_a_feed_leads_to_its_documents() {
        for (address, folder) in [
            ("http://h/diff/ab/head.json", "http://h/diff/ab"),
            ("http://h/diff/ab/latest.json", "http://h/diff/ab"),
            ("http://h/diff/ab/", "http://h/diff/ab"),
            ("http://h/diff/ab", "http://h/diff/ab"),
            ("http://h/diff/source/ab/latest.json", "http://h/diff/source/ab"),
            ("http://h/diff/source/ab", "http://h/diff/source/ab"),
            ("https://h/p/diff/latest.json#x", "https://h/p/diff"),
            ("https://h/diff/", "https://h/diff"),
        ] {
            let expected = (format!("{folder}/head.json"), format!("{folder}/latest.json"));
            assert_eq!(feed(address), expected, "{address}");
        }
        assert_eq!(feed("http://h/feed.json"), (String::new(), "http://h/feed.json".into()));
    }

    #[test]
    fn a_site_leads_to_its_manifest() {
        for address in ["http://h", "http://h/", "http://h/.well-known/diffdelta.json"] {
            let manifest = Url::parse("http://h/.well-known/diffdelta.json").unwrap();
            assert_eq!(locate(address), Ok(Place::Manifest(manifest)));
        }
        assert!(locate("ftp://h/").is_err());
        assert!(locate("diff/ab").is_err());
    }

    #[test]
    fn the_archive_stands_beside_the_feeds() {
        let index = |latest: &str, source| archive_index(&Url::parse(latest).unwrap(), source).to_string();
        assert_eq!(index("http://h/diff/ab/latest.json", Some("ab")), "http://h/archive/ab/index.json");
        assert_eq!(
            index("http://h/p/diff/source/ab/latest.json", Some("ab")),
            "http://h/p/archive/ab/index.json"
        );
        assert_eq!(index("http://h/diff/latest.json", None), "http://h/archive/_global/index.json");
        assert_eq!(index("http://h/x.json", None), "http://h/archive/_global/index.json");
    }
}
