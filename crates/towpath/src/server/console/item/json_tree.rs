//! JSON as a tree that opens and closes without a script.

use maud::{Markup, html};
use serde_json::Value;
use towpath_proto::Content;

use super::super::text::{count, prefix};

/// Most values of a tree.
const MAX_VALUES: usize = 2000;
/// Deepest level that is drawn. Deeper values are shown as text.
const MAX_DEPTH: usize = 24;
/// Largest document that is drawn, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Most characters of a string.
const MAX_STRING: usize = 2000;

/// Makes a tree; `None` for a document that is too large, or no JSON.
pub(super) fn view(content: &Content) -> Option<Markup> {
    if content.bytes.len() > MAX_BYTES {
        return None;
    }
    let value: Value = serde_json::from_slice(&content.bytes).ok()?;
    let mut left = MAX_VALUES;
    Some(html! { div class="sheet" { ul class="tree" { (node(None, &value, 0, &mut left)) } } })
}

fn node(key: Option<&str>, value: &Value, depth: usize, left: &mut usize) -> Markup {
    if *left == 0 {
        return html! {};
    }
    *left -= 1;
    let name = html! { @if let Some(key) = key { span class="key" { bdi { (cut(key)) } } ": " } };
    let is_open = depth < 3;
    match value {
        Value::Object(members) if depth < MAX_DEPTH && !members.is_empty() => html! {
            li { details open[is_open] {
                summary { (name) span class="soft" { "{ " (count(members.len() as u64, "member")) " }" } }
                ul { @for (key, value) in members { (node(Some(key), value, depth + 1, left)) } (rest(*left)) }
            } }
        },
        Value::Array(values) if depth < MAX_DEPTH && !values.is_empty() => html! {
            li { details open[is_open] {
                summary { (name) span class="soft" { "[ " (count(values.len() as u64, "value")) " ]" } }
                ul { @for value in values { (node(None, value, depth + 1, left)) } (rest(*left)) }
            } }
        },
        Value::String(text) => {
            html! { li { (name) span class="string" dir="auto" { bdi { "\"" (cut(text)) "\"" } } } }
        }
        other => html! { li { (name) span class="atom" { (cut(&other.to_string())) } } },
    }
}

fn rest(left: usize) -> Markup {
    html! { @if left == 0 { li class="soft" { "… more; download the rest" } } }
}

fn cut(text: &str) -> &str {
    prefix(text, MAX_STRING)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(json: &str) -> Option<String> {
        view(&Content::new("application/json", json.to_owned())).map(Markup::into_string)
    }

    #[test]
    fn values_are_escaped() {
        let tree = drawn(r#"{"<k>": ["</span><script>x</script>", 1, null, {}]}"#).unwrap();
        assert!(tree.contains("&lt;k&gt;") && tree.contains("&lt;script&gt;") && tree.contains("4 values"));
        assert!(!tree.contains("<script"));
        assert_eq!(drawn("{"), None);
    }

    #[test]
    fn large_and_deep_documents_are_cut() {
        let wide = format!("[{}1]", "1,".repeat(10_000));
        assert!(drawn(&wide).unwrap().len() < 200_000);
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert!(drawn(&deep).unwrap().len() < 10_000);
        assert_eq!(drawn(&format!("\"{}\"", "x".repeat(MAX_BYTES))), None);
    }
}
