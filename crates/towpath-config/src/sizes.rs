//! Sizes in the configuration.

use std::num::NonZeroUsize;

use serde::de::{Deserialize as _, Deserializer, Error as _};

use super::number_or_text::NumberOrText;

/// Units and their bytes. The letters' case is ignored.
const UNITS: [(&str, u64); 9] = [
    ("b", 1),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// Integer type of a key that holds a size.
pub(super) trait SizeNumber: Sized {
    /// Converts a number; `None` if it does not fit.
    fn of(number: u64) -> Option<Self>;
}

impl SizeNumber for u64 {
    fn of(number: u64) -> Option<Self> {
        Some(number)
    }
}

impl SizeNumber for u32 {
    fn of(number: u64) -> Option<Self> {
        number.try_into().ok()
    }
}

impl SizeNumber for usize {
    fn of(number: u64) -> Option<Self> {
        number.try_into().ok()
    }
}

impl SizeNumber for NonZeroUsize {
    fn of(number: u64) -> Option<Self> {
        Self::new(usize::of(number)?)
    }
}

/// Deserialises a size in bytes: a number, or a text such as `64 KiB`.
pub(super) fn bytes<'de, D: Deserializer<'de>, T: SizeNumber>(deserializer: D) -> Result<T, D::Error> {
    let number = match NumberOrText::deserialize(deserializer)? {
        NumberOrText::Number(number) => number,
        NumberOrText::Text(text) => parse_size(&text).map_err(D::Error::custom)?,
    };
    T::of(number).ok_or_else(|| D::Error::custom(format!("{number} bytes are out of range")))
}

/// Deserialises a size in bytes of a key that may be absent.
pub(super) fn some_bytes<'de, D: Deserializer<'de>, T: SizeNumber>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    bytes(deserializer).map(Some)
}

/// Deserialises a size in MiB: a number of MiB, or a text such as `64 MiB` or `1 GiB`.
pub(super) fn mebibytes<'de, D: Deserializer<'de>, T: SizeNumber>(deserializer: D) -> Result<T, D::Error> {
    let number = match NumberOrText::deserialize(deserializer)? {
        NumberOrText::Number(number) => number,
        NumberOrText::Text(text) => {
            let bytes = parse_size(&text).map_err(D::Error::custom)?;
            // "2 GB" means 1907.3 MiB. Rounded up, because a limit of 0 would forbid everything.
            bytes.div_ceil(1 << 20)
        }
    };
    T::of(number).ok_or_else(|| D::Error::custom(format!("{number} MiB are out of range")))
}

/// Parses a size such as `500 kB`, `64 MiB` or `1.5 GiB` into bytes.
///
/// # Errors
///
/// Text that is no size, with the reason.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let invalid = || format!("{text:?} is not a size such as \"500 kB\", \"64 MiB\" or \"1.5 GiB\"");
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(invalid)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().map_err(|_| invalid())?;
    let bytes = whole.checked_mul(*factor).ok_or_else(invalid)?;
    if fraction.is_empty() {
        return if number.ends_with('.') { Err(invalid()) } else { Ok(bytes) };
    }
    // Six digits are more than anybody means, and fit.
    if fraction.len() > 6 || *factor == 1 {
        return Err(invalid());
    }
    let part: u64 = fraction.parse().map_err(|_| invalid())?;
    let scale = 10_u64.pow(u32::try_from(fraction.len()).map_err(|_| invalid())?);
    let part = u128::from(part) * u128::from(*factor) / u128::from(scale);
    u64::try_from(part).ok().and_then(|part| bytes.checked_add(part)).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;
    use std::path::Path;

    #[test]
    fn units() {
        for (text, bytes) in [
            ("7 B", 7),
            ("500 kB", 500_000),
            ("64MiB", 64 << 20),
            (" 64 mib ", 64 << 20),
            ("1.5 GiB", 3 << 29),
            ("2 TB", 2_000_000_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for bad in
            ["", "MiB", "-1", "1 M", "1,5 GiB", "1. GiB", "1.5", "1e3", "99999999 TiB", "1 GiB x", "1000"]
        {
            assert!(parse_size(bad).unwrap_err().contains("is not a size"), "{bad}");
        }
    }

    #[test]
    fn a_number_has_the_unit_of_its_key() {
        let parse = |text: &str| Config::parse(text, Path::new("towpath.toml")).map_err(|e| e.to_string());
        let server = parse("[server]\ncache_mib = 2\nresponse_mib = \"1 GiB\"\nfetch_mib = \"100 MB\"")
            .unwrap()
            .server;
        assert_eq!((server.cache_mib, server.response_mib, server.fetch_mib), (2, 1024, 96));
        let feed = parse("[[feed]]\nid = \"aa\"\npage_bytes = \"64 KiB\"\n").unwrap().feeds.remove(0);
        assert_eq!(feed.page_bytes.unwrap().get(), 65_536);
        for bad in ["cache_mib = true", "cache_mib = -1", "cache_mib = \"1 M\"", "min_rate = \"1 TB\""] {
            let error = parse(&format!("[server]\n{bad}\n")).unwrap_err();
            assert!(error.contains("line 2, column"), "{bad}: {error}");
        }
    }
}
