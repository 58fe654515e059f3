//! Source addresses that name a file of this machine.

use std::path::PathBuf;

/// Path of a source that is a file: from a `file:` URL, or a text without a scheme. `None` for other schemes.
pub fn local_path(address: &str) -> Option<PathBuf> {
    match url::Url::parse(address) {
        Ok(url) if url.scheme() == "file" => url.to_file_path().ok(),
        // A single letter is a Windows drive, not a scheme.
        Ok(url) if url.scheme().len() > 1 => None,
        _ => Some(PathBuf::from(address)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_addresses_and_plain_paths_are_local() {
        assert_eq!(local_path("file:///a/b%20c.json"), Some(PathBuf::from("/a/b c.json")));
        assert_eq!(local_path("data/a.json"), Some(PathBuf::from("data/a.json")));
        assert_eq!(local_path("/data/a.json"), Some(PathBuf::from("/data/a.json")));
        assert_eq!(local_path("https://example.com/a"), None);
        assert_eq!(local_path("ftp://example.com/a"), None);
    }
}
