//! Numbers: parsing in JSON text, and formatting as in ECMAScript and Python.

use std::borrow::Cow;

/// Returns the number at the start of `text`, by JSON's grammar, or the number of valid bytes.
pub(crate) fn lexeme(text: &[u8]) -> Result<&str, usize> {
    let digits = |from: usize| text[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let some_digits = |from: usize| match digits(from) {
        0 => Err(from),
        count => Ok(from + count),
    };
    let mut at = usize::from(text.first() == Some(&b'-'));
    at = if text.get(at) == Some(&b'0') { at + 1 } else { some_digits(at)? };
    if text.get(at) == Some(&b'.') {
        at = some_digits(at + 1)?;
    }
    if matches!(text.get(at), Some(b'e' | b'E')) {
        at += 1;
        at += usize::from(matches!(text.get(at), Some(b'+' | b'-')));
        at = some_digits(at)?;
    }
    std::str::from_utf8(&text[..at]).map_err(|e| e.valid_up_to())
}

/// Returns `true` for an integer literal, without fraction and exponent.
fn is_whole(lexeme: &str) -> bool {
    !lexeme.bytes().any(|b| matches!(b, b'.' | b'e' | b'E'))
}

/// Formats a number as ECMAScript's `Number.toString` (RFC 8785, section 3.2.2.3). `None` for an integer
/// beyond ±(2^53 - 1) and for a number beyond the range of a double.
pub(super) fn ecmascript(lexeme: &str) -> Option<Cow<'_, str>> {
    // Beyond this, ECMAScript cannot hold every integer, so two readers could see different values.
    const SAFE: i64 = (1 << 53) - 1;
    if is_whole(lexeme) {
        if lexeme == "-0" {
            return Some("0".into());
        }
        let fits = lexeme.parse::<i64>().is_ok_and(|n| (-SAFE..=SAFE).contains(&n));
        return fits.then_some(Cow::Borrowed(lexeme));
    }
    let value: f64 = lexeme.parse().ok().filter(|v: &f64| v.is_finite())?;
    Some(ryu_js::Buffer::new().format_finite(value).to_owned().into())
}

/// Formats a number as Python: integers of any size unchanged, others by `repr`.
pub(super) fn python(lexeme: &str) -> Option<Cow<'_, str>> {
    if is_whole(lexeme) {
        return Some(if lexeme == "-0" { "0".into() } else { lexeme.into() });
    }
    let value: f64 = lexeme.parse().ok()?;
    Some(repr(value).into())
}

/// Formats a float as Python's `repr`: the shortest digits that parse back, in fixed notation for exponents
/// from -4 to 15, else with an exponent of at least two digits.
fn repr(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let fixed = format!("{value}");
        return if fixed.contains('.') { fixed } else { fixed + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}
