//! Check: an address, the protocols it speaks, and how well it does.

mod report;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use maud::{Markup, html};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use towpath_client::{
    CallQueue, FetchOptions, Fetcher, FollowPace, MemoryBudget, Offer, PrivateFetches, ReadLimits, checker,
    discover_all, drive_check,
};
use towpath_proto::report::Report;
use url::Url;

use self::report::{ProtocolCheck, fault};
use super::error_page::sign_in;
use super::layout::{Page, Section, secret};
use super::shown::Shown;
use super::visit::Visit;
use super::write::form_data::FormData;
use crate::config::PrivateFetchesConfig;
use crate::document::route_error::RouteError;

/// Longest time of a check, of all protocols together.
const PATIENCE: Duration = Duration::from_secs(60);
/// Reason of a check that is given up.
const OVERTIME: &str = "The check took more than a minute. Use towpath check for large feeds.";
/// Checks at a time. Each reads whole feeds.
const AT_A_TIME: usize = 2;

/// Largest document of a check, and largest entity of Data Replication, in MiB. Command lines may read more.
const LARGEST_MIB: usize = 16;

/// Checks of this server.
struct Checks(Arc<Semaphore>);

/// Shows the form.
pub(super) fn page(visit: &Visit) -> Page {
    with_result(visit, "", &html! {})
}

/// Checks the address of a form.
pub(super) async fn run(visit: &Visit, form: &FormData) -> Result<Shown, RouteError> {
    if !visit.is_publisher() {
        return Err(RouteError::forbidden("Checking other servers needs a token that may publish"));
    }
    let asked = form.text("url").trim();
    let url = match Url::parse(asked) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && asked.len() <= 2000 => url,
        _ => return Ok(with_result(visit, asked, &fault("That is no http or https address.")).into()),
    };
    let checks = visit.engine.extensions.get_or_insert_with(|| Checks(Arc::new(Semaphore::new(AT_A_TIME))));
    let Ok(place) = checks.0.clone().try_acquire_owned() else {
        return Err(RouteError::busy("Other checks are running. Try again in a minute"));
    };
    let fetcher = fetcher(visit)?;
    // On the runtime of background work: a check parses whole feeds, and other pages must not wait for that.
    let checking = visit.engine.runtime.spawn(
        async move {
            let _place = place;
            check_all(&fetcher, &url).await
        }
        .boxed(),
    );
    let result = match checking.await.map_err(|e| RouteError::internal(format!("the check panicked: {e}")))? {
        Ok(checked) => report::of_all(&checked),
        Err(why) => fault(&why),
    };
    Ok(with_result(visit, asked, &result).into())
}

/// Makes a client that reaches no private address, unless the configuration opens all of them.
fn fetcher(visit: &Visit) -> Result<Fetcher, RouteError> {
    let private = match visit.engine.config.server.private_fetches {
        PrivateFetchesConfig::All => PrivateFetches::All,
        // Nobody configured this address: a token for a feed is none for this machine's network.
        PrivateFetchesConfig::None | PrivateFetchesConfig::Named => PrivateFetches::None,
    };
    // The budget of the server's sources: checks must not double the memory that documents take.
    let memory = visit.engine.extensions.get_or_insert_with(MemoryBudget::default).clone();
    let options =
        FetchOptions::default().with_private(private).with_memory(memory).with_total_timeout(PATIENCE);
    Fetcher::new(options).map_err(|e| RouteError::internal(e.to_string()))
}

/// Returns the limits of what a check reads.
fn limits() -> Result<ReadLimits, String> {
    let mut limits = ReadLimits::default();
    for name in ["max_mib", "entity_mib"] {
        limits.set(name, LARGEST_MIB)?;
    }
    Ok(limits)
}

/// Finds the protocols that an address offers, and checks each of them, the preferred one first.
async fn check_all(fetcher: &Fetcher, url: &Url) -> Result<Vec<ProtocolCheck>, String> {
    let end = Instant::now() + PATIENCE;
    let found = timeout_at(end, discover_all(fetcher, url.as_str())).await;
    let offers = found.map_err(|_| OVERTIME.to_owned())?.map_err(|e| e.to_string())?;
    let mut all = Vec::new();
    // One after the other: together they would hold the documents of all protocols at a time.
    for (offer, others) in by_protocol(offers) {
        let report = timeout_at(end, check(fetcher, &offer)).await;
        all.push(ProtocolCheck {
            offer,
            others,
            report: report.unwrap_or_else(|_| Err(OVERTIME.to_owned())),
        });
    }
    Ok(all)
}

/// Sorts offers by preference, and sets further addresses of a protocol apart.
fn by_protocol(mut offers: Vec<Offer>) -> Vec<(Offer, Vec<String>)> {
    // Stable: of equal offers the first one is checked, which discovery would take, too.
    offers.sort_by_key(|offer| (offer.protocol.preference(FollowPace::Polled), offer.protocol));
    let mut sorted: Vec<(Offer, Vec<String>)> = Vec::new();
    for offer in offers {
        match sorted.last_mut().filter(|(first, _)| first.protocol == offer.protocol) {
            Some((first, others)) if first.url != offer.url && !others.contains(&offer.url) => {
                others.push(offer.url);
            }
            Some(_) => {}
            None => sorted.push((offer, Vec::new())),
        }
    }
    sorted
}

async fn check(fetcher: &Fetcher, offer: &Offer) -> Result<Report, String> {
    let mut check = checker(offer.protocol, &offer.url, limits()?).map_err(|e| e.to_string())?;
    // It never stops: the time limit drops it.
    let (_keep, stop) = watch::channel(false);
    if !drive_check(&mut *check, fetcher, &stop, CallQueue::none()).await {
        return Err("The check did not come to its end.".to_owned());
    }
    Ok(check.report().clone())
}

fn with_result(visit: &Visit, asked: &str, result: &Markup) -> Page {
    let body = html! {
        div class="title" { h1 { "Check a feed" } }
        p { "Finds every protocol that a feed speaks, and reports rule by rule how it keeps to the text of each." }
        @if visit.is_publisher() { @if let Some(session) = &visit.session {
            form class="filter" method="post" action={ (visit.root) "/check" } {
                (secret(session.form_secret()))
                div class="field wide" {
                    label for="url" { "Address of a feed, or of a page that names it" }
                    input id="url" type="url" name="url" value=(asked) required maxlength="2000" placeholder="https://";
                }
                button class="main" type="submit" { "Check" }
            }
        } } @else {
            div class="note" { p { "Checking other servers needs a token that may publish. " a href=(sign_in(visit)) { "Sign in" } ", or use " code { "towpath check URL" } "." } }
        }
        (result)
    };
    Page::new("Check", Section::Check, body)
}

#[cfg(test)]
mod tests {
    use towpath_client::Protocol;

    use super::*;

    #[test]
    fn each_protocol_is_checked_once() {
        let offer =
            |protocol, url: &str| Offer { protocol, url: url.to_owned(), why: String::new(), feed: None };
        let sorted = by_protocol(vec![
            offer(Protocol::Rss, "a"),
            offer(Protocol::Smart, "b"),
            offer(Protocol::Rss, "c"),
            offer(Protocol::DiffDelta, "d"),
            offer(Protocol::Rss, "a"),
        ]);
        let told: Vec<_> = sorted.iter().map(|(offer, others)| (offer.url.as_str(), others.len())).collect();
        assert_eq!(told, [("d", 0), ("b", 0), ("a", 1)]);
    }
}
