//! `[[token]]`: a named token, with its rights and its feeds.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use towpath_proto::FeedId;

use super::problems::Problems;
use super::secret::Secret;

/// Begin of a token's hash in the configuration.
const HASH_PREFIX: &str = "sha256:";
/// Longest name of a token. It is in log lines.
const MAX_NAME: usize = 64;

/// A named token. Exactly one of `hash`, `token` and `token_file` says which token it is.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// Name of the token, for the log and for rate limits.
    #[schemars(example = &"ci")]
    pub name: String,
    /// SHA-256 of the token: `sha256:` and 64 hexadecimal digits. `towpath token new` prints it.
    #[schemars(example = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", extend("x-default" = "none; one of `hash`, `token` and `token_file` is needed"))]
    pub hash: Option<Secret>,
    /// The token itself, which is best taken from the environment: `"${CI_TOKEN}"`.
    #[schemars(example = "${CI_TOKEN}", extend("x-default" = "none; one of `hash`, `token` and `token_file` is needed"))]
    pub token: Option<Secret>,
    /// File with the token. It is read again when it changes.
    #[schemars(example = "/run/secrets/ci", extend("x-default" = "none; one of `hash`, `token` and `token_file` is needed"))]
    pub token_file: Option<PathBuf>,
    /// Permissions of the token.
    #[schemars(example = ["read", "publish"])]
    pub rights: Vec<TokenRight>,
    /// Feeds to which the rights apply, as ids or patterns such as `orders-*`.
    #[schemars(example = ["orders-*"], extend("x-default" = "all feeds"))]
    #[serde(default = "all_feeds")]
    pub feeds: Vec<FeedPattern>,
}

/// A permission of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenRight {
    /// Reading private feeds.
    Read,
    /// Putting, patching and deleting items.
    Publish,
    /// Everything, such as creating snapshots.
    Admin,
}

/// Id of a feed, in which one `*` may stand for any characters.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct FeedPattern {
    prefix: String,
    /// `None` without a `*`: the prefix is the whole id.
    suffix: Option<String>,
}

fn all_feeds() -> Vec<FeedPattern> {
    vec![FeedPattern { prefix: String::new(), suffix: Some(String::new()) }]
}

impl FeedPattern {
    /// Returns the id, if the pattern is that of one feed.
    pub fn as_id(&self) -> Option<&str> {
        self.suffix.is_none().then_some(self.prefix.as_str())
    }

    /// Returns true if the pattern has this feed.
    pub fn matches(&self, feed: &str) -> bool {
        let Some(suffix) = &self.suffix else { return feed == self.prefix };
        // The suffix is looked for behind the prefix, so that they cannot share characters: `ab*ba` does not
        // match `aba`.
        feed.strip_prefix(self.prefix.as_str()).is_some_and(|rest| rest.ends_with(suffix.as_str()))
    }
}

impl TryFrom<String> for FeedPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let Some((prefix, suffix)) = text.split_once('*') else {
            let id = FeedId::new(&text).map_err(|e| e.to_string())?;
            return Ok(Self { prefix: id.as_str().to_owned(), suffix: None });
        };
        let fits = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
        // One `*` keeps matching linear, and the pattern's meaning obvious.
        if !prefix.bytes().chain(suffix.bytes()).all(fits) {
            return Err(format!("{text:?} is not a feed's id with at most one *, such as orders-*"));
        }
        Ok(Self { prefix: prefix.to_owned(), suffix: Some(suffix.to_owned()) })
    }
}

