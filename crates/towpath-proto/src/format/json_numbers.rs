//! Numbers of JSON that neither integers of 64 bits nor doubles hold.

use std::borrow::Cow;

use super::jcs::lexeme;

/// Digits that every integer of 64 bits has room for.
const SAFE_DIGITS: usize = 18;
/// Length from which a number without an exponent may be beyond the range of a double.
const LONG: usize = 300;

/// Returns a JSON text with each number that no value in memory holds as a text with the same digits.
///
/// These are integers beyond 64 bits, and numbers beyond the range of a double. JSON has no largest number (RFC 8259,
/// section 6), so they are no fault of a document. RFC 7493, section 2.2, recommends texts for them. Other decimals become
/// the nearest double, as in most readers.
pub(crate) fn numbers_as_text(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let (mut out, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => at = end_of_string(bytes, at),
            b'-' | b'0'..=b'9' => {
                let Ok(number) = lexeme(&bytes[at..]) else {
                    // The parser names the fault.
                    at += 1;
                    continue;
                };
                let end = at + number.len();
                if !is_held(number) {
                    out.push_str(&text[copied..at]);
                    out.extend(["\"", number, "\""]);
                    copied = end;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

/// Returns the offset behind the string that begins at `at`.
fn end_of_string(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    bytes.len()
}

/// Returns true if 64 bits or a double hold the number, but for rounding.
fn is_held(number: &str) -> bool {
    if number.bytes().any(|b| matches!(b, b'.' | b'e' | b'E')) {
        let may_be_beyond = number.len() > LONG || number.bytes().any(|b| matches!(b, b'e' | b'E'));
        return !may_be_beyond || number.parse().is_ok_and(|value| is_in_range(number, value));
    }
    number.len() <= SAFE_DIGITS || number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok()
}

/// Returns true if a double of this value stands for the number: it is neither infinite nor zero in its place.
fn is_in_range(number: &str, value: f64) -> bool {
    let mantissa = number.split(['e', 'E']).next().unwrap_or_default();
    value.is_finite() && (value != 0.0 || !mantissa.bytes().any(|b| matches!(b, b'1'..=b'9')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_that_nothing_holds_become_texts() {
        for same in [
            r#"{"a":[0,-0,1.50,1e300,0e999,-9223372036854775808,18446744073709551615,0.1234567890123456789]}"#,
            r#"{"1e400 \" 123456789012345678901":"a \\","b":"\\\" 1e400"}"#,
            r#"["cut 1e400"#,
            r#"["cut \"#,
            "[1.,-,01e]",
            "",
        ] {
            assert!(matches!(numbers_as_text(same), Cow::Borrowed(_)), "{same}");
        }
        for (written, expected) in [
            (r#"{"é":1e400,"b":-1E+400}"#, r#"{"é":"1e400","b":"-1E+400"}"#),
            ("[1e-400,18446744073709551616]", r#"["1e-400","18446744073709551616"]"#),
            ("-9223372036854775809", r#""-9223372036854775809""#),
        ] {
            assert_eq!(numbers_as_text(written), expected);
        }
        let long = "1".repeat(400);
        assert_eq!(numbers_as_text(&format!("{long}.5")), format!("\"{long}.5\""));
    }

    #[test]
    fn every_number_is_read() {
        for written in ["1e400", "-1e400", "1e308", "1.7976931348623159e308", "1e-400", "2e-324"] {
            let text = numbers_as_text(written);
            assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{written}");
        }
    }
}
