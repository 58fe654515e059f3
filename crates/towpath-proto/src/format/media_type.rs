//! Media types (RFC 9110, section 8.3.1).

/// Returns a media type without its parameters, as written: `Text/HTML; charset=utf-8` gives `Text/HTML`.
pub fn essence(media_type: &str) -> &str {
    media_type.split(';').next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_left_out() {
        for (given, expected) in [
            ("text/html", "text/html"),
            (" Text/HTML ; charset=utf-8; q=1", "Text/HTML"),
            (";", ""),
            ("", ""),
        ] {
            assert_eq!(essence(given), expected, "{given:?}");
        }
    }
}
