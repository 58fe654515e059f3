//! The bearer token for feeds with restricted readers.

use clap::Args;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use towpath_client::{FetchOptions, Fetcher};
use url::Url;

use super::error::CliError;

#[derive(Debug, Args)]
pub(super) struct ReadTokenArgs {
    /// Bearer token for reading, sent to the feed's own server only
    #[arg(long, value_name = "TOKEN", env = "TOWPATH_READ_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

impl ReadTokenArgs {
    /// Creates a fetcher for these feeds, whose addresses the user named. It sends the token, if there is one, to
    /// their server; then all must share one.
    pub(super) fn fetcher<'a>(&self, feeds: impl IntoIterator<Item = &'a Url>) -> Result<Fetcher, CliError> {
        let feeds: Vec<&Url> = feeds.into_iter().collect();
        let fetcher = Fetcher::new(FetchOptions::default())?;
        let fetcher = fetcher.with_named(feeds.iter().map(|feed| feed.as_str()));
        let Some(token) = &self.token else { return Ok(fetcher) };
        let bearer = HeaderValue::try_from(format!("Bearer {token}"));
        let mut bearer = bearer
            .map_err(|_| CliError::usage("the token contains characters that are not allowed in a header"))?;
        // Keeps the token out of debug output and out of HPACK's index.
        bearer.set_sensitive(true);
        let mut feeds = feeds.into_iter();
        let Some(first) = feeds.next() else { return Ok(fetcher) };
        // Sending the token to a second server would disclose it.
        if let Some(other) = feeds.find(|feed| feed.origin() != first.origin()) {
            let [one, other] = [first, other].map(|feed| feed.origin().ascii_serialization());
            let why = format!("a token is for the feeds of one server, but these are on {one} and {other}");
            return Err(CliError::usage(why));
        }
        Ok(fetcher.with_headers(first.as_str(), HeaderMap::from_iter([(AUTHORIZATION, bearer)])))
    }

    /// Rejects a token for an XMPP node, which is read with an account.
    pub(super) fn refuse_for_nodes(&self) -> Result<(), CliError> {
        let why = "a token is for http(s); an xmpp: URL is read with an account (--jid)";
        self.token.as_ref().map_or(Ok(()), |_| Err(CliError::usage(why)))
    }
}
