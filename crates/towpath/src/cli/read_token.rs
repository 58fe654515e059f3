//! The token to read feeds with that not everybody may read.

use clap::Args;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use url::Url;

use super::CliError;
use crate::client::{FetchOptions, Fetcher};

#[derive(Debug, Args)]
pub(super) struct ReadTokenArgs {
    /// The token to read with, which is sent to the feed's own server only
    #[arg(long, value_name = "TOKEN", env = "TOWPATH_READ_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

impl ReadTokenArgs {
    /// A fetcher that sends the token, if there is one, to the server that has all these feeds.
    pub(super) fn fetcher<'a>(&self, feeds: impl IntoIterator<Item = &'a Url>) -> Result<Fetcher, CliError> {
        let fetcher = Fetcher::new(FetchOptions::default())?;
        let Some(token) = &self.token else { return Ok(fetcher) };
        let bearer = HeaderValue::try_from(format!("Bearer {token}"));
        let mut bearer = bearer.map_err(|_| CliError::usage("this token cannot be sent"))?;
        bearer.set_sensitive(true);
        let mut feeds = feeds.into_iter();
        let Some(first) = feeds.next() else { return Ok(fetcher) };
        if let Some(other) = feeds.find(|feed| feed.origin() != first.origin()) {
            let [one, other] = [first, other].map(|feed| feed.origin().ascii_serialization());
            let why = format!("a token is for the feeds of one server, and these are of {one} and {other}");
            return Err(CliError::usage(why));
        }
        Ok(fetcher.with_headers(first.as_str(), HeaderMap::from_iter([(AUTHORIZATION, bearer)])))
    }

    /// A node is read with an account.
    pub(super) fn refuse_for_nodes(&self) -> Result<(), CliError> {
        let why = "a token is for http(s); an xmpp: address is read with an account";
        self.token.as_ref().map_or(Ok(()), |_| Err(CliError::usage(why)))
    }
}
