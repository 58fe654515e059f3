//! Kinds of documents whose headers follow from their paths.

use towpath_proto::diffdelta::headers::{IMMUTABLE, JSON, MUTABLE};
use towpath_proto::history::wire::Syntax;

pub(super) const CHECK: &str = "no-cache";

/// Headers of uploaded files: a browser must neither guess their type nor run them.
pub(super) const OF_FILES: [(&str, &str); 3] = [
    ("Cache-Control", IMMUTABLE),
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "sandbox; default-src 'none'"),
];

/// Headers of documents with one kind of path.
pub(super) struct DocumentClass {
    /// Paths, as a regular expression.
    pub(super) paths: String,
    /// Paths with placeholders, as the header files of hosts have them.
    pub(super) patterns: Vec<String>,
    pub(super) media_type: String,
    pub(super) cache: &'static str,
    /// The document of DiffDelta has the same directives for CDNs, too (section 6.3).
    pub(super) is_diffdelta: bool,
    pub(super) is_index: bool,
}

impl DocumentClass {
    /// Returns the lines with the directives for caches.
    pub(super) fn cache_lines<'a>(&self, cache: &'a str) -> Vec<(&'static str, &'a str)> {
        let mut lines = vec![("Cache-Control", cache)];
        lines.extend(self.is_diffdelta.then_some(("CDN-Cache-Control", cache)));
        lines
    }
}

/// Every kind of document whose headers follow from its path.
pub(super) fn classes() -> Vec<DocumentClass> {
    let class = |paths: &str, patterns: &[&str], media_type: &str, cache| DocumentClass {
        paths: paths.to_owned(),
        patterns: patterns.iter().map(|&pattern| pattern.to_owned()).collect(),
        media_type: media_type.to_owned(),
        cache,
        is_diffdelta: false,
        is_index: false,
    };
    let diffdelta = |class: DocumentClass| DocumentClass { is_diffdelta: true, ..class };
    let index = |class: DocumentClass| DocumentClass { is_index: true, ..class };
    let mut classes = vec![
        diffdelta(class(
            r"/(?:diff/[^.]+\.json|archive/[^/]+/index\.json|healthz\.json|\.well-known/diffdelta\.json)",
            &["/diff/*", "/archive/:feed/index.json", "/healthz.json", "/.well-known/diffdelta.json"],
            JSON,
            MUTABLE,
        )),
        diffdelta(class(
            r"/(?:archive/[^/]+/[0-9]+/[0-9]+/[0-9]+/[^/]+\.json|schema/v1/[^/]+\.json)",
            &["/archive/:feed/:year/:month/:day/:file", "/schema/v1/*"],
            JSON,
            IMMUTABLE,
        )),
        class(r"/sup\.json", &["/sup.json"], "application/json", "public, max-age=60"),
        class(r"/sup/300\.json", &["/sup/300.json"], "application/json", "public, max-age=300"),
        class(
            r"/sup/(?:3600|86400)\.json",
            &["/sup/3600.json", "/sup/86400.json"],
            "application/json",
            "public, max-age=3600",
        ),
        index(class(r"/feeds(?:/[^/]+)?", &["/feeds", "/feeds/:feed"], JSON, CHECK)),
        index(class(r"/feeds/[^/]+/snapshots", &["/feeds/:feed/snapshots"], "application/json", CHECK)),
        class(
            r"/feeds/[^/]+/snapshots/latest",
            &["/feeds/:feed/snapshots/latest"],
            "application/json",
            CHECK,
        ),
        index(class(r"/feeds/[^/]+/snapshots/[0-9]+", &[], "application/json", IMMUTABLE)),
    ];
    for syntax in Syntax::ALL {
        let name = syntax.name().replace('.', r"\.");
        let media_type = syntax.content_type();
        let newest = format!("/feeds/:feed/{}", syntax.name());
        classes.push(index(class(&format!("/feeds/[^/]+/{name}"), &[&newest], media_type, CHECK)));
        let windows = format!("/feeds/[^/]+/{name}/[0-9]+-[0-9]+");
        classes.push(class(&windows, &[], media_type, IMMUTABLE));
        let (pages, pattern) = (format!("/feeds/[^/]+/{name}/[0-9]+"), format!("{newest}/:page"));
        // The last of them will be replaced. Only the name of its file tells which it is.
        classes.push(class(&pages, &[&pattern], media_type, CHECK));
    }
    classes
}

/// The path that a base URL has before all others.
pub(super) fn path_of(base_url: &str) -> &str {
    let authority = base_url.find("://").map_or(0, |at| at + 3);
    base_url[authority..].find('/').map_or("", |at| base_url[authority + at..].trim_end_matches('/'))
}
