//! From the URL that a user has to the URLs of a feed's documents (sections 1 and 8).

use percent_encoding::percent_decode_str;
use url::Url;

use super::documents::GLOBAL;
use super::uri::segment;

/// The target of a user's URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::diffdelta) enum DocumentLocation {
    /// A discovery manifest (section 8), which names the global feed.
    Manifest(Url),
    /// A feed's documents.
    Feed(FeedUrls),
}

/// The URLs of one feed's documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FeedUrls {
    /// `head.json`; `None` if the publisher has none.
    pub(in crate::diffdelta) head: Option<Url>,
    /// `latest.json`.
    pub(in crate::diffdelta) latest: Url,
}

/// Classifies a URL: a site's root, its manifest, a feed's folder, `head.json` or `latest.json`.
///
/// Both forms of a feed's path are accepted (`/diff/{source}/…` and `/diff/source/{source}/…`). Any other URL
/// ending in `.json` counts as a feed document without a head.
pub(in crate::diffdelta) fn locate(address: &str) -> Result<DocumentLocation, String> {
    let url = Url::parse(address).map_err(|e| format!("{address:?} is not a URL: {e}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("{address:?} is not an http or https URL"));
    }
    let path = url.path().trim_end_matches('/');
    // Section 8: a site is known by its manifest, which names the global feed.
    if path.is_empty() {
        return Ok(DocumentLocation::Manifest(with_path(&url, "/.well-known/diffdelta.json")));
    }
    if path.ends_with("/.well-known/diffdelta.json") {
        return Ok(DocumentLocation::Manifest(url));
    }
    let folder = match path.rsplit_once('/') {
        Some((folder, "head.json" | "latest.json")) => folder,
        // Static publishers often serve a single file. Guessing a head beside it would only cost a 404.
        Some((_, name)) if name.ends_with(".json") => {
            return Ok(DocumentLocation::Feed(FeedUrls { head: None, latest: url }));
        }
        _ => path,
    };
    let beside = |name: &str| with_path(&url, &format!("{folder}/{name}"));
    Ok(DocumentLocation::Feed(FeedUrls { head: Some(beside("head.json")), latest: beside("latest.json") }))
}

/// Replaces the path of a URL. The query stays, because it may hold an access token.
pub(in crate::diffdelta) fn with_path(url: &Url, path: &str) -> Url {
    let mut url = url.clone();
    url.set_path(path);
    // Requests carry no fragment (RFC 9110, section 7.1).
    url.set_fragment(None);
    url
}

/// Returns the source that a feed's path names: `/diff/{source}/…` or `/diff/source/{source}/…`.
pub(in crate::diffdelta) fn source_of(latest: &Url) -> Option<String> {
    let (folder, _) = latest.path().rsplit_once('/')?;
    let (_, within) = folder.rsplit_once("/diff/")?;
    let source = within.strip_prefix("source/").unwrap_or(within);
    let is_source = !source.is_empty() && !source.contains('/') && source != GLOBAL;
    is_source.then(|| percent_decode_str(source).decode_utf8_lossy().into_owned())
}

/// Returns the URL of a feed's archive index: `/archive/{source}/index.json` beside `/diff/`.
pub(in crate::diffdelta) fn archive_index(latest: &Url, source: Option<&str>) -> Url {
    // A site may live below a path. The last `/diff/` is the one of the feed, not a folder of that name
    // above.
    let above = latest.path().rfind("/diff/").map_or("", |at| &latest.path()[..at]);
    // Only the latest document and the path can name the source. Without either, the feed is the global one.
    let source = source.map(str::to_owned).or_else(|| source_of(latest));
    with_path(
        latest,
        &format!("{above}/archive/{}/index.json", source.as_deref().map_or(GLOBAL.into(), segment)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(address: &str) -> (String, String) {
        match locate(address) {
            Ok(DocumentLocation::Feed(feed)) => {
                (feed.head.map(String::from).unwrap_or_default(), feed.latest.to_string())
            }
            other => panic!("{address}: {other:?}"),
        }
    }

    #[test]
    fn every_url_of_a_feed_leads_to_its_documents() {
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
            assert_eq!(locate(address), Ok(DocumentLocation::Manifest(manifest)));
        }
        assert!(locate("ftp://h/").is_err());
        assert!(locate("diff/ab").is_err());
    }

    #[test]
    fn the_archive_is_beside_the_feeds() {
        let index = |latest: &str, source| archive_index(&Url::parse(latest).unwrap(), source).to_string();
        assert_eq!(index("http://h/diff/ab/latest.json", Some("ab")), "http://h/archive/ab/index.json");
        assert_eq!(
            index("http://h/p/diff/source/ab/latest.json", Some("ab")),
            "http://h/p/archive/ab/index.json"
        );
        // The document does not state its source, but its path does.
        for latest in ["http://h/diff/ab/latest.json", "http://h/diff/source/ab/latest.json"] {
            assert_eq!(index(latest, None), "http://h/archive/ab/index.json", "{latest}");
        }
        assert_eq!(index("http://h/diff/_global/latest.json", None), "http://h/archive/_global/index.json");
        assert_eq!(index("http://h/diff/latest.json", None), "http://h/archive/_global/index.json");
        assert_eq!(index("http://h/x.json", None), "http://h/archive/_global/index.json");
    }
}
