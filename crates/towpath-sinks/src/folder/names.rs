//! File names of ids: safe on every file system, readable, and reversible.
//!
//! Letters, digits, `-`, `_` and inner dots stay; any other byte becomes `%XX`. Names with capital letters end in `~` and
//! the hex digits of a bit per letter, because `A` and `a` are one file where case does not count. A name that is too
//! long keeps its first characters and ends in `~~` and a digest; the index, and the file itself, have its id.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Maximum length of a name without its ending; file systems allow 255 bytes.
const MAX_NAME: usize = 180;
/// Kept of a name that is too long.
const KEPT: usize = 100;

/// Names that Windows keeps for devices, with any ending.
const DEVICES: [&str; 4] = ["con", "prn", "aux", "nul"];

/// Returns the file name of an id or of a feed's name, without an ending.
pub fn encode(id: &str) -> String {
    let mut name = String::with_capacity(id.len() + 8);
    let bytes = id.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(*byte)),
            // Hidden files, the folder itself, the one above, and endings that Windows drops.
            b'.' if at != 0 && at + 1 != bytes.len() => name.push('.'),
            _ => {
                let _ = write!(name, "%{byte:02x}");
            }
        }
    }
    if is_device(&name) {
        name = format!("%{:02x}{}", name.as_bytes()[0], &name[1..]);
    }
    let capitals = capital_bits(id);
    if name.len() + capitals.len() > MAX_NAME {
        // Not within an escape.
        let end = (0..=KEPT).rev().find(|end| !name[end.saturating_sub(2)..*end].contains('%'));
        name.truncate(end.unwrap_or(0));
        return format!("{}~~{}", name.to_ascii_lowercase(), hex::encode(Sha256::digest(id.as_bytes())));
    }
    if capitals.is_empty() { name } else { format!("{name}~{capitals}") }
}

/// Returns the id of a file name; `None` for one that was too long, or is not ours.
pub fn decode(name: &str) -> Option<String> {
    let letters = name.split('~').next()?;
    let mut bytes = Vec::with_capacity(letters.len());
    let mut rest = letters.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    // A shortened name does not come back.
    String::from_utf8(bytes).ok().filter(|id| encode(id) == name)
}

fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_numbered =
        |kind: &str| stem.strip_prefix(kind).is_some_and(|number| matches!(number.as_bytes(), [b'0'..=b'9']));
    DEVICES.contains(&stem.as_str()) || is_numbered("com") || is_numbered("lpt")
}

/// Returns a bit per letter, first letter first, as hex digits; nothing if none is a capital.
fn capital_bits(id: &str) -> String {
    let letters: Vec<bool> =
        id.bytes().filter(u8::is_ascii_alphabetic).map(|byte| byte.is_ascii_uppercase()).collect();
    if !letters.contains(&true) {
        return String::new();
    }
    let digit = |bits: &[bool]| {
        let value = bits.iter().enumerate().map(|(at, bit)| u32::from(*bit) << at).sum();
        char::from_digit(value, 16).unwrap_or('0')
    };
    let digits: String = letters.chunks(4).map(digit).collect();
    // The rest are small letters.
    digits.trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn plain_ids_stay_readable() {
        for (id, name) in [
            ("first", "first"),
            ("2024-01.v2", "2024-01.v2"),
            ("CVE-2024-1", "CVE-2024-1~7"),
            ("cve-2024-1", "cve-2024-1"),
            ("a/b", "a%2fb"),
            ("..", "%2e%2e"),
            (".hidden", "%2ehidden"),
            ("end.", "end%2e"),
            ("nul", "%6eul"),
            ("COM1.txt", "%43OM1.txt~7"),
            ("a\0b\n", "a%00b%0a"),
            ("é", "%c3%a9"),
            ("a~b", "a%7eb"),
        ] {
            assert_eq!(encode(id), name);
            assert_eq!(decode(name).as_deref(), Some(id));
        }
    }

    #[test]
    fn names_are_distinct_where_case_does_not_count_and_are_never_too_long() {
        let long = "x".repeat(2048);
        let ids = ["a", "A", "aB", "Ab", "ab", "AB", "é", "É", &long, &long.to_uppercase(), &"%".repeat(700)];
        let mut seen = HashMap::new();
        for id in ids {
            let name = encode(id);
            assert!(name.len() <= 255 - ".json".len() && name.is_ascii(), "{name}");
            assert_eq!(seen.insert(name.to_ascii_lowercase(), id), None, "{id}");
            assert_eq!(decode(&name), (id.len() <= 60).then(|| id.to_owned()), "{name}");
        }
    }
}