/// SHA-256 of a token, by which the server knows it.
///
/// A plain hash is enough, and right for every request. Our tokens have 256 random bits, so that no dictionary and no
/// computing power finds one by its hash. A slow hash protects passwords, which people choose; here it would only let
/// strangers burn this server's time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// Hashes a token.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// Returns the digest of a token of the configuration, which may be written as its hash.
    pub fn of_configured(text: &Secret) -> Self {
        // `check_configured` has refused what begins as a hash and is none.
        Self::parse(text.expose()).unwrap_or_else(|| Self::of(text.expose()))
    }

    /// Checks a token of the configuration: one that begins as a hash and is none would be a token that the file shows.
    pub(super) fn check_configured(text: &Secret) -> Result<(), String> {
        if text.expose().starts_with(HASH_PREFIX) && Self::parse(text.expose()).is_none() {
            return Err(format!(
                "{HASH_PREFIX} is not followed by 64 hexadecimal digits; `towpath token hash` makes a hash of a token"
            ));
        }
        Ok(())
    }

    /// Parses `sha256:` and 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut digest = [0; 32];
        hex::decode_to_slice(text.strip_prefix(HASH_PREFIX)?, &mut digest).ok()?;
        Some(Self(digest))
    }

    /// Makes a digest of its bytes.
    pub fn from_bytes(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// Returns the digest's bytes. Compare them in constant time.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the form for the configuration.
    pub fn to_config(self) -> String {
        format!("{HASH_PREFIX}{}", hex::encode(self.0))
    }
}

impl std::fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenDigest(…)")
    }
}

impl TokenConfig {
    /// Returns the token's digest. Validation has made sure that there is one.
    pub fn digest(&self) -> Option<TokenDigest> {
        match (&self.hash, &self.token) {
            (Some(hash), _) => TokenDigest::parse(hash.expose()),
            (None, Some(token)) => Some(TokenDigest::of(token.expose())),
            (None, None) => None,
        }
    }

    /// Reads the token's file, if it has one. The path is relative to `folder`.
    pub(super) fn resolve(&mut self, folder: &Path) -> Result<(), String> {
        let Some(file) = &mut self.token_file else { return Ok(()) };
        *file = folder.join(&file);
        let read = read_secret(file).map_err(|e| format!("token_file {}: {e}", file.display()))?;
        self.token = Some(read);
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if self.name.is_empty() || self.name.len() > MAX_NAME || !self.name.chars().all(is_plain) {
            return Err(format!("name is not 1 to {MAX_NAME} letters, digits, ., _ and -"));
        }
        let given = [self.hash.is_some(), self.token.is_some(), self.token_file.is_some()];
        // With two of them, one would count and the other look as if it did.
        if given.into_iter().filter(|is_given| *is_given).count() != 1 {
            return Err(
                "it needs one of hash, token and token_file; `towpath token new` prints a hash".into()
            );
        }
        if self.hash.as_ref().is_some_and(|hash| TokenDigest::parse(hash.expose()).is_none()) {
            let why =
                "hash is not sha256: and 64 hexadecimal digits; `towpath token hash` makes one of a token";
            return Err(why.into());
        }
        if self.token.as_ref().is_some_and(Secret::is_blank) {
            return Err("token is empty".into());
        }
        // An empty list is more likely forgotten than meant, and a token without rights is hard to find.
        if self.rights.is_empty() {
            return Err("rights is empty; it may have read, publish and admin".into());
        }
        if self.feeds.is_empty() {
            return Err("feeds is empty; leave it out for all feeds".into());
        }
        Ok(())
    }
}

