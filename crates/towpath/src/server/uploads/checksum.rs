//! Checksum of a part of an upload (tus 1.0.0, extension checksum).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::document::route_error::{RouteError, RouteErrorKind};

/// Names of the algorithms. "The Server MUST support at least the SHA1 checksum algorithm identified by sha1."
pub(super) const ALGORITHMS: &str = "sha1,sha256";

enum Hasher {
    Sha1(Sha1),
    Sha256(Sha256),
}

/// Checksum that a part must have.
pub(super) struct Checksum {
    hasher: Hasher,
    expected: Vec<u8>,
}

impl Checksum {
    /// Reads `Upload-Checksum`; `None` without one.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, RouteError> {
        let Some(value) = headers.get("upload-checksum") else { return Ok(None) };
        let parts = value.to_str().ok().and_then(|text| text.trim().split_once(' '));
        let bad =
            || RouteError::bad_request("Upload-Checksum must be an algorithm and a checksum in Base 64");
        let (algorithm, checksum) = parts.ok_or_else(bad)?;
        let hasher = match algorithm {
            "sha1" => Hasher::Sha1(Sha1::new()),
            "sha256" => Hasher::Sha256(Sha256::new()),
            _ => {
                let shown: String = algorithm.chars().take(40).collect();
                return Err(RouteError::bad_request(format!(
                    "Upload-Checksum: {shown:?} is unknown; {ALGORITHMS} are known"
                )));
            }
        };
        let expected = STANDARD.decode(checksum.trim()).map_err(|_| bad())?;
        Ok(Some(Self { hasher, expected }))
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match &mut self.hasher {
            Hasher::Sha1(hasher) => hasher.update(bytes),
            Hasher::Sha256(hasher) => hasher.update(bytes),
        }
    }

    pub(super) fn matches(self) -> bool {
        let found = match self.hasher {
            Hasher::Sha1(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha256(hasher) => hasher.finalize().to_vec(),
        };
        found == self.expected
    }
}

/// Makes the error of a part with another checksum.
pub(super) fn mismatch() -> RouteError {
    RouteError::new(RouteErrorKind::Checksum, "the bytes have another checksum; send them again")
}
