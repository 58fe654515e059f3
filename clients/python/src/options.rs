//! Options of follows and requests, as Python passes them.

use std::path::PathBuf;

use towpath_client::{FetchOptions, Fetcher, Follow, Protocol, StartFrom};

use crate::errors::Failure;

/// Parses a protocol; `None` for `auto`.
pub(crate) fn protocol(name: &str) -> Result<Option<Protocol>, Failure> {
    match name {
        "auto" => Ok(None),
        name => name.parse().map(Some).map_err(Failure::usage),
    }
}

/// Parses a start position: `beginning`, `now`, a time in RFC 3339, a day, else a position.
pub(crate) fn start(text: &str) -> Result<StartFrom, Failure> {
    StartFrom::parse(text).map_err(Failure::usage)
}

/// Sets the folder for large contents, if there is one.
pub(crate) fn large_content(follow: Follow, folder: Option<PathBuf>) -> Follow {
    match folder {
        Some(folder) => follow.large_content(folder),
        None => follow,
    }
}

/// Creates the HTTP client for an address. It sends the token and headers to the address's own server only.
pub(crate) fn fetcher(
    url: &str,
    token: Option<&str>,
    headers: &[(String, String)],
) -> Result<Fetcher, Failure> {
    let fetcher = Fetcher::new(FetchOptions::default()).map_err(|error| Failure::usage(error.to_string()))?;
    let fetcher = fetcher.with_named([url]);
    let mut map = http::HeaderMap::new();
    let bearer = token.map(|token| ("authorization".to_owned(), format!("Bearer {token}")));
    for (name, value) in headers.iter().chain(bearer.as_ref()) {
        let header = http::HeaderName::try_from(name).ok().zip(http::HeaderValue::try_from(value).ok());
        // The value may be a secret, so the message names the header only.
        let (key, mut value) = header
            .ok_or_else(|| Failure::usage(format!("the header {name:?} or its value is not allowed")))?;
        // Keeps secrets out of debug output and out of HPACK's index.
        value.set_sensitive(true);
        map.insert(key, value);
    }
    if map.is_empty() {
        return Ok(fetcher);
    }
    // Sent to this address only, so it must be one.
    let address =
        url.parse().map_err(|error| Failure::usage(format!("the address is not a URL: {error}")))?;
    Ok(fetcher.with_headers(&address, map))
}
