//! Headers that a user adds to the requests of `follow` and `check`, and the bearer token for feeds with readers.

use clap::Args;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use towpath_client::{FetchOptions, Fetcher};
use url::Url;

use super::error::CliError;

/// Headers of the connection (RFC 9110, section 7.6.1) and of the message's length: the client's own.
const RESERVED: [HeaderName; 7] = [CONNECTION, CONTENT_LENGTH, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];

#[derive(Debug, Args)]
pub(super) struct RequestHeaderArgs {
    /// Bearer token for reading, sent to the feed's own server only
    #[arg(long, value_name = "TOKEN", env = "TOWPATH_READ_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Header of each request, sent to the feed's own server only; may be repeated
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = parse_header)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Parses `Name: value`. An error does not repeat the value, which may be a secret.
fn parse_header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("a header is written `Name: value`")?;
    let name: HeaderName =
        name.trim().parse().map_err(|_| "the header's name has characters that no name has".to_owned())?;
    if RESERVED.contains(&name) {
        return Err(format!("{name} is set by towpath itself"));
    }
    let mut value = HeaderValue::from_str(value.trim())
        .map_err(|_| format!("the value of {name} has characters that are not allowed in a header"))?;
    // Keeps the value out of debug output and out of HPACK's index.
    value.set_sensitive(true);
    Ok((name, value))
}

impl RequestHeaderArgs {
    /// Creates a fetcher for these feeds, whose addresses the user named. It sends the token and headers, if there are
    /// any, to their server; then all must share one.
    pub(super) fn fetcher<'a>(&self, feeds: impl IntoIterator<Item = &'a Url>) -> Result<Fetcher, CliError> {
        let feeds: Vec<&Url> = feeds.into_iter().collect();
        let fetcher = Fetcher::new(FetchOptions::default())?;
        let fetcher = fetcher.with_named(feeds.iter().map(|feed| feed.as_str()));
        let headers = self.headers()?;
        let mut feeds = feeds.into_iter();
        let Some(first) = feeds.next().filter(|_| !headers.is_empty()) else { return Ok(fetcher) };
        // Sending a secret to a second server would disclose it.
        if let Some(other) = feeds.find(|feed| feed.origin() != first.origin()) {
            let [one, other] = [first, other].map(|feed| feed.origin().ascii_serialization());
            let why = format!(
                "a token or header is for the feeds of one server, but these are on {one} and {other}; follow them in \
                 separate commands"
            );
            return Err(CliError::usage(why));
        }
        Ok(fetcher.with_headers(first, headers))
    }

    /// Returns the headers of each request.
    fn headers(&self) -> Result<HeaderMap, CliError> {
        let mut headers: HeaderMap = self.headers.iter().cloned().collect();
        let Some(token) = &self.token else { return Ok(headers) };
        if headers.contains_key(AUTHORIZATION) {
            return Err(CliError::usage("--token and --header 'Authorization: …' cannot be combined"));
        }
        let bearer = HeaderValue::try_from(format!("Bearer {token}"));
        let mut bearer = bearer
            .map_err(|_| CliError::usage("the token contains characters that are not allowed in a header"))?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
        Ok(headers)
    }

    /// Rejects a token or headers for an XMPP node, which is read with an account.
    pub(super) fn refuse_for_nodes(&self) -> Result<(), CliError> {
        if self.token.is_none() && self.headers.is_empty() {
            return Ok(());
        }
        Err(CliError::usage("a token or header is for http(s); an xmpp: URL is read with an account (--jid)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_a_name_and_a_value() {
        let (name, value) = parse_header("Accept:application/atom+xml ").unwrap();
        assert_eq!((name.as_str(), value.to_str().unwrap()), ("accept", "application/atom+xml"));
        assert_eq!(parse_header("X-Empty:").unwrap().1, "");
        for (text, needle) in [
            ("secret", "`Name: value`"),
            ("a b: secret", "name"),
            ("X: a\nsecret", "value of x"),
            ("Host: secret", "itself"),
            ("transfer-encoding: chunked", "itself"),
        ] {
            let error = parse_header(text).unwrap_err();
            assert!(error.contains(needle) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
