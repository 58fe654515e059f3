//! Configuration for those who serve a tree in a folder: nginx, and hosts that read `_headers` and `_redirects`.

mod classes;
mod nginx;

use std::path::Path;

use self::classes::{OF_FILES, classes, path_of};
use crate::document::cors::{CorsPolicy, EXPOSED};
use crate::export::tree_document::TreeDocument;
use bytes::Bytes;
use http::HeaderMap;

/// The files, as documents of the tree.
pub(super) fn configuration(base_url: &str, root: &Path, cors: &CorsPolicy) -> Vec<TreeDocument> {
    let file = |path: &str, body: String| TreeDocument {
        path: path.to_owned(),
        body: Bytes::from(body),
        headers: HeaderMap::new(),
    };
    vec![
        file("/.towpath/towpath-http.conf", nginx::maps(base_url, cors)),
        file("/.towpath/towpath.conf", nginx::locations(base_url, root, cors)),
        file("/_headers", headers(base_url, cors)),
        file("/_redirects", redirects(base_url)),
    ]
}

/// Netlify's and Cloudflare Pages' form. No path fits two rules, for their headers would be joined.
fn headers(base_url: &str, cors: &CorsPolicy) -> String {
    let prefix = path_of(base_url);
    let mut text = String::new();
    let origin = match cors {
        CorsPolicy::SameOrigin => None,
        CorsPolicy::AnyOrigin => Some("*"),
        CorsPolicy::Listed(origins) if origins.len() == 1 => origins[0].to_str().ok(),
        CorsPolicy::Listed(_) => {
            text.push_str("# These hosts cannot choose among several cors_origins, so other origins' pages read nothing.\n");
            None
        }
    };
    let mut rule = |pattern: &str, headers: &[(&str, &str)]| {
        text.push_str(&format!("{prefix}{pattern}\n"));
        for (name, value) in headers {
            text.push_str(&format!("  {name}: {value}\n"));
        }
        if let Some(origin) = origin {
            text.push_str(&format!("  Access-Control-Allow-Origin: {origin}\n"));
            text.push_str(&format!("  Access-Control-Expose-Headers: {EXPOSED}\n"));
        }
    };
    for class in classes() {
        for pattern in &class.patterns {
            let lines = [vec![("Content-Type", class.media_type.as_str())], class.cache_lines(class.cache)];
            rule(pattern, &lines.concat());
        }
    }
    rule("/feeds/:feed/attachments/*", &OF_FILES);
    text
}

