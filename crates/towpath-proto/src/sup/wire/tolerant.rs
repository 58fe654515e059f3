//! Tolerance of JSON with commas before closing brackets, as in the text's own example (sections 3 and 7).

use std::borrow::Cow;

/// Removes the commas before closing brackets, and returns their number. Everything else stays, strings above all.
pub(in crate::sup) fn without_trailing_commas(json: &[u8]) -> (Cow<'_, [u8]>, usize) {
    let offsets = trailing_commas(json);
    if offsets.is_empty() {
        return (json.into(), 0);
    }
    let mut out = Vec::with_capacity(json.len());
    let mut from = 0;
    for offset in &offsets {
        out.extend_from_slice(&json[from..*offset]);
        from = offset + 1;
    }
    out.extend_from_slice(&json[from..]);
    (out.into(), offsets.len())
}

fn trailing_commas(json: &[u8]) -> Vec<usize> {
    let mut offsets = Vec::new();
    let mut comma = None;
    let mut in_string = false;
    let mut escaped = false;
    for (offset, byte) in json.iter().enumerate() {
        // Commas and brackets in a string are text.
        if in_string {
            in_string = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
            continue;
        }
        match byte {
            b',' => comma = Some(offset),
            // White space keeps the comma pending: `, ]` has a trailing comma too.
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b']' | b'}' => offsets.extend(comma.take()),
            other => {
                comma = None;
                in_string = *other == b'"';
            }
        }
    }
    offsets
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
