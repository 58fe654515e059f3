//! Content of an item for a frame or an image of its page, or for download.
//!
//! A stranger wrote it. The answer's own policy is a sandbox without scripts, forms, or requests to anywhere, which holds
//! wherever the address is opened.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use towpath_proto::Item;
use towpath_proto::change::Change;
use towpath_proto::format::atom;

use super::content::{ContentKind, kind_of};
use crate::document::prebuilt::Answer;
use crate::document::route_error::RouteError;

/// Policy of HTML in a frame: it may have styles and embedded images, and nothing else.
const HTML_POLICY: &str =
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'";
/// Policy of everything else.
const POLICY: &str = "sandbox; default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'";

/// Answers with the content, or the summary, of a version.
pub(super) fn document(change: &Change, view: &str) -> Result<Answer, RouteError> {
    let none = || RouteError::not_found("This version has no such content");
    let content = change.item.content.as_ref();
    match view {
        "frame" => {
            let content = content.filter(|content| kind_of(content) == ContentKind::Html).ok_or_else(none)?;
            Ok(of_bytes("text/html; charset=utf-8", HTML_POLICY, based(&change.item, content.bytes.clone())))
        }
        "summary" => {
            let summary = change.item.summary.clone().ok_or_else(none)?;
            Ok(of_bytes("text/html; charset=utf-8", HTML_POLICY, based(&change.item, summary.into())))
        }
        "image" => {
            let content =
                content.filter(|content| kind_of(content) == ContentKind::Image).ok_or_else(none)?;
            let mut answer = of_bytes("image/png", POLICY, content.bytes.clone());
            if let Ok(value) = HeaderValue::from_str(&content.essence()) {
                answer.headers.insert(CONTENT_TYPE, value);
            }
            Ok(answer)
        }
        "raw" => {
            let content = content.ok_or_else(none)?;
            // Never shown under this origin, whatever its type is.
            let mut answer = of_bytes("application/octet-stream", POLICY, content.bytes.clone());
            answer.headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
            Ok(answer)
        }
        _ => Err(RouteError::not_found("view is one of frame, summary, image and raw")),
    }
}

/// Returns HTML with the base of its relative addresses, which do not lead to this server.
fn based(item: &Item, html: Bytes) -> Bytes {
    let Some(base) = atom::content_base(item, None) else { return html };
    // A document type has to stay first, or browsers show the page as those of the last century.
    let starts_with_type = html.get(..9).is_some_and(|start| start.eq_ignore_ascii_case(b"<!doctype"));
    let end = html.iter().position(|byte| *byte == b'>').filter(|_| starts_with_type).map_or(0, |at| at + 1);
    let base = format!("<base href=\"{}\">", base.replace('&', "&amp;").replace('"', "&quot;"));
    [&html[..end], base.as_bytes(), &html[end..]].concat().into()
}

fn of_bytes(media_type: &'static str, policy: &'static str, body: Bytes) -> Answer {
    let headers = [
        (CONTENT_TYPE, media_type),
        (CONTENT_SECURITY_POLICY, policy),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "private, no-cache"),
    ];
    let headers: HeaderMap =
        headers.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect();
    Answer { status: StatusCode::OK, headers, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_addresses_lead_to_the_items_page_or_nowhere() {
        for (url, html, expected) in [
            (None, "<a href=b>", "<base href=\"about:invalid\"><a href=b>"),
            (
                Some("https://a.example/?b&c"),
                "<a href=b>",
                "<base href=\"https://a.example/?b&amp;c\"><a href=b>",
            ),
            (None, "<!DOCTYPE html><a href=b>", "<!DOCTYPE html><base href=\"about:invalid\"><a href=b>"),
            (None, "<a href=https://b.example/>", "<a href=https://b.example/>"),
            (None, "<a href=#b>", "<a href=#b>"),
        ] {
            let content = Some(towpath_proto::Content::new("text/html", html));
            let item = Item { url: url.map(str::to_owned), content, ..Item::new("1") };
            assert_eq!(based(&item, html.into()), expected);
        }
    }
}
