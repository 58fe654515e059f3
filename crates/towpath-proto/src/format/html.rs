//! HTML to plain text, and what hides in it.

/// TEMPORARY until html lands.
pub fn to_text(html: &str, max_chars: usize) -> String {
    html.chars().take(max_chars).collect()
}
