//! Signatures of deliveries (WebSub 7.1, PubSubHubbub 0.3 section 7.4): `X-Hub-Signature: sha256=…`.

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Sha256, Sha384, Sha512};

use super::Dialect;

/// Name of the header.
pub const HEADER: &str = "x-hub-signature";

/// Hash algorithms of signatures (WebSub 7.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Required by PubSubHubbub 0.3 and 0.4.
    Sha1,
    /// Used for all other deliveries.
    Sha256,
    /// Accepted from other hubs only.
    Sha384,
    /// Accepted from other hubs only.
    Sha512,
}

impl Algorithm {
    /// Returns the algorithm for signing deliveries in a dialect.
    pub fn of(dialect: Dialect) -> Self {
        match dialect {
            // PubSubHubbub 0.3, section 7.4, knows only SHA-1.
            Dialect::PubSubHubbub => Self::Sha1,
            Dialect::WebSub => Self::Sha256,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    fn named(name: &str) -> Option<Self> {
        let all = [Self::Sha1, Self::Sha256, Self::Sha384, Self::Sha512];
        // The method's case carries no meaning.
        all.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }
}

/// Reason why a delivery cannot be trusted. Its sender's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The signature is missing.
    #[error("the delivery is not signed")]
    Missing,
    /// The header is not `method=hex`, or the method is unknown.
    #[error("the signature is of no known kind")]
    Unreadable,
    /// The signature does not match.
    #[error("the signature does not match")]
    Wrong,
}

/// Returns the header's value: HMAC with the body as data and the secret as key.
pub fn sign(algorithm: Algorithm, secret: &[u8], body: &[u8]) -> String {
    let signature = match algorithm {
        Algorithm::Sha1 => {
            mac::<Hmac<Sha1>>(secret, body).map(|mac| hex::encode(mac.finalize().into_bytes()))
        }
        Algorithm::Sha256 => {
            mac::<Hmac<Sha256>>(secret, body).map(|mac| hex::encode(mac.finalize().into_bytes()))
        }
        Algorithm::Sha384 => {
            mac::<Hmac<Sha384>>(secret, body).map(|mac| hex::encode(mac.finalize().into_bytes()))
        }
        Algorithm::Sha512 => {
            mac::<Hmac<Sha512>>(secret, body).map(|mac| hex::encode(mac.finalize().into_bytes()))
        }
    };
    format!("{}={}", algorithm.name(), signature.unwrap_or_default())
}

/// Checks the header of a delivery in constant time, so that timing does not reveal a partial match.
///
/// # Errors
///
/// [`SignatureError`].
pub fn check(header: Option<&str>, secret: &[u8], body: &[u8]) -> Result<(), SignatureError> {
    let header = header.ok_or(SignatureError::Missing)?.trim();
    let (name, digits) = header.split_once('=').ok_or(SignatureError::Unreadable)?;
    // WebSub 7.1 allows any registered method; the subscriber decides which it trusts.
    let algorithm = Algorithm::named(name.trim()).ok_or(SignatureError::Unreadable)?;
    let given = hex::decode(digits.trim()).map_err(|_| SignatureError::Unreadable)?;
    let right = match algorithm {
        Algorithm::Sha1 => verify::<Hmac<Sha1>>(secret, body, &given),
        Algorithm::Sha256 => verify::<Hmac<Sha256>>(secret, body, &given),
        Algorithm::Sha384 => verify::<Hmac<Sha384>>(secret, body, &given),
        Algorithm::Sha512 => verify::<Hmac<Sha512>>(secret, body, &given),
    };
    if right { Ok(()) } else { Err(SignatureError::Wrong) }
}

/// Creates an HMAC over the body. HMAC accepts keys of any length, so this does not fail.
fn mac<M: Mac + KeyInit>(secret: &[u8], body: &[u8]) -> Option<M> {
    let mut mac = <M as KeyInit>::new_from_slice(secret).ok()?;
    mac.update(body);
    Some(mac)
}

fn verify<M: Mac + KeyInit>(secret: &[u8], body: &[u8], given: &[u8]) -> bool {
    // The comparison of the MAC type takes constant time.
    mac::<M>(secret, body).is_some_and(|mac| mac.verify_slice(given).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Algorithm; 4] = [Algorithm::Sha1, Algorithm::Sha256, Algorithm::Sha384, Algorithm::Sha512];

    /// RFC 2202, test case 2 (SHA-1); RFC 4231, test case 2 (SHA-2). WebSub 7.1: "method=signature where …
    /// signature is the hexadecimal representation".
    #[test]
    fn known_signatures() {
        let (secret, body) = (b"Jefe", b"what do ya want for nothing?");
        let expected = [
            "sha1=effcdf6ae5eb2fa2d27416d5f184df9c259a7c79",
            "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            "sha384=af45d2e376484031617f78d2b58a6b1b9c7ef464f5a01b47e42ec3736322445e8e2240ca5e69e2c78b3239ecfab21649",
            "sha512=164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea2505549758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737",
        ];
        for (algorithm, expected) in ALL.into_iter().zip(expected) {
            assert_eq!(sign(algorithm, secret, body), expected);
            assert_eq!(check(Some(expected), secret, body), Ok(()));
            assert_eq!(check(Some(&expected.to_uppercase()), secret, body), Ok(()));
        }
    }

    /// 0.3 section 7.4: "in the form sha1=signature where signature is a 40-byte, hexadecimal representation".
    #[test]
    fn each_text_has_its_method() {
        let signed = |dialect| sign(Algorithm::of(dialect), b"s", b"body");
        let old = signed(Dialect::PubSubHubbub);
        assert_eq!(old.strip_prefix("sha1=").map(str::len), Some(40));
        assert!(signed(Dialect::WebSub).starts_with("sha256="));
    }

    /// WebSub 7.1.2: what does not match is not to be believed, of whatever kind or length it is
    /// (websub.rocks, subscriber tests 301 and 302).
    #[test]
    fn what_is_not_right_is_wrong() {
        for algorithm in ALL {
            let right = sign(algorithm, b"secret", b"body");
            assert_eq!(check(Some(&right), b"secret", b"other"), Err(SignatureError::Wrong));
            assert_eq!(check(Some(&right), b"other", b"body"), Err(SignatureError::Wrong));
            assert_eq!(check(Some(&format!("{right}abcd")), b"secret", b"body"), Err(SignatureError::Wrong));
            let short = &right[..right.len() - 2];
            assert_eq!(check(Some(short), b"secret", b"body"), Err(SignatureError::Wrong));
        }
        for bad in ["", "sha256", "sha256=xyz", "md5=00", "=00", "sha256=0"] {
            assert_eq!(check(Some(bad), b"secret", b"body"), Err(SignatureError::Unreadable), "{bad:?}");
        }
        assert_eq!(check(Some("sha256="), b"secret", b"body"), Err(SignatureError::Wrong));
        assert_eq!(check(None, b"secret", b"body"), Err(SignatureError::Missing));
    }
}
