//! Decoding and order of keys.

/// Decodes a string with the shortest escapes.
pub(super) fn decode(canonical: &[u8]) -> String {
    let text = String::from_utf8_lossy(canonical);
    let mut decoded = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            decoded.push(c);
            continue;
        }
        decoded.push(match chars.next() {
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                let code = chars.by_ref().take(4).fold(0, |n, d| n * 16 + d.to_digit(16).unwrap_or(0));
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            Some(other) => other,
            None => break,
        });
    }
    decoded
}

/// Compares two UTF-8 texts by their UTF-16 code units (RFC 8785, section 3.2.3).
///
/// That is byte order, with an exception: U+E000 to U+FFFF (lead bytes EE and EF) come after characters that
/// UTF-16 writes as surrogates (lead bytes F0 and up).
pub(super) fn utf16_order(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    let weight = |byte: u8| if matches!(byte, 0xee | 0xef) { 0xff } else { byte };
    match a.iter().zip(b).find(|(x, y)| x != y) {
        Some((&x, &y)) => weight(x).cmp(&weight(y)).then(x.cmp(&y)),
        None => a.len().cmp(&b.len()),
    }
}
