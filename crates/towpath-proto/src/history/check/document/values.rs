//! Syntax of values in feed documents, by the texts that RFC 4287 and RSS 2.0 name.
//!
//! Each function returns true if a value fits.

use base64::Engine as _;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use url::Url;

use super::xml_name::is_space;
use crate::format::is_iri;

/// Date of RFC 4287, section 3.3: RFC 3339 with an upper-case T, and Z or an offset.
pub(super) fn is_rfc_3339(text: &str) -> bool {
    // The parser of timestamps accepts more, such as a space, a lower-case t or an offset without a colon.
    let bytes = text.as_bytes();
    let pattern = b"0000-00-00T00:00:00";
    let fits = bytes.len() > pattern.len()
        && pattern.iter().zip(bytes).all(|(p, b)| if *p == b'0' { b.is_ascii_digit() } else { p == b });
    let rest = fits.then(|| text.get(pattern.len()..)).flatten().unwrap_or_default();
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => {
            let zone = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            if zone.len() == fraction.len() { "" } else { zone }
        }
        None => rest,
    };
    let is_offset = matches!(zone.as_bytes(), [b'+' | b'-', h1, h2, b':', m1, m2]
        if [h1, h2, m1, m2].iter().all(|d| d.is_ascii_digit()));
    let is_leap = text.get(17..19) == Some("60");
    let whole = match is_leap {
        true => format!("{}59{}", &text[..17], &text[19..]),
        false => text.to_owned(),
    };
    // A timestamp cannot express a leap second, which ends a day in UTC (RFC 3339, section 5.7).
    let ends_day = |time: Timestamp| (time.as_second() + 1).rem_euclid(86_400) == 0;
    let is_time = whole.parse().is_ok_and(|time: Timestamp| !is_leap || ends_day(time));
    (zone == "Z" || is_offset) && is_time
}

/// Date of RFC 3339 as JSON Feed has it, where lower-case letters are allowed.
pub(super) fn is_json_date(text: &str) -> bool {
    is_rfc_3339(&text.to_ascii_uppercase())
}

/// Date of RFC 822 with a year of two or four digits, and a weekday that is right if there is one.
pub(super) fn is_rfc_822(text: &str) -> bool {
    // The obsolete syntax of RFC 2822 (section 4.3) includes the two-digit years of RFC 822.
    rfc2822::parse(text).is_ok() && is_zone(text)
}

/// Returns true if a date ends with a zone of RFC 822, section 5.1. Parsers take any other name for UTC.
fn is_zone(date: &str) -> bool {
    let date =
        date.trim_end().strip_suffix(')').map_or(date, |date| date.split('(').next().unwrap_or_default());
    let zone = date.split_whitespace().next_back().unwrap_or_default();
    let is_offset = zone.len() == 5 && zone.starts_with(['+', '-']);
    let is_letter = zone.len() == 1 && !zone.eq_ignore_ascii_case("J");
    const NAMES: [&str; 10] = ["UT", "GMT", "EST", "EDT", "CST", "CDT", "MST", "MDT", "PST", "PDT"];
    is_offset || is_letter || NAMES.iter().any(|name| name.eq_ignore_ascii_case(zone))
}

/// Absolute IRI (RFC 3987), with a host where the scheme is HTTP's.
pub(super) fn is_absolute(text: &str) -> bool {
    is_iri(text) && text.matches('#').nth(1).is_none() && has_host(text) && has_good_escapes(text)
}

/// IRI reference (RFC 3987, section 2.2): absolute or relative.
pub(super) fn is_reference(text: &str) -> bool {
    let bad = |c: char| c.is_whitespace() || c.is_control() || "<>\"{}|\\^`".contains(c);
    let scheme = text.split(['/', '?', '#']).next().and_then(|first| first.split_once(':'));
    // The first segment of a relative reference has no colon, else it is a scheme (RFC 3986, section 4.2).
    let has_bad_scheme = scheme.is_some_and(|(scheme, _)| {
        !scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            || !scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
    });
    !text.contains(bad)
        && !has_bad_scheme
        && text.matches('#').nth(1).is_none()
        && has_host(text)
        && has_good_escapes(text)
}

fn has_host(text: &str) -> bool {
    let lower = text.get(..8.min(text.len())).unwrap_or_default().to_ascii_lowercase();
    if lower.starts_with("http:") || lower.starts_with("https:") {
        // `http:/path` and `http:path` resolve to something else than their writers meant.
        let authority = text.split_once("://").map(|(_, rest)| rest);
        return authority.is_some_and(|rest| !rest.starts_with(['/', '?', '#', ':']))
            && Url::parse(text).is_ok();
    }
    true
}

fn has_good_escapes(text: &str) -> bool {
    let mut escapes = text.split('%').skip(1).map(str::as_bytes);
    escapes.all(|after| matches!(after, [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit()))
}

/// Absolute `http` or `https` URL.
pub(super) fn is_http(text: &str) -> bool {
    is_absolute(text) && Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

/// Mailbox of RFC 2822, section 3.4.1, without comments.
pub(super) fn is_email(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    let is_atom = |c: char| c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c);
    let is_dotted = |text: &str| text.split('.').all(|part| !part.is_empty() && part.chars().all(is_atom));
    let is_quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    let is_literal = domain.starts_with('[') && domain.ends_with(']');
    (is_dotted(local) || is_quoted) && (is_dotted(domain) || is_literal)
}

/// Contact of RSS 2.0: an address, perhaps with a name in brackets after it.
pub(super) fn is_contact(text: &str) -> bool {
    let (address, name) = text.split_once(is_space).unwrap_or((text, ""));
    let name = name.trim();
    is_email(address) && (name.is_empty() || (name.starts_with('(') && name.ends_with(')')))
}

/// Media type of RFC 4288: type and subtype, perhaps with parameters.
pub(super) fn is_media_type(text: &str) -> bool {
    let is_token = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
    };
    let mut parts = text.split(';');
    let (kind, subtype) = parts.next().unwrap_or_default().trim().split_once('/').unwrap_or_default();
    is_token(kind) && is_token(subtype) && parts.all(|p| p.trim().is_empty() || p.contains('='))
}

/// Language tag of RFC 3066 and its successors, by form.
pub(super) fn is_language(text: &str) -> bool {
    let mut parts = text.split('-');
    let first = parts.next().unwrap_or_default();
    let is_part =
        |part: &str| (1..=8).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphanumeric());
    let is_first = (2..=8).contains(&first.len()) || matches!(first, "i" | "x" | "I" | "X");
    is_first && first.bytes().all(|b| b.is_ascii_alphabetic()) && parts.all(is_part)
}

/// Base64 (RFC 4648, section 4), perhaps with line breaks.
pub(super) fn is_base64(text: &str) -> bool {
    let dense: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    base64::engine::general_purpose::STANDARD.decode(dense).is_ok()
}

/// Whole number of decimal digits.
pub(super) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Relation of a link: a registered name's form or an IRI (RFC 4287, section 4.2.7.2).
pub(super) fn is_relation(text: &str) -> bool {
    let is_name = !text.is_empty()
        && text.chars().all(|c| !c.is_whitespace() && !c.is_control() && !":/?#[]<>\"{}|\\^`".contains(c));
    is_name || is_iri(text)
}
