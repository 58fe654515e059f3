//! Style, script and icon of the pages, embedded in the program and named by their digests.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue};
use sha2::{Digest, Sha256};

use crate::document::prebuilt::{Document, Valid};

/// An embedded file.
pub(super) struct Asset {
    /// Name with the digest, such as `style-0123456789ab.css`.
    name: String,
    document: Arc<Document>,
}

/// The style sheet.
pub(super) static STYLE: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("style", "css", "text/css; charset=utf-8", include_str!("assets/style.css")));
/// The script.
pub(super) static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("page", "js", "text/javascript; charset=utf-8", include_str!("assets/page.js"))
});
/// The icon.
pub(super) static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon", "svg", "image/svg+xml", include_str!("assets/icon.svg")));

impl Asset {
    fn new(stem: &str, extension: &str, media_type: &'static str, text: &'static str) -> Self {
        // 48 bits tell the versions of one file apart.
        let digest = hex::encode(&Sha256::digest(text.as_bytes())[..6]);
        let headers = [
            (CONTENT_TYPE, media_type),
            // The name changes with the content.
            (CACHE_CONTROL, "public, max-age=31536000, immutable"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        let headers: HeaderMap =
            headers.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect();
        let document = Document::new(Bytes::from_static(text.as_bytes()), headers, Valid::Immutable);
        Self { name: format!("{stem}-{digest}.{extension}"), document: Arc::new(document) }
    }

    /// Returns the address of the file.
    pub(super) fn path(&self, root: &str) -> String {
        format!("{root}/assets/{}", self.name)
    }
}

/// Returns the file of a name.
pub(super) fn find(name: &str) -> Option<Arc<Document>> {
    let all = [&STYLE, &SCRIPT, &ICON];
    all.into_iter().find(|asset| asset.name == name).map(|asset| asset.document.clone())
}

/// Returns the icon, for browsers that look for it at the server's root.
pub(super) fn favicon() -> Arc<Document> {
    ICON.document.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_digests() {
        let path = STYLE.path("/x");
        let name = path.strip_prefix("/x/assets/").unwrap();
        assert!(name.starts_with("style-") && name.ends_with(".css") && name.len() == 22, "{name}");
        assert!(find(name).is_some() && find("style.css").is_none() && find("../Cargo.toml").is_none());
    }

    /// The content security policy forbids what a style sheet or a script would load from elsewhere.
    #[test]
    fn assets_load_nothing() {
        for text in [include_str!("assets/style.css"), include_str!("assets/page.js")] {
            assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("@import"));
        }
        let script = include_str!("assets/page.js");
        assert!(!script.contains("eval(") && !script.contains("insertAdjacentHTML"));
    }
}
