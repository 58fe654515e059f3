//! The tokens that are valid now: hashed, named, with their rights.

use std::collections::HashMap;
use std::sync::Arc;

use subtle::ConstantTimeEq as _;
use towpath_proto::FeedId;

use crate::config::{Config, FeedConfig, FeedPattern, ReaderConfig, ServerConfig, TokenDigest, TokenRight};

/// Part of a feed that a reader may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// The whole feed.
    Whole,
    /// The part that the filter of the configured reader with this index lets through.
    Reader(usize),
}

/// All valid tokens. It is replaced as a whole when the configuration is read again.
#[derive(Debug, Default)]
pub struct TokenSet {
    tokens: Vec<Arc<NamedToken>>,
    /// Readers of single feeds, by feed.
    readers: HashMap<FeedId, Vec<FeedReader>>,
    has_publisher: bool,
    is_public_server: bool,
}

/// A token with its rights.
#[derive(Debug)]
pub struct NamedToken {
    /// Name for the log and for rate limits.
    pub name: Arc<str>,
    digest: TokenDigest,
    rights: Vec<TokenRight>,
    /// Feeds to which the rights apply; `None` for all.
    feeds: Option<Vec<FeedPattern>>,
}

/// An entry of a feed's `readers`.
#[derive(Debug)]
struct FeedReader {
    name: Arc<str>,
    digest: TokenDigest,
    access: Access,
}

impl NamedToken {
    /// Returns true if the token has a right to a feed. The right `admin` includes the others.
    pub fn may(&self, right: TokenRight, feed: &str) -> bool {
        let has_right = self.rights.iter().any(|has| *has == right || *has == TokenRight::Admin);
        has_right && self.feeds.as_ref().is_none_or(|feeds| feeds.iter().any(|pattern| pattern.matches(feed)))
    }
}

impl NamedToken {
    /// Returns true if the token may publish to some feed.
    pub(crate) fn may_publish(&self) -> bool {
        self.rights.iter().any(|right| *right != TokenRight::Read)
    }
}

impl TokenSet {
    /// Makes the tokens of a configuration.
    pub fn new(config: &Config) -> Self {
        Self::reloaded(config, &config.server, config.feeds.iter().map(AsRef::as_ref)).0
    }

    /// Makes the tokens of a configuration that was read again, beside the server and the feeds that run.
    ///
    /// Filters of readers and public feeds are part of documents and indexes that are made at start. So the second
    /// result lists what needs a restart.
    pub fn reloaded<'a>(
        new: &Config,
        server: &ServerConfig,
        feeds: impl Iterator<Item = &'a FeedConfig>,
    ) -> (Self, Vec<String>) {
        let (mut set, mut left) = (Self::default(), Vec::new());
        for (index, token) in new.server.tokens.iter().enumerate() {
            let name = format!("server.tokens {}", index + 1).into();
            let digest = TokenDigest::of_configured(token);
            // Entries of `[server] tokens` are bare texts, which have no place for rights.
            let rights = vec![TokenRight::Admin];
            set.tokens.push(Arc::new(NamedToken { name, digest, rights, feeds: None }));
        }
        for token in &new.tokens {
            // Validation has made sure that there is a digest.
            let Some(digest) = token.digest() else { continue };
            let (name, rights, feeds) =
                (token.name.as_str().into(), token.rights.clone(), token.feeds.clone());
            set.tokens.push(Arc::new(NamedToken { name, digest, rights, feeds: Some(feeds) }));
        }
        set.has_publisher = set.tokens.iter().any(|token| token.may_publish());
        // Of the running one, because the command line may have another base URL than the file.
        set.is_public_server = !server.is_local();
        let known: HashMap<_, _> = feeds.map(|feed| (feed.id(), feed)).collect();
        for feed in &new.feeds {
            let Some(running) = known.get(feed.id()) else {
                left.push(format!("feed {} is new", feed.id()));
                continue;
            };
            if feed.is_public() != running.is_public() {
                left.push(format!("feed {} becomes public or private", feed.id()));
            }
            let readers = readers(feed.id(), &feed.readers, &running.readers, &mut left);
            if !readers.is_empty() {
                set.readers.insert(feed.id().clone(), readers);
            }
        }
        (set, left)
    }

    /// Returns true if no token may publish, so that programs on this machine may.
    pub fn is_open(&self) -> bool {
        !self.has_publisher
    }

    /// Returns true if the server's base URL leads to other machines.
    pub fn is_public_server(&self) -> bool {
        self.is_public_server
    }

    /// Refuses publishing without a token, though no token may publish.
    pub fn close(&mut self) {
        self.has_publisher = true;
    }

    /// Returns the number of tokens, readers of single feeds included.
    pub fn len(&self) -> usize {
        self.tokens.len() + self.readers.values().map(Vec::len).sum::<usize>()
    }

    /// Returns true without any token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the token of a request.
    pub fn find(&self, given: &str) -> Option<&Arc<NamedToken>> {
        // Hashed first: digests have one length, so their comparison tells nothing of a token's.
        let given = TokenDigest::of(given);
        first(self.tokens.iter(), |token| is_equal(&token.digest, &given))
    }

    /// Returns the name of a token, whatever its rights are.
    pub fn name_of(&self, given: &str) -> Option<Arc<str>> {
        let digest = TokenDigest::of(given);
        let readers = self.readers.values().flatten();
        let reader = first(readers, |reader| is_equal(&reader.digest, &digest));
        self.find(given).map(|token| &token.name).or_else(|| reader.map(|reader| &reader.name)).cloned()
    }

    /// Returns the part of a feed that one of its `readers` may see.
    pub fn reader(&self, feed: &FeedId, given: &str) -> Option<Access> {
        let digest = TokenDigest::of(given);
        let found = first(self.readers.get(feed)?.iter(), |reader| is_equal(&reader.digest, &digest));
        found.map(|reader| reader.access)
    }

    /// Returns the access of the token whose digest begins with these bytes: `readers` of the feed first.
    pub(crate) fn access_by_prefix(&self, feed: &FeedId, log: &FeedId, prefix: &[u8]) -> Option<Access> {
        // Not in constant time: the prefix comes from a signed link or from the store, never as a client writes it.
        let begins = |digest: &TokenDigest| digest.as_bytes().starts_with(prefix);
        let reader = self.readers.get(feed).and_then(|all| all.iter().find(|reader| begins(&reader.digest)));
        let reads = |token: &&Arc<NamedToken>| begins(&token.digest) && reads(token, feed, log);
        let token = || self.tokens.iter().find(reads).map(|_| Access::Whole);
        reader.map(|reader| reader.access).or_else(token)
    }
}

