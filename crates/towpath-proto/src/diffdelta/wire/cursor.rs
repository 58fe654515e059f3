//! Cursors, and their computation from a document (sections 2.1 and 3).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::format::jcs::{self, JcsError, Style};
use crate::item::write_sha256;

/// Top-level members that a cursor does not cover (section 3.1, step 2).
// Nested members of these names stay covered: a source's own cursor in `sources` is content.
pub const VOLATILE: [&str; 6] =
    ["generated_at", "hash", "prev_hash", "cursor", "prev_cursor", "cursor_basis"];

/// Name of the canonicalization method, the only one that the text defines (section 3.1).
pub const BASIS: &str = "canonical_v1";

/// A SHA-256 digest, written as `sha256:` and 64 lower-case hex digits (section 2.1).
///
/// Serves for cursors and for the hashes of files (section 2.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cursor(pub [u8; 32]);

impl Cursor {
    /// The zero cursor: "This source has never had a successful fetch" (section 2.1).
    pub const ZERO: Self = Self([0; 32]);

    /// Hashes `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns true for the zero cursor.
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }

    /// Returns the 64 hex digits, without `sha256:`.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }

    /// Returns the first 12 hex digits, as in the file name of a snapshot (section 1.3).
    pub fn short(&self) -> String {
        hex::encode(&self.0[..6])
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_sha256(f, &self.0)
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error: the text is not `sha256:` and 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not sha256: and 64 lower-case hex digits")]
pub struct CursorError(String);

impl FromStr for Cursor {
    type Err = CursorError;
    fn from_str(text: &str) -> Result<Self, CursorError> {
        // The text comes from another publisher and may be megabytes long; an error quotes only its start.
        let bad = || CursorError(text.chars().take(90).collect());
        // Strict on purpose: two spellings of a cursor would compare as different in every client.
        let digits = text.strip_prefix("sha256:").ok_or_else(bad)?;
        if digits.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| bad())?;
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Cursor {
    type Error = CursorError;
    fn try_from(text: String) -> Result<Self, CursorError> {
        text.parse()
    }
}

impl From<Cursor> for String {
    fn from(cursor: Cursor) -> Self {
        cursor.to_string()
    }
}

/// Computes the cursor of a document by canonical_v1 (section 3.1).
pub fn recompute(document: &[u8], style: Style) -> Result<Cursor, JcsError> {
    // Only top-level members are removed (section 3.1, step 2), never the nested ones.
    Ok(Cursor::of(&jcs::canonical_without(document, style, &VOLATILE)?))
}

/// Result of verifying the cursor that a document claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The cursor matches the RFC 8785 form.
    Jcs,
    /// The cursor matches only the form of Python's `json.dumps`, which the text allows (section 3.1).
    Python,
    /// The cursor matches neither form.
    Differs,
}

/// Recomputes a document's cursor and compares it with the claimed one.
///
/// RFC 8785 cannot write a number beyond a double's precision; Python's form may still prove such a document.
/// Fails if neither form can represent the document.
pub fn prove(document: &[u8], claimed: &str) -> Result<Proof, JcsError> {
    let holds = |style| recompute(document, style).map(|c| c.to_string() == claimed);
    // RFC 8785 first: it is the standard, and for most documents both forms are the same bytes.
    if holds(Style::Jcs) == Ok(true) {
        return Ok(Proof::Jcs);
    }
    Ok(if holds(Style::Python)? { Proof::Python } else { Proof::Differs })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 2.1: `sha256:<64-char lowercase hex>`.
    #[test]
    fn cursors_round_trip_as_text() {
        let zero = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
        assert_eq!(zero.parse(), Ok(Cursor::ZERO));
        assert_eq!(Cursor::ZERO.to_string(), zero);
        let one = Cursor::of(b"{}");
        assert_eq!(one.to_string().parse(), Ok(one));
        assert_eq!(one.short(), "44136fa355b3");
        for bad in
            ["", "sha256:", &zero[..70], &zero.replace("sha256", "SHA256"), &zero.replacen('0', "A", 1)]
        {
            assert!(bad.parse::<Cursor>().is_err(), "{bad}");
        }
    }

    /// Section 3.1: only top-level volatile members are left out. Either number style proves a cursor.
    #[test]
    fn a_cursor_is_proved_in_either_style() {
        let document = br#"{"generated_at":"x","risk":{"score":0.0},"sources":{"a":{"cursor":"c"}}}"#;
        let jcs = Cursor::of(br#"{"risk":{"score":0},"sources":{"a":{"cursor":"c"}}}"#).to_string();
        let python = Cursor::of(br#"{"risk":{"score":0.0},"sources":{"a":{"cursor":"c"}}}"#).to_string();
        assert_eq!(prove(document, &jcs), Ok(Proof::Jcs));
        assert_eq!(prove(document, &python), Ok(Proof::Python));
        assert_eq!(prove(document, "sha256:x"), Ok(Proof::Differs));
        assert!(prove(b"{", "sha256:x").is_err());
    }
}
