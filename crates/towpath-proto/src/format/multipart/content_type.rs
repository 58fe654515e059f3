//! The `Content-Type` of a multipart body (RFC 2046, section 5.1.1).

/// Header value of the form `value; name=value; …`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeaderFieldValue {
    /// Text before the first semicolon, trimmed.
    pub value: String,
    /// Parameters in order: names in lower case, values unquoted.
    pub params: Vec<(String, String)>,
}

/// Error: a header value is not of the form `value; name=value`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedValue {
    /// A parameter has no equals sign.
    #[error("parameter {index} has no '='")]
    NoEquals {
        /// Index of the parameter, from 0.
        index: usize,
    },
    /// A quotation mark is unclosed, or within an unquoted value.
    #[error("the quotation marks of parameter {index} are not balanced")]
    Quotes {
        /// Index of the parameter, from 0.
        index: usize,
    },
}

impl HeaderFieldValue {
    /// Parses a value and its parameters. Unquoted values may contain anything but `;` and `"`.
    pub fn parse(text: &str) -> Result<Self, MalformedValue> {
        let (value, mut rest) = text.split_once(';').map_or((text, None), |(v, r)| (v, Some(r)));
        let mut params = Vec::new();
        while let Some(text) = rest {
            let index = params.len();
            let (name, after) = split_name(text).ok_or(MalformedValue::NoEquals { index })?;
            let (value, after) = take_value(after.trim_start()).ok_or(MalformedValue::Quotes { index })?;
            params.push((name.trim().to_ascii_lowercase(), value));
            rest = after;
        }
        Ok(Self { value: value.trim().to_owned(), params })
    }

    /// Returns the first parameter with this name, given in lower case.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

fn split_name(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    // A semicolon before the equals sign belongs to a parameter without a value.
    (!name.contains(';')).then_some((name, value))
}

/// Splits off a value, and returns the rest after the next semicolon. `None` for unbalanced quotation marks.
fn take_value(text: &str) -> Option<(String, Option<&str>)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, rest) = text.split_once(';').map_or((text, None), |(v, r)| (v, Some(r)));
        // A stray quotation mark means that the value was cut or malformed.
        return (!value.contains('"')).then(|| (value.trim().to_owned(), rest));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    loop {
        match chars.next()? {
            (at, '"') => {
                let after = quoted[at + 1..].trim_start();
                return match after.strip_prefix(';') {
                    Some(rest) => Some((value, Some(rest))),
                    None => after.is_empty().then_some((value, None)),
                };
            }
            // A quoted pair (RFC 9110, section 5.6.4).
            (_, '\\') => value.push(chars.next()?.1),
            (_, c) => value.push(c),
        }
    }
}

/// Content type of a multipart body, of any subtype.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentType {
    /// Boundary, without quotation marks.
    pub boundary: String,
}

/// Error of a content type. The peer's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContentTypeError {
    /// The type is not multipart.
    #[error("the content type is {0:?}, not multipart")]
    Invalid(String),
    /// The boundary is missing or empty.
    #[error("the multipart content type {0:?} has no boundary")]
    NoBoundary(String),
    /// The header is malformed.
    #[error("the content type {value:?} cannot be read: {reason}")]
    Unparseable {
        /// Value of the header.
        value: String,
        /// Parse error.
        reason: MalformedValue,
    },
}

impl ContentType {
    /// Parses the value of a `Content-Type` header.
    pub fn parse(text: &str) -> Result<Self, ContentTypeError> {
        let shown = || text.chars().take(200).collect();
        let field = HeaderFieldValue::parse(text)
            .map_err(|reason| ContentTypeError::Unparseable { value: shown(), reason })?;
        let kind = field.value.split('/').next().unwrap_or_default();
        if !kind.trim().eq_ignore_ascii_case("multipart") {
            return Err(ContentTypeError::Invalid(shown()));
        }
        match field.param("boundary") {
            None | Some("") => Err(ContentTypeError::NoBoundary(shown())),
            Some(boundary) => Ok(Self { boundary: boundary.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text, expected value, expected parameters.
    type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

    #[test]
    fn case_a_valid_values() {
        let cases: [Case; 14] = [
            ("", "", &[]),
            ("a", "a", &[]),
            ("; a=b", "", &[("a", "b")]),
            ("a; b=c", "a", &[("b", "c")]),
            ("AbCDe; pArAM=VALUe", "AbCDe", &[("param", "VALUe")]),
            ("a; b=", "a", &[("b", "")]),
            ("a; b =    ", "a", &[("b", "")]),
            ("a; b=\"\"", "a", &[("b", "")]),
            ("a;b=\"c\";d=e", "a", &[("b", "c"), ("d", "e")]),
            ("   a  ;   b   =  \"  c  \"   ;   d  =     e", "a", &[("b", "  c  "), ("d", "e")]),
            ("a; a=\"trap: ; c=d\"", "a", &[("a", "trap: ; c=d")]),
            (r#"a; b="\"\\""#, "a", &[("b", r#""\"#)]),
            ("a;=d", "a", &[("", "d")]),
            ("a; b=c d ", "a", &[("b", "c d")]),
        ];
        for (text, value, params) in cases {
            let field = HeaderFieldValue::parse(text).unwrap();
            let found: Vec<_> = field.params.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            assert_eq!((field.value.as_str(), found.as_slice()), (value, params), "{text}");
        }
    }

    #[test]
    fn case_a_invalid_values() {
        for bad in ["a;", "a; b=c;", "a; b=c;; d=e", "a; b", "a; b; c=d", "a; b=c;d"] {
            assert!(matches!(HeaderFieldValue::parse(bad), Err(MalformedValue::NoEquals { .. })), "{bad}");
        }
        for bad in ["a; b=\"", "a; b=\"c", "a; b=c\"", "a; b=\"c\\\"", "a; b=\"c\"d"] {
            assert!(matches!(HeaderFieldValue::parse(bad), Err(MalformedValue::Quotes { .. })), "{bad}");
        }
    }

    #[test]
    fn case_b_boundaries() {
        for (text, boundary) in [
            ("multipart/mixed; boundary=_---_valid-header", "_---_valid-header"),
            ("multipart/blub; boundary=abcd", "abcd"),
            ("   multipart/mixed    ;      boundary=test boundary  ", "test boundary"),
            ("MULTIPART/PACKAGE; BOUNDARY=FOOBAR", "FOOBAR"),
            ("Multipart; bounDArY = \"---;==;---\"", "---;==;---"),
            ("multipart/mixed; boundary=<random-boundary>", "<random-boundary>"),
        ] {
            assert_eq!(ContentType::parse(text).unwrap().boundary, boundary, "{text}");
        }
    }

    #[test]
    fn case_b_errors() {
        for text in ["text/plain", "text/plain; boundary=nope", "multipartial/mixed; boundary=b", ""] {
            assert!(matches!(ContentType::parse(text), Err(ContentTypeError::Invalid(_))), "{text}");
        }
        for text in ["multipart/mixed", "multipart/mixed; boundary="] {
            assert!(matches!(ContentType::parse(text), Err(ContentTypeError::NoBoundary(_))), "{text}");
        }
        let open = ContentType::parse("multipart/mixed; boundary=\"unterminated");
        assert!(matches!(open, Err(ContentTypeError::Unparseable { .. })));
    }
}
