//! Conformance check of one feed.

use tokio::sync::watch;
use towpath_proto::follow::FollowError;
use towpath_proto::report::Report;

use crate::ReadLimits;
use crate::discover::{discover, locate};
use crate::drive::drive_check;
use crate::fetch::Fetcher;
use crate::listen::CallQueue;
use crate::protocol::{FollowPace, Protocol, checker};

/// Findings about a feed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FeedReport {
    /// URL that was checked.
    pub url: String,
    /// Protocol that was checked.
    pub protocol: Protocol,
    /// Findings, in order.
    pub report: Report,
}

/// Checks a feed for conformance with the specification of a protocol, or of the strongest that it offers.
///
/// # Errors
///
/// [`FollowError`] if the feed cannot be reached or recognised. A feed that violates its specification is no error.
pub async fn check(
    fetcher: &Fetcher,
    url: &str,
    protocol: Option<Protocol>,
) -> Result<FeedReport, FollowError> {
    let (protocol, url) = match protocol {
        // A feed is checked for how it announces its SUP document.
        Some(Protocol::Sup) => (Protocol::Sup, url.to_owned()),
        Some(protocol) => {
            let found = locate(fetcher, url, protocol).await?;
            (protocol, found.unwrap_or_else(|| url.to_owned()))
        }
        None => {
            let offer = discover(fetcher, url, FollowPace::Polled).await?;
            (offer.protocol, offer.url)
        }
    };
    let mut checker = checker(protocol, &url, ReadLimits::default())?;
    let (_never, stop) = watch::channel(false);
    drive_check(&mut *checker, fetcher, &stop, CallQueue::none()).await;
    Ok(FeedReport { url, protocol, report: checker.report().clone() })
}
