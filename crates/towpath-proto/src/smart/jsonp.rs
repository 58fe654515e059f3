//! JSON-P: an answer wrapped in a call of the client's function ("HTTP Pull", `callback`).

use std::fmt;

/// The longest callback name, in bytes.
pub const MAX_CALLBACK: usize = 128;

/// The name of a JavaScript function: identifiers of ASCII letters, digits, `_` and `$`, joined by dots. The first is
/// no reserved word (ECMAScript, section 12.7.2); behind a dot any word may stand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Callback(String);

/// Why a text is not the name of a function. The client's fault, or its attacker's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallbackError {
    /// Longer than [`MAX_CALLBACK`].
    #[error("the name is longer than {MAX_CALLBACK} bytes")]
    TooLong,
    /// Something other than dotted identifiers.
    #[error("the name must be JavaScript identifiers of ASCII characters, joined by dots")]
    Form,
    /// Begins with a word of the language.
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

impl Callback {
    /// Checks a name.
    pub fn parse(text: &str) -> Result<Self, CallbackError> {
        if text.len() > MAX_CALLBACK {
            return Err(CallbackError::TooLong);
        }
        if !text.split('.').all(is_identifier) {
            return Err(CallbackError::Form);
        }
        if text.split('.').next().is_some_and(|first| RESERVED.contains(&first)) {
            return Err(CallbackError::Reserved);
        }
        Ok(Self(text.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The script that calls the function with `json`, which must be one JSON value.
    ///
    /// The comment in front keeps the first bytes out of the client's hands (they could be another format's
    /// magic number); U+2028 and U+2029 end a line in older JavaScript and are escaped.
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

impl fmt::Display for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_identifier(text: &str) -> bool {
    let starts = text.bytes().next().is_some_and(|b| !b.is_ascii_digit());
    starts && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'$')
}

/// U+2028 and U+2029 in UTF-8 are E2 80 A8 and E2 80 A9; in JSON they stand in strings only.
fn push_escaped(out: &mut Vec<u8>, json: &[u8]) {
    let mut rest = json;
    while let Some(at) = memchr::memmem::find(rest, b"\xe2\x80") {
        let escape: &[u8] = match rest.get(at + 2) {
            Some(0xa8) => b"\\u2028",
            Some(0xa9) => b"\\u2029",
            _ => &rest[at..at + 2],
        };
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(escape);
        let taken = if escape.len() == 2 { 2 } else { 3 };
        rest = &rest[at + taken..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dotted_identifiers() {
        for good in ["f", "_", "$", "jQuery1_2", "a.b.c", "$.cb", "variable", "a.default", "Var"] {
            assert_eq!(Callback::parse(good).unwrap().as_str(), good);
        }
        for reserved in ["var", "function", "null", "new.target", "import.meta", "let", "yield"] {
            assert_eq!(Callback::parse(reserved), Err(CallbackError::Reserved), "{reserved}");
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
            assert_eq!(Callback::parse(bad), Err(CallbackError::Form), "{bad:?}");
        }
        assert_eq!(Callback::parse(&"a".repeat(10_000)), Err(CallbackError::TooLong));
    }

    #[test]
    fn line_separators_are_escaped() {
        let callback = Callback::parse("f").unwrap();
        let json = serde_json::to_vec("a\u{2028}b\u{2029}\u{2030}€\u{2028}").unwrap();
        let script = String::from_utf8(callback.wrap(&json)).unwrap();
        assert_eq!(script, "/**/f(\"a\\u2028b\\u2029\u{2030}€\\u2028\");");
        let argument = &script["/**/f(".len()..script.len() - 2];
        let text: String = serde_json::from_str(argument).unwrap();
        assert_eq!(text, "a\u{2028}b\u{2029}\u{2030}€\u{2028}");
    }
}
