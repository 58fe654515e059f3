//! Configuration of nginx for a tree in a folder.

use std::path::Path;

use http::HeaderValue;
use towpath_proto::diffdelta::headers::IMMUTABLE;
use towpath_proto::sup::discovery::REL;

use super::classes::{CHECK, OF_FILES, classes, path_of};
use crate::document::cors::{CorsPolicy, EXPOSED, MAX_AGE, METHODS, REQUEST_HEADERS};
use crate::export::paths::{GONE, OWN};

/// Variables from the names that symbolic links lead to. They count in the whole of nginx, so their names are ours.
pub(super) fn maps(base_url: &str, cors: &CorsPolicy) -> String {
    let mut text = String::from(
        "# Made by towpath. To be included where nginx has `http { … }`.\n\
         # What a document's headers are stands in the name of the file that its path leads to.\n",
    );
    let at = r"/\.towpath/bodies/feeds/";
    text.push_str(&format!(
        "map $realpath_root $towpath_page_cache {{\n    default \"{IMMUTABLE}\";\n    \"~{at}.+;c=0;\" {CHECK};\n}}\n"
    ));
    let prefix = path_of(base_url).replace('.', r"\.");
    text.push_str(&format!(
        "map $uri $towpath_feed {{\n    default \"\";\n    \"~^{prefix}/(?:feeds|archive|diff/source|diff)/(?!_global/)\
         (?<towpath_feed_name>[a-z0-9_-]+)/\" $towpath_feed_name;\n}}\n"
    ));
    let mut map = |variable: &str, lines: &[String]| {
        text.push_str(&format!("map $realpath_root ${variable} {{\n    default \"\";\n"));
        for line in lines {
            text.push_str(&format!("    {line};\n"));
        }
        text.push_str("}\n");
    };
    map(
        "towpath_multipart",
        &[format!(r#""~{at}.+;b=(?<towpath_b>[^;/]+);" 'multipart/mixed; boundary="$towpath_b"'"#)],
    );
    map(
        "towpath_cache",
        &[
            format!("\"~{at}.+;c=0;\" no-cache"),
            format!("\"~{at}.+;c=i;\" \"{IMMUTABLE}\""),
            format!("\"~{at}.+;c=(?<towpath_c>[0-9]+);\" \"public, max-age=$towpath_c\""),
        ],
    );
    for (variable, fact, rel) in
        [("towpath_self", "o", "self"), ("towpath_prev", "p", "prev"), ("towpath_next", "n", "next")]
    {
        let feed = format!("{variable}_feed");
        let number = format!("{variable}_number");
        map(
            variable,
            &[format!(
                "\"~{at}(?<{feed}>[^/]+)/replication/.*;{fact}=(?<{number}>[0-9]+);\" \
                 '<{base_url}/feeds/${feed}/replication/pages/${number}>; rel=\"{rel}\"'"
            )],
        );
    }
    let sup = |variable: &str, value: &str| {
        [format!(
            "\"~{at}.+;s=(?<{variable}_id>[0-9a-f]+);\" '{}'",
            value.replace("ID", &format!("${variable}_id"))
        )]
    };
    map("towpath_sup", &sup("towpath_sup", &format!("{base_url}/sup.json#ID")));
    let link = format!("<{base_url}/sup.json#ID>; rel=\"{REL}\"; type=\"application/json\"");
    map("towpath_sup_link", &sup("towpath_sup_link", &link));
    if let CorsPolicy::Listed(origins) = cors {
        text.push_str(&origin_map(origins));
    }
    text
}

/// Variable with the request's origin, if its pages may read.
fn origin_map(origins: &[HeaderValue]) -> String {
    // nginx sends no header whose value is empty, so other origins get none.
    let mut text = String::from("map $http_origin $towpath_origin {\n    default \"\";\n");
    for origin in origins.iter().filter_map(|origin| origin.to_str().ok()) {
        text.push_str(&format!("    \"{origin}\" \"{origin}\";\n"));
    }
    text.push_str("}\n");
    text
}

/// Headers by which other origins' pages may read a document behind nginx.
fn cors_headers(cors: &CorsPolicy) -> Vec<(&'static str, &'static str)> {
    match cors {
        CorsPolicy::SameOrigin => Vec::new(),
        CorsPolicy::AnyOrigin => {
            vec![("Access-Control-Allow-Origin", "*"), ("Access-Control-Expose-Headers", EXPOSED)]
        }
        CorsPolicy::Listed(_) => vec![
            ("Access-Control-Allow-Origin", "$towpath_origin"),
            ("Access-Control-Expose-Headers", EXPOSED),
            ("Vary", "Origin"),
        ],
    }
}

/// Answer to a preflight, within a location. Headers of the location are not inherited beside those of the block.
fn preflight_block(cors: &[(&str, &str)]) -> String {
    if cors.is_empty() {
        return String::new();
    }
    let more = [
        ("Access-Control-Allow-Methods", METHODS),
        ("Access-Control-Allow-Headers", REQUEST_HEADERS),
        ("Access-Control-Max-Age", MAX_AGE),
    ];
    let line = |(name, value): &(&str, &str)| format!("        add_header {name} \"{value}\";\n");
    let lines: String = cors.iter().chain(&more).map(line).collect();
    format!("    if ($request_method = OPTIONS) {{\n{lines}        return 204;\n    }}\n")
}

pub(super) fn locations(base_url: &str, root: &Path, cors: &CorsPolicy) -> String {
    let mut text = String::from("# Made by towpath. To be included where nginx has `server { … }`.\n");
    // A dot in a regular expression fits any character.
    let prefix = path_of(base_url).replace('.', r"\.");
    // A quote in the folder's name would end nginx's string.
    let root = root.display().to_string().replace('\\', r"\\").replace('"', "\\\"");
    let cors = cors_headers(cors);
    let preflight = preflight_block(&cors);
    let mut location = |paths: &str, file: &str, media_type: &str, headers: &[(&str, &str)]| {
        text.push_str(&format!("location ~ \"^{prefix}(?<towpath_path>{paths})$\" {{\n"));
        text.push_str(&format!("    alias \"{root}$towpath_path{file}\";\n"));
        // An empty `types` has nginx take the type from `default_type`, not from the file's name.
        text.push_str("    gzip_static on;\n    gzip_vary on;\n    types {}\n");
        text.push_str(&format!("    default_type \"{media_type}\";\n"));
        if is_dropped(paths) {
            let mark = format!("{root}/{OWN}/{GONE}$towpath_path.{GONE}");
            text.push_str(&format!("    if (-f \"{mark}\") {{\n        return 410;\n    }}\n"));
        }
        text.push_str(&preflight);
        for (name, value) in headers.iter().chain(&[("Towpath-Feed", "$towpath_feed")]).chain(&cors) {
            text.push_str(&format!("    add_header {name} \"{value}\";\n"));
        }
        text.push_str("}\n");
    };
    for class in classes() {
        let is_page = class.paths.ends_with("/[0-9]+") && !class.is_index;
        let file = if class.is_index { "/index" } else { "" };
        let cache = if is_page { "$towpath_page_cache" } else { class.cache };
        location(&class.paths, file, &class.media_type, &class.cache_lines(cache));
    }
    // Their media type contains a boundary, so it cannot be a constant of the location.
    let pages = [
        ("Content-Type", "$towpath_multipart"),
        ("Cache-Control", "$towpath_cache"),
        ("Link", "$towpath_self"),
        ("Link", "$towpath_prev"),
        ("Link", "$towpath_next"),
        ("X-SUP-ID", "$towpath_sup"),
        ("Link", "$towpath_sup_link"),
    ];
    location("/feeds/[^/]+/replication", "/index", "", &pages);
    location("/feeds/[^/]+/replication/pages/[0-9]+", "", "", &pages);
    location("/feeds/[^/]+/snapshots/[0-9]+/pages/[0-9]+", "", "", &pages);
    text.push_str(&file_location(&prefix, &root, &cors));
    // State and bodies under other names must not be served as documents.
    let own = format!("location ~ \"^{prefix}/(?:\\.towpath/|_headers$|_redirects$)\" {{ return 404; }}\n");
    text.push_str(&own);
    text
}

/// Location of uploaded files. They are strangers': what a browser would run has no type of its own.
fn file_location(prefix: &str, root: &str, cors: &[(&str, &str)]) -> String {
    let paths = "/feeds/[^/]+/attachments/[0-9a-f]+/[^/]+";
    let mut text = format!("location ~ \"^{prefix}(?<towpath_path>{paths})$\" {{\n");
    text.push_str(&format!("    alias \"{root}$towpath_path\";\n"));
    text.push_str(
        "    types {\n        image/png png; image/jpeg jpg jpeg; image/gif gif; image/webp webp; image/avif avif;\n\
         \x20       audio/mpeg mp3; audio/mp4 m4a; audio/ogg ogg opus; audio/flac flac; video/mp4 mp4; video/webm webm;\n\
         \x20       application/pdf pdf; application/zip zip; application/json json; text/csv csv; text/plain txt;\n    }\n\
         \x20   default_type application/octet-stream;\n",
    );
    text.push_str(&format!(
        "    if (-f \"{root}/{OWN}/{GONE}$towpath_path.{GONE}\") {{\n        return 410;\n    }}\n"
    ));
    for (name, value) in OF_FILES.iter().chain(cors) {
        text.push_str(&format!("    add_header {name} \"{value}\";\n"));
    }
    text.push_str("}\n");
    text
}

/// Returns true if retention drops documents of these paths: those with a number.
fn is_dropped(paths: &str) -> bool {
    paths.starts_with("/feeds/") && paths.ends_with("[0-9]+")
}
