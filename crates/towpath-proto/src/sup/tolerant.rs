//! JSON with commas before closing brackets, as the text's own example has it (sections 3 and 7).

use std::borrow::Cow;

/// `json` without the commas that stand before a closing bracket, and how many those were. Everything else,
/// strings above all, stays as it is.
pub(super) fn without_trailing_commas(json: &[u8]) -> (Cow<'_, [u8]>, usize) {
    let places = trailing_commas(json);
    if places.is_empty() {
        return (json.into(), 0);
    }
    let mut out = Vec::with_capacity(json.len());
    let mut from = 0;
    for place in &places {
        out.extend_from_slice(&json[from..*place]);
        from = place + 1;
    }
    out.extend_from_slice(&json[from..]);
    (out.into(), places.len())
}

fn trailing_commas(json: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    let mut comma = None;
    let mut in_string = false;
    let mut escaped = false;
    for (place, byte) in json.iter().enumerate() {
        if in_string {
            in_string = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
            continue;
        }
        match byte {
            b',' => comma = Some(place),
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b']' | b'}' => places.extend(comma.take()),
            other => {
                comma = None;
                in_string = *other == b'"';
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cleaned(json: &str) -> (String, usize) {
        let (json, count) = without_trailing_commas(json.as_bytes());
        (String::from_utf8(json.into_owned()).unwrap(), count)
    }

    #[test]
    fn only_commas_before_a_bracket_go() {
        assert_eq!(cleaned("[1, 2 ,\n ]"), ("[1, 2 \n ]".into(), 1));
        assert_eq!(cleaned(r#"{"a":",]","b\",]":[",}",],}"#), (r#"{"a":",]","b\",]":[",}"]}"#.into(), 2));
        assert_eq!(cleaned(r#"["\\",]"#), (r#"["\\"]"#.into(), 1));
        assert_eq!(cleaned("[1,2]"), ("[1,2]".into(), 0));
    }

    proptest! {
        #[test]
        fn valid_json_is_left_alone(texts in proptest::collection::vec("[\\\\\",\\]\\}a ]{0,8}", 0..6)) {
            let json = serde_json::to_string(&texts).unwrap();
            prop_assert_eq!(cleaned(&json), (json, 0));
        }
    }
}
