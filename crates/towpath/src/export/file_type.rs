//! Media types of uploaded files in object storage.
//!
//! A bucket sends no policy with a file, so what a browser would run as a page of the site has no type of its own.

/// Type of bytes that a browser saves and does not show.
const BYTES: &str = "application/octet-stream";

/// Returns the type with which an uploaded file is stored.
pub(super) fn stored_type(media_type: &str) -> &str {
    if is_run(media_type) { BYTES } else { media_type }
}

/// Returns true if a browser may run a file of this type, or guesses its type.
fn is_run(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let Some((kind, subtype)) = essence.split_once('/') else { return true };
    match kind {
        // XML can hold elements of XHTML and of SVG, whatever it is called.
        "application" | "audio" | "font" | "image" | "model" | "text" | "video" => {
            subtype == "xml"
                || subtype.ends_with("+xml")
                || ["html", "script", "svg", "unknown"].iter().any(|part| subtype.contains(part))
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_a_browser_runs_are_bytes() {
        for media_type in [
            "text/html",
            "Text/HTML; charset=utf-8",
            " text/html",
            "application/xhtml+xml",
            "image/svg+xml",
            "text/xml",
            "application/xml",
            "application/rss+xml",
            "text/javascript",
            "multipart/related",
            "message/rfc822",
            "application/unknown",
            "*/*",
            "html",
            "",
        ] {
            assert_eq!(stored_type(media_type), BYTES, "{media_type}");
        }
        for media_type in [
            "text/plain; charset=utf-8",
            "application/json",
            "application/pdf",
            "image/png",
            "video/mp4",
            "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        ] {
            assert_eq!(stored_type(media_type), media_type);
        }
    }
}
