//! Reasons that servers give in problem documents (RFC 9457).

use serde_json::Value;
use towpath_proto::follow::ResponseHead;

/// Number of characters of a server's reason that are shown.
const MAX_DETAIL: usize = 500;
/// Number of characters of another body that are shown.
const MAX_START: usize = 200;

/// Returns true for a problem document.
pub(crate) fn is_problem(head: &ResponseHead) -> bool {
    let media_type = head.header("content-type").unwrap_or_default();
    head.status >= 400
        && media_type.split(';').next().unwrap_or_default().trim() == "application/problem+json"
}

/// Returns the detail of a problem document, if the response is one.
pub(crate) fn response_problem(head: &ResponseHead, body: &[u8]) -> Option<String> {
    if is_problem(head) { detail(body) } else { None }
}

/// Returns the reason of a refusal: the detail of a problem document, or else the beginning of the body.
pub(crate) fn refusal_reason(body: &[u8]) -> String {
    detail(body).unwrap_or_else(|| printable(&String::from_utf8_lossy(body), MAX_START))
}

fn detail(body: &[u8]) -> Option<String> {
    let problem: Value = serde_json::from_slice(body).ok()?;
    Some(printable(problem["detail"].as_str()?, MAX_DETAIL))
}

/// Cuts a text, and removes control characters: it is a stranger's on its way to a terminal.
fn printable(text: &str, max: usize) -> String {
    text.chars().filter(|one| !one.is_control()).take(max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_short_and_without_control_characters() {
        assert_eq!(refusal_reason(br#"{"detail":"no\u001b[31m item\n"}"#), "no[31m item");
        assert_eq!(refusal_reason(b"<h1>Bad\x1b[2J gateway</h1>\r\n"), "<h1>Bad[2J gateway</h1>");
        assert_eq!(refusal_reason(br#"{"error":1}"#), r#"{"error":1}"#);
        let long = "x".repeat(1000);
        assert_eq!(refusal_reason(long.as_bytes()).len(), MAX_START);
        let problem = serde_json::json!({ "detail": long }).to_string();
        assert_eq!(refusal_reason(problem.as_bytes()).len(), MAX_DETAIL);
    }
}
