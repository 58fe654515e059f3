//! JSON-P: a response wrapped in a call of the client's function ("HTTP Pull", `callback`).

use std::fmt;

// The name is repeated at the start of the script. Rosetta Flash needed names longer than any real one.
/// Maximum length of a callback name, in bytes.
pub const MAX_CALLBACK: usize = 128;

/// Name of a JavaScript function: identifiers of ASCII letters, digits, `_` and `$`, joined by dots.
///
/// The first is not a reserved word (ECMAScript, section 12.7.2); after a dot any word is valid.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JsonpCallback(String);

/// Error of parsing a function name. The client's fault, or its attacker's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonpCallbackError {
    /// The name is longer than [`MAX_CALLBACK`].
    #[error("the name is longer than {MAX_CALLBACK} bytes")]
    TooLong,
    /// The name is not a list of dotted identifiers.
    #[error("the name must be JavaScript identifiers of ASCII characters, joined by dots")]
    Form,
    /// The name begins with a reserved word.
    #[error("the name begins with a reserved word of JavaScript")]
    Reserved,
}

/// The reserved words of scripts and modules, in strict mode too, and the literals (ECMAScript, section 12.7.2).
#[rustfmt::skip]
const RESERVED: [&str; 46] = [
    "await", "break", "case", "catch", "class", "const", "continue", "debugger", "default", "delete", "do", "else",
    "enum", "export", "extends", "false", "finally", "for", "function", "if", "implements", "import", "in",
    "instanceof", "interface", "let", "new", "null", "package", "private", "protected", "public", "return", "static",
    "super", "switch", "this", "throw", "true", "try", "typeof", "var", "void", "while", "with", "yield",
];

impl JsonpCallback {
    /// Parses a name.
    ///
    /// Anything but a plain name would run as script in the page of whoever includes it, so nothing is escaped:
    /// it is rejected.
    pub fn parse(text: &str) -> Result<Self, JsonpCallbackError> {
        if text.len() > MAX_CALLBACK {
            return Err(JsonpCallbackError::TooLong);
        }
        // No brackets: with `a[0]` anything else between brackets would run too.
        if !text.split('.').all(is_identifier) {
            return Err(JsonpCallbackError::Form);
        }
        if text.split('.').next().is_some_and(|first| RESERVED.contains(&first)) {
            return Err(JsonpCallbackError::Reserved);
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the script that calls the function with `json`, which must be one JSON value.
    ///
    /// The leading comment denies an attacker control of the first bytes, which could be another format's magic
    /// number (Rosetta Flash). U+2028 and U+2029 end a line in older JavaScript and are escaped.
    pub fn wrap(&self, json: &[u8]) -> Vec<u8> {
        let mut script = Vec::with_capacity(json.len() + self.0.len() + 8);
        script.extend_from_slice(b"/**/");
        script.extend_from_slice(self.0.as_bytes());
        script.push(b'(');
        push_escaped(&mut script, json);
        script.extend_from_slice(b");");
        script
    }
}

impl fmt::Display for JsonpCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_identifier(text: &str) -> bool {
    let starts = text.bytes().next().is_some_and(|b| !b.is_ascii_digit());
    starts && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'$')
}

/// Appends JSON with U+2028 and U+2029 escaped. In UTF-8 they are E2 80 A8 and E2 80 A9; JSON has them only in
/// strings.
fn push_escaped(out: &mut Vec<u8>, json: &[u8]) {
    let mut rest = json;
    while let Some(at) = memchr::memmem::find(rest, b"\xe2\x80") {
        let escape: &[u8] = match rest.get(at + 2) {
            Some(0xa8) => b"\\u2028",
            Some(0xa9) => b"\\u2029",
            // Another character of this block, such as an ellipsis.
            _ => &rest[at..at + 2],
        };
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(escape);
        let length = if escape.len() == 2 { 2 } else { 3 };
        rest = &rest[at + length..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dotted_identifiers() {
        for good in ["f", "_", "$", "jQuery1_2", "a.b.c", "$.cb", "variable", "a.default", "Var"] {
            assert_eq!(JsonpCallback::parse(good).unwrap().as_str(), good);
        }
        for reserved in ["var", "function", "null", "new.target", "import.meta", "let", "yield"] {
            assert_eq!(JsonpCallback::parse(reserved), Err(JsonpCallbackError::Reserved), "{reserved}");
        }
        for bad in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "1a",
            "a.1",
            "alert(1)//",
            "a b",
            "a;b",
            "a[0]",
            "\\u0061lert",
            "ä",
            "a\n",
            "a\u{2028}",
            "<script>",
            "a-b",
            "a/**/b",
            "a\0",
        ] {
            assert_eq!(JsonpCallback::parse(bad), Err(JsonpCallbackError::Form), "{bad:?}");
        }
        assert_eq!(JsonpCallback::parse(&"a".repeat(10_000)), Err(JsonpCallbackError::TooLong));
    }

    #[test]
    fn line_separators_are_escaped() {
        let callback = JsonpCallback::parse("f").unwrap();
        let json = serde_json::to_vec("a\u{2028}b\u{2029}\u{2030}€\u{2028}").unwrap();
        let script = String::from_utf8(callback.wrap(&json)).unwrap();
        assert_eq!(script, "/**/f(\"a\\u2028b\\u2029\u{2030}€\\u2028\");");
        let argument = &script["/**/f(".len()..script.len() - 2];
        let text: String = serde_json::from_str(argument).unwrap();
        assert_eq!(text, "a\u{2028}b\u{2029}\u{2030}€\u{2028}");
    }
}