/// Returns true if a token may read a feed, or the feed that it filters: then it may read all of its items.
pub(crate) fn reads(token: &NamedToken, feed: &FeedId, log: &FeedId) -> bool {
    [feed, log].into_iter().any(|feed| token.may(TokenRight::Read, feed.as_str()))
}

/// Makes the readers of a feed. One with a filter that the running server does not have yet is left out.
fn readers(
    feed: &FeedId,
    new: &[ReaderConfig],
    running: &[ReaderConfig],
    left: &mut Vec<String>,
) -> Vec<FeedReader> {
    let mut readers = Vec::new();
    for (index, reader) in new.iter().enumerate() {
        let access = match &reader.filter {
            None => Some(Access::Whole),
            // Views are found by the index of a reader with this filter at the start.
            some => running.iter().position(|known| known.filter == *some).map(Access::Reader),
        };
        let Some(access) = access else {
            left.push(format!("reader {} of feed {feed} has a new filter", index + 1));
            continue;
        };
        let name = format!("reader {} of {feed}", index + 1).into();
        readers.push(FeedReader { name, digest: TokenDigest::of_configured(&reader.token), access });
    }
    readers
}

/// Compares digests in constant time.
fn is_equal(one: &TokenDigest, other: &TokenDigest) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

/// Returns the first match, after looking at all: the position of a match would show in the time taken.
fn first<'a, T: 'a>(all: impl Iterator<Item = &'a T>, matches: impl Fn(&T) -> bool) -> Option<&'a T> {
    all.fold(None, |found, one| {
        let is_match = matches(one);
        found.or_else(|| is_match.then_some(one))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, Path::new("towpath.toml")).unwrap()
    }

    fn id(name: &str) -> FeedId {
        FeedId::new(name).unwrap()
    }

    const RUNNING: &str = "
        [server]
        tokens = ['old']
        [[token]]
        name = 'ci'
        token = 'ci-token'
        rights = ['publish']
        feeds = ['orders-*']
        [[feed]]
        id = 'own'
        readers = ['whole', { token = 'part', filter = { tags = ['a'] } }]
        ";

    #[test]
    fn rights_are_for_matching_feeds() {
        let set = TokenSet::new(&config(RUNNING));
        let ci = set.find("ci-token").unwrap();
        assert!(ci.may(TokenRight::Publish, "orders-eu") && !ci.may(TokenRight::Publish, "own"));
        assert!(!ci.may(TokenRight::Read, "orders-eu") && !ci.may(TokenRight::Admin, "orders-eu"));
        assert!(set.find("old").unwrap().may(TokenRight::Admin, "own"));
        assert!(set.find("whole").is_none() && set.find("").is_none() && !set.is_open());
        let names = ["ci-token", "old", "part", "x"].map(|token| set.name_of(token));
        assert_eq!(
            names.each_ref().map(Option::as_deref),
            [Some("ci"), Some("server.tokens 1"), Some("reader 2 of own"), None]
        );
        assert_eq!(set.reader(&id("own"), "part"), Some(Access::Reader(1)));
        assert_eq!(set.reader(&id("own"), "ci-token"), None);
        assert!(!format!("{set:?}").contains("token\""), "{set:?}");
    }

    #[test]
    fn reading_tokens_leave_a_server_open() {
        let set = TokenSet::new(&config("[[token]]\nname = 'a'\ntoken = 'b'\nrights = ['read']\n"));
        assert!(set.is_open() && set.find("b").is_some());
    }

    #[test]
    fn reloading_keeps_the_filters_of_the_start() {
        let running = config(RUNNING);
        // The readers change places, and one is new.
        let new = "
            [[feed]]
            id = 'own'
            readers = [{ token = 'part-2', filter = { tags = ['a'] } }, { token = 'x', filter = { tags = ['b'] } }]
            [[feed]]
            id = 'new'
            ";
        let (set, left) =
            TokenSet::reloaded(&config(new), &running.server, running.feeds.iter().map(AsRef::as_ref));
        assert_eq!(set.reader(&id("own"), "part-2"), Some(Access::Reader(1)));
        assert_eq!(set.reader(&id("own"), "part"), None);
        assert_eq!(set.reader(&id("own"), "x"), None);
        assert_eq!(left, ["reader 2 of feed own has a new filter", "feed new is new"]);
        assert!(set.is_open());
    }
}
