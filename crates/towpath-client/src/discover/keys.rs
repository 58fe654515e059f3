//! Member names of a JSON object that may be truncated.

/// Maximum number of names returned.
const MAX_KEYS: usize = 1000;

/// Returns the names of the object's own members, as far as `json` reaches, in one pass.
///
/// Names with escapes are skipped: none of the names that detection looks for contains any.
pub(super) fn top_level_keys(json: &[u8]) -> Vec<String> {
    let json = json.trim_ascii_start();
    let mut keys = Vec::new();
    let (mut depth, mut at) = (0_usize, 0);
    let mut expects_key = false;
    while at < json.len() && keys.len() < MAX_KEYS {
        match json[at] {
            b'{' | b'[' => {
                depth += 1;
                expects_key = depth == 1 && json[at] == b'{';
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' => expects_key = depth == 1,
            b'"' => {
                // The text ends inside a string: it is truncated.
                let Some(end) = string_end(json, at) else { break };
                if std::mem::take(&mut expects_key)
                    && let Ok(key) = std::str::from_utf8(&json[at + 1..end])
                    && !key.contains('\\')
                {
                    keys.push(key.to_owned());
                }
                at = end;
            }
            _ => {}
        }
        // Whatever follows the object, or is not one, has no names.
        if depth == 0 {
            break;
        }
        at += 1;
    }
    keys
}

/// Returns the index of the closing quote of the string that begins at `start`.
fn string_end(json: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', json.get(at..)?)?;
        if json[at] == b'"' {
            return Some(at);
        }
        // Skips the escaped character, which may be a quote.
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_objects_own_names_count() {
        let json = br#" {"a":{"b":1,"c":[{"d":"}"}]},"e\"":2,"f":"\\","g":["x","y"],"h":"i", "j" :"cut"#;
        assert_eq!(top_level_keys(json), ["a", "f", "g", "h", "j"]);
        assert_eq!(top_level_keys(br#"{"a":1}{"b":2}"#), ["a"]);
        for none in ["", "[1]", "{", "{\"", "{\"a\\", "x"] {
            assert_eq!(top_level_keys(none.as_bytes()), [""; 0], "{none}");
        }
    }
}
