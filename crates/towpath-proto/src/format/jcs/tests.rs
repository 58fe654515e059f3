use proptest::prelude::*;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::*;

fn text(json: &str, style: Style) -> String {
    String::from_utf8(canonical(json.as_bytes(), style).unwrap()).unwrap()
}

/// Published vectors of `canonical_v1` (DiffDelta, section 3.1): both forms and their cursors.
#[test]
fn published_vectors() {
    const VOLATILE: [&str; 6] =
        ["generated_at", "hash", "prev_hash", "cursor", "prev_cursor", "cursor_basis"];
    let vectors: Vec<Value> =
        serde_json::from_str(include_str!("../../../tests/data/diffdelta/diffdelta-canonical-v1.json"))
            .unwrap();
    assert!(vectors.len() >= 12);
    for vector in vectors {
        let name = &vector["name"];
        let input = vector["input_text"].as_str().unwrap().as_bytes();
        for (style, form, cursor) in [
            (Style::Jcs, "jcs_canonical", "cursor_jcs"),
            (Style::Python, "python_canonical", "cursor_python"),
        ] {
            let got = canonical_without(input, style, &VOLATILE);
            let Some(expected) = vector[form].as_str() else {
                assert!(matches!(got, Err(JcsError::Number { offset: 5 })), "{name} {got:?}");
                continue;
            };
            let got = got.unwrap();
            assert_eq!(std::str::from_utf8(&got), Ok(expected), "{name}");
            let hash = format!("sha256:{}", hex::encode(Sha256::digest(&got)));
            assert_eq!(Some(hash.as_str()), vector[cursor].as_str(), "{name}");
        }
    }
}

/// RFC 8785, section 3.2.2 and 3.2.3: its two examples.
#[test]
fn rfc_8785_examples() {
    let input = r#"{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],
        "string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}"#;
    assert_eq!(
        text(input, Style::Jcs),
        "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\
         \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}"
    );
    let input = r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#;
    assert_eq!(
        text(input, Style::Jcs),
        "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}"
    );
}

/// Output of Python 3's `json.dumps`.
#[test]
fn python_numbers() {
    for (json, python) in [
        ("0.0", "0.0"),
        ("-0.0", "-0.0"),
        ("-0", "0"),
        ("1e15", "1000000000000000.0"),
        ("123456789012345680.0", "1.2345678901234568e+17"),
        ("0.0001", "0.0001"),
        ("0.00001", "1e-05"),
        ("1.5e300", "1.5e+300"),
        ("5e-324", "5e-324"),
        ("1E400", "Infinity"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
    ] {
        assert_eq!(text(json, Style::Python), python, "{json}");
    }
}

#[test]
fn members_are_sorted_at_every_level_and_white_space_goes() {
    let json = " { \"b\" : [ { \"d\" : 1 , \"c\" : { } } , [ ] ] ,\n\t\"a\" : \"x y\" } ";
    for style in [Style::Jcs, Style::Python] {
        assert_eq!(text(json, style), r#"{"a":"x y","b":[{"c":{},"d":1},[]]}"#);
    }
}

#[test]
fn keys_are_compared_as_they_are_read() {
    assert_eq!(text(r#"{"b":1,"\u0061":2,"\n":3}"#, Style::Jcs), r#"{"\n":3,"a":2,"b":1}"#);
}

/// I-JSON forbids a second member of one name; Python keeps the last.
#[test]
fn duplicate_keys() {
    let json = r#"{"a":1,"b":[],"a":{"c":2}}"#;
    assert_eq!(canonical(json.as_bytes(), Style::Jcs), Err(JcsError::DuplicateKey { offset: 0 }));
    assert_eq!(text(json, Style::Python), r#"{"a":{"c":2},"b":[]}"#);
}

#[test]
fn only_outermost_members_are_left_out() {
    let json = br#"{"x":{"cursor":1},"\u0063ursor":2,"a":3}"#;
    let got = canonical_without(json, Style::Jcs, &["cursor"]).unwrap();
    assert_eq!(got, br#"{"a":3,"x":{"cursor":1}}"#);
    assert_eq!(canonical_without(br#"{"cursor":2}"#, Style::Jcs, &["cursor"]).unwrap(), b"{}");
}

#[test]
fn what_is_not_json_is_refused_with_its_place() {
    let place = |json: &[u8]| match canonical(json, Style::Python) {
        Err(JcsError::Syntax { offset, .. }) => offset,
        other => panic!("{} gave {other:?}", String::from_utf8_lossy(json)),
    };
    for (json, offset) in [
        (&b""[..], 0),
        (b"{", 1),
        (b"[1,]", 3),
        (b"{\"a\":1,}", 7),
        (b"{\"a\" 1}", 5),
        (b"{a:1}", 1),
        (b"01", 1),
        (b"1.", 2),
        (b"1e+", 3),
        (b"-", 1),
        (b"+1", 0),
        (b"nul", 0),
        (b"\"a", 2),
        (b"\"\n\"", 1),
        (b"\"\\x\"", 1),
        (b"\"\\u12g4\"", 1),
        (b"\"\\ud800\"", 7),
        (b"\"\\ud800\\u0041\"", 1),
        (b"\"\\udc00\"", 1),
        (b"1 2", 2),
        (b"\"\xff\"", 1),
    ] {
        assert_eq!(place(json), offset, "{}", String::from_utf8_lossy(json));
    }
}

#[test]
fn nesting_is_bounded() {
    let deep = "[".repeat(1_000_000);
    assert!(matches!(canonical(deep.as_bytes(), Style::Jcs), Err(JcsError::Depth { .. })));
    let allowed = "[".repeat(MAX_DEPTH) + "1" + &"]".repeat(MAX_DEPTH);
    assert_eq!(text(&allowed, Style::Jcs), allowed);
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-1_000_000_000i64..1_000_000_000).prop_map(Value::from),
        prop::num::f64::NORMAL.prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn canonicalising_again_changes_nothing(value in values()) {
        for style in [Style::Jcs, Style::Python] {
            let once = canonical_value(&value, style).unwrap();
            match canonical(&once, style) {
                // A large float such as 1e16 is written as an integer, which is refused when parsed again.
                Err(JcsError::Number { .. }) => prop_assert_eq!(style, Style::Jcs),
                again => prop_assert_eq!(again, Ok(once)),
            }
        }
    }

    #[test]
    fn the_value_stays(value in values()) {
        let python = canonical_value(&value, Style::Python).unwrap();
        let spaced = serde_json::to_vec_pretty(&value).unwrap();
        prop_assert_eq!(canonical(&spaced, Style::Python).unwrap(), python);
    }

    #[test]
    fn utf16_order_is_that_of_the_code_units(a: String, b: String) {
        let units = |s: &str| s.encode_utf16().collect::<Vec<_>>();
        prop_assert_eq!(utf16_order(a.as_bytes(), b.as_bytes()), units(&a).cmp(&units(&b)));
    }

    #[test]
    fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = canonical(&bytes, Style::Jcs);
        let _ = canonical(&bytes, Style::Python);
    }

    #[test]
    fn hostile_text_never_panics(text in r#"[\[\]{}",:\\u0-9aeE+.\- ]{0,60}"#) {
        let _ = canonical(text.as_bytes(), Style::Jcs);
        let _ = canonical(text.as_bytes(), Style::Python);
    }
}
