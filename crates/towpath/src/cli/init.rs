//! `towpath init`: writes a configuration that works.

use std::collections::HashSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use percent_encoding::percent_decode_str;
use url::{Host, Url};

use super::error::{CliError, Exit};
use super::feed_list::{self, ListedFeed};
use super::feed_url::parse_url;
use super::style::print_success;
use crate::config::{Config, DEFAULT_FILE, StarterFeed, starter};
use crate::plural::counted;

/// Longest id that is made of an address; see `FeedId`.
const MAX_ID: usize = 28;

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// File to write
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    config: PathBuf,
    /// Poll this feed: its URL, or a file with a list of feeds (OPML, or a URL per line); repeatable
    #[arg(long, value_name = "URL|FILE", num_args = 1..)]
    from: Vec<String>,
}

/// Writes a configuration. An existing one is left as it is.
pub(crate) fn init(args: &InitArgs) -> Result<Exit, CliError> {
    let feeds = named(sources(&args.from)?);
    let text = starter(&feeds);
    // What is written works: a mistake here would be found by its reader.
    Config::parse(&text, &args.config)?;
    let created =
        // Created and not checked first: a file that appears between the two would be overwritten.
        std::fs::File::create_new(&args.config).and_then(|mut file| file.write_all(text.as_bytes()));
    let file = args.config.display();
    created.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            CliError::usage(format!("{file} is there already; remove it, or name another one with --config"))
        }
        _ => CliError::failed(format!("cannot write {file}: {e}")),
    })?;
    let option =
        if args.config == Path::new(DEFAULT_FILE) { String::new() } else { format!(" --config {file}") };
    let feeds = counted(feeds.len().max(1), "feed");
    print_success(&format!("wrote {file} with {feeds}; start the server with: towpath serve{option}"))?;
    Ok(Exit::Done)
}

/// Returns all sources, each once, with the titles of lists.
fn sources(from: &[String]) -> Result<Vec<ListedFeed>, CliError> {
    let mut sources = Vec::new();
    for text in from {
        let is_url = text.contains("://");
        if is_url {
            let url = parse_url(text).map_err(|e| CliError::usage(format!("--from {text}: {e}")))?;
            sources.push(ListedFeed { url, title: None });
        } else {
            let list = feed_list::read_with_titles(Path::new(text));
            sources.extend(list.map_err(|e| CliError::usage(e.to_string()))?);
        }
    }
    let mut known = HashSet::new();
    sources.retain(|source| known.insert(source.url.clone()));
    Ok(sources)
}

/// Gives each source an id of its own, after its address.
fn named(sources: Vec<ListedFeed>) -> Vec<StarterFeed> {
    let mut taken = HashSet::new();
    let name = |ListedFeed { url, title }| {
        let base = id_of(&url);
        let mut id = base.clone();
        let mut number = 2;
        while !taken.insert(id.clone()) {
            id = format!("{base}-{number}");
            number += 1;
        }
        StarterFeed { id, url: url.into(), title }
    };
    sources.into_iter().map(name).collect()
}

/// Makes an id of a host and the last part of a path that says something. The port is no part of it.
fn id_of(url: &Url) -> String {
    let usual = ["", "feed", "feeds", "rss", "atom", "index", "xml", "json"];
    let mut parts = url.path().split(['/', '.']).filter(|part| !usual.contains(part));
    let part = percent_decode_str(parts.next_back().unwrap_or_default()).decode_utf8_lossy();
    let text = match url.host() {
        Some(Host::Domain(name)) => format!("{}-{part}", short_name(name)),
        // A number says little to people, so the address is the name of last resort.
        Some(Host::Ipv4(_) | Host::Ipv6(_)) if !part.is_empty() => part.into_owned(),
        Some(Host::Ipv4(address)) => address.to_string(),
        Some(Host::Ipv6(address)) => address.to_string(),
        None => part.into_owned(),
    };
    let mut id = String::new();
    for c in text.to_ascii_lowercase().chars() {
        match c {
            'a'..='z' | '0'..='9' | '_' => id.push(c),
            _ if !id.ends_with('-') && !id.is_empty() => id.push('-'),
            _ => {}
        }
    }
    id.truncate(MAX_ID);
    let id = id.trim_matches('-');
    if id.len() < 2 || id == "source" { format!("feed-{id}") } else { id.to_owned() }
}

/// Returns a host without what the hosts of most feeds have: `www.`, `feeds.`, and the top-level domain.
fn short_name(host: &str) -> &str {
    let host = host.trim_start_matches("www.").trim_start_matches("feeds.");
    host.rsplit_once('.').map_or(host, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_made_of_addresses() {
        let urls = [
            "https://www.example.com/feed.xml",
            "https://example.com/rss",
            "https://blog.rust-lang.org/feed.xml",
            "https://example.org/news/Security%20Notes.atom",
            "http://localhost:8000/feed.xml",
            "http://localhost:8000/prices.xml",
            "http://127.0.0.1:8000/feed.xml",
            "http://127.0.0.1/",
            "http://127.0.0.1:8080/feeds/offers",
            "http://127.0.0.1:8080/feeds/x",
            "http://[2001:db8::7]:8080/news/prices.json",
            "http://[::1]/feed",
            "http://[2001:db8::7]/rss",
            "https://ö.example/",
        ];
        let listed = |url| ListedFeed { url: Url::parse(url).unwrap(), title: None };
        let feeds = named(urls.into_iter().map(listed).collect());
        let ids: Vec<_> = feeds.iter().map(|feed| feed.id.as_str()).collect();
        let expected = [
            "example",
            "example-2",
            "blog-rust-lang",
            "example-security-notes",
            "localhost",
            "localhost-prices",
            "127-0-0-1",
            "127-0-0-1-2",
            "offers",
            "feed-x",
            "prices",
            "feed-1",
            "2001-db8-7",
            "xn-nda",
        ];
        assert_eq!(ids, expected);
        let text = starter(&feeds);
        let config = Config::parse(&text, Path::new(DEFAULT_FILE)).unwrap();
        assert_eq!(config.feeds.len(), urls.len(), "{text}");
    }
}
