//! Lists of feeds: one URL per line, or OPML.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use towpath_proto::format::FormatError;
use towpath_proto::format::opml::{self, Outline};
use url::Url;

use super::feed_url::parse_url;

/// Maximum size of a list in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// A list cannot be used. The user's to fix.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListError {
    /// The file cannot be read.
    #[error("cannot read the list of feeds {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// The list exceeds a limit.
    #[error("the list of feeds {} is too large: {limit}", path.display())]
    TooLarge { path: PathBuf, limit: String },
    /// The file is XML, but not OPML.
    #[error("{}: {error}", path.display())]
    Opml { path: PathBuf, error: FormatError },
    /// A line is neither a URL nor a comment.
    #[error("{}, line {line}: {text:?} is not a feed URL: {reason}", path.display())]
    Address { path: PathBuf, line: usize, text: String, reason: String },
    /// The list is empty.
    #[error("the list of feeds {} contains no feed", path.display())]
    Empty { path: PathBuf },
}

/// Feed of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedFeed {
    pub(super) url: Url,
    /// Title in OPML.
    pub(super) title: Option<String>,
}

/// Reads the addresses of a list, in order.
pub(super) fn read(path: &Path) -> Result<Vec<Url>, ListError> {
    Ok(read_with_titles(path)?.into_iter().map(|feed| feed.url).collect())
}

/// Reads the feeds of a list, in order.
pub(super) fn read_with_titles(path: &Path) -> Result<Vec<ListedFeed>, ListError> {
    let failed = |error| ListError::Read { path: path.into(), error };
    let too_large = |limit: String| ListError::TooLarge { path: path.into(), limit };
    let mut bytes = Vec::new();
    // One byte more than the limit shows that the file is too large, without reading it all.
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(too_large(format!("over {} MiB", MAX_BYTES >> 20)));
    }
    let feeds = parse(path, &bytes)?;
    match feeds.len() {
        0 => Err(ListError::Empty { path: path.into() }),
        // The same limit for lines as for outlines of OPML.
        count if count > opml::MAX_FEEDS => Err(too_large(format!("over {} feeds", opml::MAX_FEEDS))),
        _ => Ok(feeds),
    }
}

/// Splits URLs into distinct ones and duplicates.
pub(super) fn without_duplicates(feeds: Vec<Url>) -> (Vec<Url>, Vec<Url>) {
    let mut distinct = HashSet::new();
    feeds.into_iter().partition(|feed| distinct.insert(feed.clone()))
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<ListedFeed>, ListError> {
    let address = |text: &str, line| {
        let excerpt = || text.chars().take(200).collect();
        let parsed = match text.split_whitespace().nth(1) {
            Some(_) => Err("a line has one URL".into()),
            None => parse_url(text),
        };
        parsed.map_err(|reason| ListError::Address { path: path.into(), line, text: excerpt(), reason })
    };
    if opml::is_xml(bytes) {
        let outlines = opml::read(bytes).map_err(|error| ListError::Opml { path: path.into(), error })?;
        let feed = |outline: Outline| {
            let url = address(&outline.xml_url, outline.line)?;
            Ok(ListedFeed { url, title: outline.title })
        };
        return outlines.into_iter().map(feed).collect();
    }
    // Invalid bytes end up in a URL error that names the line.
    let text = String::from_utf8_lossy(bytes);
    let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim).enumerate();
    let addresses = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let feed = |(index, line)| Ok(ListedFeed { url: address(line, index + 1)?, title: None });
    addresses.map(feed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> Result<Vec<String>, String> {
        let feeds = parse(Path::new("list"), list.as_bytes()).map_err(|e| e.to_string())?;
        Ok(feeds.into_iter().map(|feed| feed.url.into()).collect())
    }

    #[test]
    fn lines_and_outlines_are_feeds() {
        let lines =
            "\u{feff}# ours\r\nhttps://a.example/feed\r\n\n  http://b.example/#top \n#https://c.example/";
        assert_eq!(parsed(lines).unwrap(), ["https://a.example/feed", "http://b.example/#top"]);
        let opml = "<opml><body><outline><outline xmlUrl='https://a.example/x'/></outline></body></opml>";
        assert_eq!(parsed(opml).unwrap(), ["https://a.example/x"]);
    }

    #[test]
    fn errors_name_the_line() {
        for (list, part) in [
            ("http://a/\n\nftp://b/", "list, line 3: \"ftp://b/\" is not a feed URL"),
            ("http://a/ http://b/", "line 1"),
            ("<opml>\n\n<outline xmlUrl='nowhere'/></opml>", "line 3: \"nowhere\""),
            ("<opml>\n<outline", "line 2"),
            ("<rss/>", "not an OPML"),
        ] {
            let error = parsed(list).unwrap_err();
            assert!(error.contains(part), "{list:?}: {error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list");
        assert!(read(&path).unwrap_err().to_string().contains("cannot read"));
        std::fs::write(&path, "# nothing\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("contains no feed"));
    }

    #[test]
    fn each_feed_is_followed_once() {
        let feeds = ["http://a/", "http://b/", "http://A"].map(|url| Url::parse(url).unwrap());
        let (once, duplicates) = without_duplicates(feeds.into());
        assert_eq!((once.len(), duplicates[0].as_str()), (2, "http://a/"));
    }
}
