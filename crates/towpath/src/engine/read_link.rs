//! Read links: addresses that read one feed for a short time, for programs that cannot send a token.
//!
//! A browser's `EventSource` sends no `Authorization` header. A reader's server makes a link with its own token and
//! hands it to the browser. The link tells neither the token nor its digest.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::Request;
use jiff::Timestamp;
use sha2::Sha256;
use towpath_client::random::unguessable;
use towpath_proto::FeedId;

use crate::config::TokenDigest;
use crate::engine::request::parameters;

/// Parameter that holds a read link's signature.
pub(crate) const LINK: &str = "link";

const TIME: usize = 8;
const NONCE: usize = 16;
const DIGEST: usize = 32;
const SIGNED: usize = TIME + NONCE + DIGEST;

/// Read link, verified.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadLink {
    /// Digest of the token that made the link.
    pub(crate) reader: TokenDigest,
    /// Time from which it reads nothing.
    pub(crate) expires: Timestamp,
}

/// Returns the parameter of a query that holds a read link.
pub(crate) fn of_query(query: Option<&str>) -> Option<String> {
    parameters(query).find(|(name, _)| name == LINK).map(|(_, value)| value.into_owned())
}

/// Returns the end of the read link by which a request was authorised.
pub(crate) fn link_expiry<B>(request: &Request<B>) -> Option<Timestamp> {
    request.extensions().get::<ReadLink>().map(|link| link.expires)
}

impl ReadLink {
    /// Signs the link for a feed. `identity` is the data folder's secret, the same on all nodes.
    pub(crate) fn sign(&self, identity: &str, feed: &FeedId) -> String {
        let mut link = self.expires.as_second().to_be_bytes().to_vec();
        link.extend_from_slice(&unguessable().to_be_bytes());
        let mask = mask(identity, &link);
        link.extend(self.reader.as_bytes().iter().zip(mask).map(|(byte, mask)| byte ^ mask));
        let signature = signature(identity, feed, &link).finalize().into_bytes();
        link.extend_from_slice(&signature);
        URL_SAFE_NO_PAD.encode(link)
    }

    /// Verifies a link of a feed; `None` if it was altered, is another feed's, or has expired.
    pub(crate) fn verify(identity: &str, feed: &FeedId, text: &str, now: Timestamp) -> Option<Self> {
        let link = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (signed, tag) = link.split_at_checked(SIGNED)?;
        // In constant time, and before anything is believed.
        signature(identity, feed, signed).verify_slice(tag).ok()?;
        let (head, masked) = signed.split_at_checked(TIME + NONCE)?;
        let expires = Timestamp::from_second(i64::from_be_bytes(*head.first_chunk()?)).ok()?;
        let mut digest = [0; DIGEST];
        for ((byte, masked), mask) in digest.iter_mut().zip(masked).zip(mask(identity, head)) {
            *byte = masked ^ mask;
        }
        (now < expires).then_some(Self { reader: TokenDigest::from_bytes(digest), expires })
    }
}

/// Returns what hides the token's digest: a weak token could be guessed from it.
fn mask(identity: &str, head: &[u8]) -> [u8; DIGEST] {
    keyed(identity, b"read-link/mask").chain_update(head).finalize().into_bytes().into()
}

fn signature(identity: &str, feed: &FeedId, signed: &[u8]) -> Hmac<Sha256> {
    // The fixed length of `signed` keeps it apart from the name.
    keyed(identity, b"read-link/signature").chain_update(signed).chain_update(feed.as_str())
}

/// A hash keyed by the data folder's secret, for one use of it.
fn keyed(identity: &str, purpose: &[u8]) -> Hmac<Sha256> {
    // Keys of HMAC have any length, so this cannot fail; an error would make links that no node accepts.
    let mac = Hmac::<Sha256>::new_from_slice(identity.as_bytes())
        .unwrap_or_else(|_| Hmac::new(&Default::default()));
    mac.chain_update(purpose)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(name: &str) -> FeedId {
        FeedId::new(name).unwrap()
    }

    #[test]
    fn a_link_reads_its_feed_until_it_expires() {
        let now = Timestamp::from_second(1000).unwrap();
        let reader = TokenDigest::of("reader");
        let link = ReadLink { reader, expires: Timestamp::from_second(1060).unwrap() };
        let text = link.sign("secret", &feed("own"));
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')), "{text}");
        let verify = |identity: &str, name: &str, text: &str, second| {
            ReadLink::verify(identity, &feed(name), text, Timestamp::from_second(second).unwrap())
        };
        let verified = ReadLink::verify("secret", &feed("own"), &text, now).unwrap();
        assert_eq!((verified.reader.as_bytes(), verified.expires), (reader.as_bytes(), link.expires));
        assert!(verify("secret", "own", &text, 1059).is_some());
        assert!(verify("secret", "own", &text, 1060).is_none(), "expired");
        assert!(verify("other", "own", &text, 1000).is_none(), "another data folder");
        assert!(verify("secret", "other", &text, 1000).is_none(), "another feed");
        assert_ne!(link.sign("secret", &feed("own")), text, "each link has a mask of its own");
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        assert!(!bytes.windows(8).any(|part| reader.as_bytes().starts_with(part)), "the digest is hidden");
        for index in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[index] ^= 1;
            assert!(verify("secret", "own", &URL_SAFE_NO_PAD.encode(altered), 1000).is_none(), "{index}");
            assert!(verify("secret", "own", &URL_SAFE_NO_PAD.encode(&bytes[..index]), 1000).is_none());
        }
        assert!(
            verify("secret", "own", "", 1000).is_none() && verify("secret", "own", "é&=", 1000).is_none()
        );
    }
}