/// Reads a file with one secret, without the newline at its end.
pub(super) fn read_secret(file: &Path) -> Result<Secret, String> {
    use std::io::Read as _;

    let mut text = String::new();
    // Bounded: a mistaken path, such as a device, must not fill the memory.
    let opened = std::fs::File::open(file).map_err(|e| e.to_string())?;
    opened.take(MAX_SECRET + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > MAX_SECRET {
        return Err(format!("it has more than {MAX_SECRET} bytes, so it is no secret"));
    }
    // Editors end files with a newline, which is not part of the secret.
    let secret = Secret::from(text.trim_end_matches(['\r', '\n']));
    if secret.is_blank() { Err("it is empty".into()) } else { Ok(secret) }
}

/// Largest file with a secret, in bytes.
const MAX_SECRET: u64 = 64 << 10;

/// Checks that names and tokens are distinct.
pub(super) fn check_distinct(tokens: &[TokenConfig], plain: &[Secret], problems: &mut Problems) {
    let plain: Vec<TokenDigest> = plain.iter().map(TokenDigest::of_configured).collect();
    for (index, token) in tokens.iter().enumerate() {
        problems.enter("token", Some(index), format!("token {:?}: ", token.name));
        let earlier = &tokens[..index];
        problems.ensure(
            !earlier.iter().any(|other| other.name == token.name),
            "name",
            "the name is used twice",
        );
        // Without a digest it has another problem already.
        let Some(digest) = token.digest() else { continue };
        // Two entries with one token would leave open which rights apply.
        if let Some(other) = earlier.iter().find(|other| other.digest() == Some(digest)) {
            problems.add("", format!("it is the same token as {}", other.name));
        }
        let message = "it is one of [server] tokens as well, which have all rights";
        problems.ensure(!plain.contains(&digest), "", message);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn pattern(text: &str) -> FeedPattern {
        FeedPattern::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn patterns_select_feeds() {
        for (text, feed, matches) in [
            ("orders", "orders", true),
            ("orders", "orders-eu", false),
            ("orders-*", "orders-eu", true),
            ("orders-*", "orders-", true),
            ("orders-*", "old-orders-eu", false),
            ("*-eu", "orders-eu", true),
            ("*-eu", "orders-eu-2", false),
            ("ab*ba", "aba", false),
            ("ab*ba", "abba", true),
            ("*", "anything", true),
        ] {
            assert_eq!(pattern(text).matches(feed), matches, "{text} {feed}");
        }
        for bad in ["", "A", "a*b*", "or ders*", "a"] {
            assert!(FeedPattern::try_from(bad.to_owned()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn hashes_of_tokens() {
        let digest = TokenDigest::of("towpath_x");
        assert_eq!(TokenDigest::parse(&digest.to_config()), Some(digest));
        assert_eq!(TokenDigest::of_configured(&digest.to_config().as_str().into()), digest);
        assert_eq!(TokenDigest::of_configured(&"towpath_x".into()), digest);
        assert_eq!(TokenDigest::parse("sha256:00"), None);
    }

    #[test]
    fn invalid_tokens_are_named() {
        let parse = |text: &str| {
            let text = format!(
                "[server]\ntokens = ['older']\n[[token]]\nname = 'one'\ntoken = 'tok'\nrights = ['read']\n[[token]]\n{text}\n"
            );
            Config::parse(&text, Path::new("towpath.toml")).map_err(|e| e.to_string())
        };
        let good = "name = 'ci'\nhash = 'sha256:aa'\nrights = ['read']";
        let good = good.replace("aa'", &format!("{}'", "a0".repeat(32)));
        let config = parse(&good).unwrap();
        assert!(config.tokens[1].feeds[0].matches("any"));
        for (from, to, needle) in [
            ("sha256:", "sha1:", "hexadecimal"),
            ("name = 'ci'", "name = 'a b'", "name is not"),
            ("name = 'ci'", "name = 'one'", "twice"),
            ("name = 'ci'", "", "name"),
            ("'read'", "'write'", "publish"),
            ("'read'", "", "rights is empty"),
            ("'read']", "'read']\nfeeds = []", "feeds is empty"),
            ("'read']", "'read']\nfeeds = ['A']", "feed id"),
            ("'read']", "'read']\ntoken = 'x'", "one of hash"),
            ("'read']", "'read']\nright = 'x'", "right"),
        ] {
            let error = parse(&good.replace(from, to)).unwrap_err();
            assert!(error.contains(needle) && error.contains("towpath.toml"), "{to}: {error}");
        }
        let same =
            |token: &str| parse(&format!("name = 'ci'\ntoken = '{token}'\nrights = ['read']")).unwrap_err();
        assert!(same("tok").contains("same token as one") && same("older").contains("[server] tokens"));
        assert!(same(" ").contains("empty"));
        let missing = parse("name = 'ci'\ntoken_file = 'no/such'\nrights = ['read']").unwrap_err();
        assert!(missing.contains("\"ci\"") && missing.contains("no/such"), "{missing}");
    }
}
