//! Secrets and signatures of Standard Webhooks 1.0.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use sha2::Sha256;

/// Begin of every secret, by which scanners for leaked secrets find it.
const PREFIX: &str = "whsec_";
/// Shortest and longest key, in bytes (Standard Webhooks, "Signature scheme").
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Key that messages are signed with. Its `Debug` form hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(Vec<u8>);

/// A text is not a secret of a webhook. The message does not repeat the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The part after the prefix is not Base 64.
    #[error("the secret is not whsec_ and Base 64")]
    Base64,
    /// The key is too short to be safe, or longer than receivers take.
    #[error("the secret has {0} bytes, and must have 24 to 64: make one with `openssl rand -base64 32`")]
    Length(usize),
}

impl FromStr for WebhookSecret {
    type Err = SecretError;

    /// Parses a secret: `whsec_`, which may be missing, and the key in Base 64.
    fn from_str(text: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        let key =
            STANDARD.decode(text.strip_prefix(PREFIX).unwrap_or(text)).map_err(|_| SecretError::Base64)?;
        if KEY_BYTES.contains(&key.len()) { Ok(Self(key)) } else { Err(SecretError::Length(key.len())) }
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(…)")
    }
}

/// Returns the value of `webhook-signature`: one signature for each secret, so that receivers can change theirs.
pub(super) fn sign(secrets: &[WebhookSecret], id: &str, timestamp: &str, body: &[u8]) -> String {
    let signatures = secrets.iter().filter_map(|WebhookSecret(key)| {
        // HMAC takes keys of any length, so this cannot fail.
        let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
    });
    signatures.collect::<Vec<_>>().join(" ")
}

/// Makes the headers of a message that is sent now: its id, its time, and signatures if there are secrets.
pub fn signed_headers(secrets: &[WebhookSecret], id: &str, body: &[u8]) -> HeaderMap {
    let timestamp = jiff::Timestamp::now().as_second().to_string();
    let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    let mut set = |name: &'static str, value: &str| {
        // Ids, numbers and Base 64 are valid in headers.
        if let Ok(value) = value.parse() {
            headers.insert(name, value);
        }
    };
    set("webhook-id", id);
    set("webhook-timestamp", &timestamp);
    if !secrets.is_empty() {
        set("webhook-signature", &sign(secrets, id, &timestamp, body));
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification's reference libraries.
    #[test]
    fn the_reference_signature() {
        let secret: WebhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap();
        let signature =
            sign(&[secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn each_secret_signs() {
        let secrets =
            ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="];
        let secrets: Vec<WebhookSecret> = secrets.iter().map(|text| text.parse().unwrap()).collect();
        let both = sign(&secrets, "m", "1", b"{}");
        let each: Vec<String> =
            secrets.iter().map(|one| sign(std::slice::from_ref(one), "m", "1", b"{}")).collect();
        assert_eq!(both, each.join(" "));
        assert!(!format!("{secrets:?}").contains("MfKQ"));
    }

    #[test]
    fn secrets_that_are_none() {
        assert_eq!("whsec_not base 64".parse::<WebhookSecret>(), Err(SecretError::Base64));
        assert_eq!("whsec_c2hvcnQ=".parse::<WebhookSecret>(), Err(SecretError::Length(5)));
        assert_eq!("".parse::<WebhookSecret>(), Err(SecretError::Length(0)));
    }
}
