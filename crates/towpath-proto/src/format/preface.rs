//! Text before a document, such as a warning of the program that made it.

use std::borrow::Cow;

use super::sniff::{self, DocumentKind};

/// Maximum length of what is dropped.
const MAX_PREFACE: usize = 4096;

/// Drops text and HTML before the declaration or root of a feed. Its lines are kept.
pub(super) fn dropped<'a>(text: Cow<'a, str>, problems: &mut Vec<String>) -> Cow<'a, str> {
    const STARTS: [&str; 4] = ["<rss", "<feed", "<rdf:RDF", "<?xml"];
    let starts = match sniff::kind(&text) {
        // A document type of HTML may stand behind the declaration, which says nothing that is not known by now.
        DocumentKind::Html => &STARTS[..3],
        DocumentKind::Other | DocumentKind::Xml => &STARTS,
        DocumentKind::Json | DocumentKind::Empty => return text,
    };
    let end = (0..=text.len().min(MAX_PREFACE)).rev().find(|end| text.is_char_boundary(*end));
    let head = &text[..end.unwrap_or_default()];
    let Some(start) = starts.iter().filter_map(|start| head.find(start)).min() else { return text };
    let preface = head[..start].trim_start_matches('\u{feff}').trim_start();
    // Comments and document types may stand before a root. A page may show a feed's first lines.
    let is_sound = preface.is_empty() || starts.len() > 3 && preface.starts_with("<!");
    let lower = preface.to_ascii_lowercase();
    let is_page = ["<html", "<head", "<body", "<script"].into_iter().any(|tag| lower.contains(tag));
    if is_sound || is_page {
        return text;
    }
    problems.push("line 1, column 1: text before the beginning of the document was dropped".into());
    let lines = "\n".repeat(text[..start].matches('\n').count());
    Cow::Owned(lines + &text[start..])
}
