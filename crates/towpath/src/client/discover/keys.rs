//! The names of a JSON object of which perhaps only the beginning is there.

/// The most names that are told.
const MAX_KEYS: usize = 1000;

/// The names of the object's own members, as far as `json` goes, in one pass. Names with escapes are passed
/// over: none that is looked for has any.
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
        if depth == 0 {
            break;
        }
        at += 1;
    }
    keys
}

/// Where the string that begins at `start` ends: the place of its closing quote.
fn string_end(json: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', json.get(at..)?)?;
        if json[at] == b'"' {
            return Some(at);
        }
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