/// Redirect rules of the same hosts, for files that are not at their path.
fn redirects(base_url: &str) -> String {
    let prefix = path_of(base_url);
    let mut text = String::new();
    for class in classes().iter().filter(|class| class.is_index) {
        for pattern in &class.patterns {
            text.push_str(&format!("{prefix}{pattern} {prefix}{pattern}/index 200\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use towpath_proto::diffdelta::headers::{IMMUTABLE, MUTABLE};

    use super::*;

    #[test]
    fn no_rule_of_headers_overlaps_another() {
        let text = headers("https://a.example/base", &CorsPolicy::AnyOrigin);
        let rules: Vec<&str> = text.lines().filter(|line| !line.starts_with(' ')).collect();
        let mut seen = std::collections::HashSet::new();
        assert!(rules.iter().all(|rule| rule.starts_with("/base/") && seen.insert(*rule)), "{rules:?}");
        assert!(rules.len() <= 100, "what Cloudflare Pages takes");
        let redirects = redirects("https://a.example");
        assert!(redirects.contains("/feeds/:feed/atom /feeds/:feed/atom/index 200\n"), "{redirects}");
    }

    /// Section 6.3: both headers stand side by side, on the documents of DiffDelta and on no others.
    #[test]
    fn diffdelta_6_3_documents_have_directives_for_cdns() {
        use towpath_proto::diffdelta::headers::CDN_CACHE_CONTROL;
        let rules = headers("https://a.example", &CorsPolicy::SameOrigin);
        let locations = nginx::locations("https://a.example", Path::new("/srv/x"), &CorsPolicy::SameOrigin);
        let name = |line: &str| line.to_ascii_lowercase().contains(CDN_CACHE_CONTROL.as_str());
        for (pattern, directives) in [
            ("/diff/*", Some(MUTABLE)),
            ("/archive/:feed/index.json", Some(MUTABLE)),
            ("/.well-known/diffdelta.json", Some(MUTABLE)),
            ("/archive/:feed/:year/:month/:day/:file", Some(IMMUTABLE)),
            ("/sup.json", None),
            ("/feeds/:feed/atom", None),
        ] {
            let (_, rule) = rules.split_once(&format!("{pattern}\n")).unwrap();
            let line = rule.lines().take_while(|line| line.starts_with(' ')).find(|line| name(line));
            let expected = directives.map(|directives| format!("  CDN-Cache-Control: {directives}"));
            assert_eq!(line, expected.as_deref(), "{pattern}");
        }
        let of_nginx: Vec<&str> = locations.lines().filter(|line| name(line)).map(str::trim).collect();
        let expected = [MUTABLE, IMMUTABLE].map(|value| format!("add_header CDN-Cache-Control \"{value}\";"));
        assert_eq!(of_nginx, expected);
    }

    #[test]
    fn origins_of_hosts_that_cannot_choose() {
        let of = |origins: &[&str]| {
            let origins: Vec<_> = origins.iter().map(|&origin| origin.to_owned()).collect();
            headers("https://a.example", &CorsPolicy::new(&origins))
        };
        assert!(!of(&[]).contains("Access-Control"));
        assert!(of(&["*"]).contains("  Access-Control-Allow-Origin: *\n"));
        assert!(of(&["https://b.example"]).contains("  Access-Control-Allow-Origin: https://b.example\n"));
        let several = of(&["https://b.example", "https://c.example"]);
        assert!(several.starts_with('#') && !several.contains("Access-Control"));
    }

    /// A publisher's HTML must not run as a page of the site.
    #[test]
    fn uploaded_files_are_in_a_sandbox() {
        let text = headers("https://a.example/base", &CorsPolicy::AnyOrigin);
        let (_, rule) = text.split_once("/base/feeds/:feed/attachments/*\n").unwrap();
        let lines: Vec<&str> = rule.lines().take_while(|line| line.starts_with(' ')).collect();
        for line in [
            "  X-Content-Type-Options: nosniff",
            "  Content-Security-Policy: sandbox; default-src 'none'",
            "  Access-Control-Allow-Origin: *",
        ] {
            assert!(lines.contains(&line), "{lines:?}");
        }
        // Their types are those of their names.
        assert!(!lines.iter().any(|line| line.contains("Content-Type:")), "{lines:?}");
        let nginx = nginx::locations("https://a.example", Path::new("/srv/x"), &CorsPolicy::SameOrigin);
        assert!(nginx.contains("add_header Content-Security-Policy \"sandbox; default-src 'none'\";"));
    }

    /// To a follower, 404 means that the publisher is at fault, and 410 that the page was dropped.
    #[test]
    fn pages_that_were_dropped_are_410() {
        let text = nginx::locations("https://a.example", Path::new("/srv/x"), &CorsPolicy::SameOrigin);
        let locations: Vec<&str> = text.split("location ~ ").collect();
        let mark = "if (-f \"/srv/x/.towpath/gone$towpath_path.gone\") {\n        return 410;";
        for (paths, is_marked) in [
            ("/feeds/[^/]+/replication/pages/[0-9]+", true),
            ("/feeds/[^/]+/atom/[0-9]+", true),
            ("/feeds/[^/]+/atom/[0-9]+-[0-9]+", true),
            ("/feeds/[^/]+/snapshots/[0-9]+", true),
            ("/feeds/[^/]+/atom", false),
            ("/feeds/[^/]+/replication", false),
        ] {
            let begin = format!("\"^(?<towpath_path>{paths})$\"");
            let location = locations.iter().find(|location| location.starts_with(&begin)).unwrap();
            assert_eq!(location.contains(mark), is_marked, "{location}");
        }
    }

    #[test]
    fn the_path_of_an_address() {
        assert_eq!(path_of("https://a.example"), "");
        assert_eq!(path_of("https://a.example/x/y"), "/x/y");
    }
}
