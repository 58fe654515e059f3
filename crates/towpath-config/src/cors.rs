//! `cors_origins` and `publish_origins`: sites whose pages may read and publish in a browser.

use towpath_proto::address;
use url::{Host, Url};

use super::problems::all_of;

/// Ends of host names that only a private network resolves (RFC 6762, RFC 8375 and usage).
const PRIVATE_NAMES: [&str; 8] =
    [".local", ".localhost", ".internal", ".intranet", ".lan", ".home", ".home.arpa", ".corp"];

/// Returns the origins that may read from a base URL: the configured ones, or every one if the base URL is public.
pub fn origins_for(configured: Option<&[String]>, base_url: &str) -> Vec<String> {
    match configured {
        Some(origins) => origins.to_vec(),
        // A page of a stranger must not read a private network's feeds through a visitor who is in that network.
        None if is_public(base_url) => vec!["*".to_owned()],
        None => Vec::new(),
    }
}

/// Returns true if a base URL is for everybody, as far as it tells.
fn is_public(base_url: &str) -> bool {
    let Ok(url) = Url::parse(base_url) else { return false };
    match url.host() {
        // A name without a dot is one of a private network.
        Some(Host::Domain(name)) => {
            name.contains('.') && !PRIVATE_NAMES.iter().any(|end| name.ends_with(end))
        }
        Some(Host::Ipv4(ip)) => address::check(ip.into()).is_ok(),
        Some(Host::Ipv6(ip)) => address::check(ip.into()).is_ok(),
        None => false,
    }
}

/// Validates the origins whose pages may read.
pub(super) fn check_origins(origins: &[String]) -> Result<(), String> {
    if origins == ["*"] {
        return Ok(());
    }
    check_each("cors_origins", origins, ", nor \"*\" alone for every one")
}

/// Validates the origins whose pages may publish. Not every page is to try tokens here.
pub(super) fn check_publish_origins(origins: &[String]) -> Result<(), String> {
    check_each("publish_origins", origins, "; each one has to be named")
}

fn check_each(key: &str, origins: &[String], or_else: &str) -> Result<(), String> {
    let check = |origin: &String| {
        let expected = Url::parse(origin).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let expected = expected.map(|url| url.origin().ascii_serialization());
        // Browsers send exactly this spelling, so another one would never match.
        // A pattern is a valid URL, too, and would match nothing.
        if (expected.as_ref() != Some(origin) || origin.contains('*')) && !is_extension(origin) {
            let such_as =
                expected.filter(|_| !origin.contains('*')).unwrap_or_else(|| "https://app.example".into());
            return Err(format!("{key}: {origin:?} is not an origin such as {such_as:?}{or_else}"));
        }
        Ok(())
    };
    all_of(origins.iter().map(check)).map(drop)
}

/// Returns true for the origin of a browser's extension.
fn is_extension(origin: &str) -> bool {
    let id = origin.split_once("-extension://").map(|(_, id)| id);
    id.is_some_and(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(origins: &[&str]) -> Result<(), String> {
        check_origins(&origins.iter().map(|&origin| origin.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn origins_are_spelt_as_browsers_send_them() {
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&["*"]), Ok(()));
        let good = ["https://a.example", "http://localhost:3000", "moz-extension://0a-b1"];
        assert_eq!(check(&good), Ok(()));
        let bad =
            ["https://a.example/", "https://A.example", "https://a.example:443", "a.example", "null", ""];
        for origin in bad.into_iter().chain(["https://*.example", "file:///x", "x-extension://a/b"]) {
            let error = check(&["https://a.example", origin]).unwrap_err();
            assert!(error.contains("cors_origins") && error.contains(origin), "{origin}: {error}");
        }
        assert!(check(&["*", "https://a.example"]).unwrap_err().contains("alone"));
        assert_eq!(check_publish_origins(&["https://a.example".to_owned()]), Ok(()));
        assert!(check_publish_origins(&["*".to_owned()]).unwrap_err().contains("publish_origins: \"*\""));
    }

    #[test]
    fn only_public_base_urls_are_read_by_every_origin() {
        for public in ["https://feeds.example", "http://9.9.9.9:8080/x", "https://[2606:4700::1]"] {
            assert_eq!(origins_for(None, public), ["*"], "{public}");
            assert!(origins_for(Some(&[]), public).is_empty());
        }
        for private in [
            "http://127.0.0.1:8080",
            "http://localhost",
            "http://10.0.0.1",
            "http://192.168.1.1",
            "http://169.254.1.1",
            "http://[::1]",
            "http://[fd00::1]",
            "http://towpath:8080",
            "https://feeds.corp",
            "http://box.local",
            "http://nas.home.arpa",
        ] {
            assert!(origins_for(None, private).is_empty(), "{private}");
        }
    }
}
